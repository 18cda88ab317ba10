"""What the service counts for blobs is at least what they hold in memory: else an account has no limit."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from random import Random
from string import ascii_letters

import pytest
from tests.storage.engines import Memory, MemoryEngine
from tests.support.clocks import SetClock

from tidegate.broker import Broker
from tidegate.broker.blobs.accounts import NAMESPACE_ACCOUNT_ID
from tidegate.broker.blobs.blob import NO_CONDITIONS
from tidegate.broker.blobs.lease import StoredLease

_TWO_CHARACTERS = [first + second for first in ascii_letters for second in ascii_letters]


@pytest.fixture(scope="module")
def alone() -> Iterator[ProcessPoolExecutor]:
    """A process without other tests: what their threads allocate meanwhile would count."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        yield process


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_memory_is_what_is_counted(alone: ProcessPoolExecutor, seed: int) -> None:
    """Or less, whatever clients write."""
    counted, traced = alone.submit(_measured, seed).result()
    assert traced <= counted, (seed, counted / traced)


def _measured(seed: int) -> tuple[int, int]:
    """Bytes that the store counts for what a random client writes, and bytes that Python allocates for it."""
    return asyncio.run(_filled(Random(seed)))


async def _filled(random: Random) -> tuple[int, int]:
    kind = random.choice(["{n}{text}", "{text}/h/{n}/checkpoint/{p}", "{text}{n}/h{n}/g/ownership/0"])
    text, content = _any_text(random, 980), bytes(random.choice([0, 4096]))
    names = _TWO_CHARACTERS[: random.choice([0, 1, 6, 11, 90, 700])]
    value = random.choice(["", "x", '"' * 9])
    is_leased, count = random.random() < 0.5, random.choice([90, 175])
    broker = await Broker.open(MemoryEngine(Memory()), clock=SetClock())
    account, blobs = NAMESPACE_ACCOUNT_ID, broker.blobs

    async def store(number: int) -> None:
        name = kind.format(n=number, p=number % 1000, text=text)
        metadata = {"".join(list(each)): "".join(list(value)) for each in names}
        own = bytes(bytearray(content))
        await blobs.put(account, "store", name, NO_CONDITIONS, lease_id=None, content=own, metadata=metadata)
        if is_leased:
            new = StoredLease(f"{number:036}", 30, break_s=number / 7)
            await blobs.change_lease(account, "store", name, NO_CONDITIONS, lambda *_: new.lease(number / 3))

    async def fill(numbers: range) -> None:
        await blobs.create_container(account, f"more-{numbers.start}", {})
        for number in numbers:
            await store(number)

    await blobs.create_container(account, "store", {})
    await fill(range(2))
    gc.collect()
    tracemalloc.start(1)
    try:
        counted, traced = blobs._total.held_bytes, tracemalloc.get_traced_memory()[0]
        await fill(range(1000, 1000 + count))
        gc.collect()
        return blobs._total.held_bytes - counted, tracemalloc.get_traced_memory()[0] - traced
    finally:
        tracemalloc.stop()
        await broker.close()


def _any_text(random: Random, characters_max: int) -> str:
    letter = random.choice(['"', "n", "/", "ä", "İ", "\U0001f600"])
    return letter * random.choice([1, 9, characters_max])
