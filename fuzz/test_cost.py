"""What a decoder costs per byte, whatever the bytes: processor time and memory are bounded by a factor.

The time of a plain list of the same size is measured in the same run, and again before each further try: a
shared machine may be half as fast a moment later. The worst takes 19 times that; 480 KB of map keys with one
hash took 270 times.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from fuzz.hostile import PLACES, SHAPES, hostile_inputs, plain_list
from fuzz.targets import TARGETS
from tidegate.amqp.decode import CONTENT_LIMITS, decode_value
from tidegate.model.errors import RemoteProtocolError

FACTOR_MAX = 40
TRIES = 8
PAUSE_S = 0.5
"""Longer before each further try: what else the machine does may take caches away for seconds."""
MEMORY_FACTOR_MAX = 500
"""Bytes at most of all that is made of one byte: an empty list takes 56, and its text as much again."""

MUTATIONS = 100
SEED = int(os.environ.get("TIDEGATE_SEED", "0")) or random.SystemRandom().getrandbits(32)

_COLLIDING = ("map-of-uuid", "map-of-described", "map-of-array", "maps-of-uuid")
_LARGE = (*_COLLIDING, "nested-maps", "list-of-empty-lists", "arrays-of-no-width", "array-of-32-descriptors")


def _run(decode: Callable[[bytes], object], data: bytes) -> float:
    """Seconds of this thread's processor time."""
    gc.disable()  # how long a collection takes depends on what else this process holds
    try:
        begun_s = time.thread_time()
        with contextlib.suppress(RemoteProtocolError):
            decode(data)
        return time.thread_time() - begun_s
    finally:
        gc.enable()


def _plain_s(size: int) -> float:
    data = plain_list(size)
    return min(_run(lambda data: decode_value(data, 0, CONTENT_LIMITS), data) for _ in range(5))


def _too_expensive(target: str, data: bytes, plain_s: float, list_bytes: int) -> Iterator[str]:
    """Which of the target's decoders take too long, each time that they are asked.

    ``plain_s``: what a list of ``list_bytes`` took last.
    """
    for index, decode in enumerate(TARGETS[target]):
        for pauses in range(TRIES):
            cost_s = _run(decode, data)
            if cost_s <= FACTOR_MAX * plain_s:
                break
            time.sleep(pauses * PAUSE_S)
            plain_s = _plain_s(list_bytes)
        else:
            yield f"decoder {index} of {target} takes {cost_s:.2f} s: {cost_s / plain_s:.0f} times a list"


@pytest.mark.parametrize("size", [64_000, 480_000])
@pytest.mark.slow
def test_no_input_costs_time_out_of_proportion(size: int) -> None:
    """Protects the event loop from inputs made to be slow: colliding keys, nesting, elements of no width."""
    plain_s = _plain_s(size)
    failures = [
        f"{name}: {failure}"
        for name, (target, data) in hostile_inputs(size).items()
        if size < 100_000 or name.endswith(_LARGE) or name == "many-sequences"
        for failure in _too_expensive(target, data, plain_s, size)
    ]
    assert not failures


@pytest.mark.slow
def test_no_mutated_input_costs_time_out_of_proportion() -> None:
    """Protects the same against combinations that nobody thought of, side by side and damaged."""
    print(f"TIDEGATE_SEED={SEED}")
    chance = random.Random(SEED)
    plain_s = _plain_s(64_000)
    for number in range(MUTATIONS):
        target, data = _mutated(chance)
        assert not list(_too_expensive(target, data, plain_s, 64_000)), (
            f"TIDEGATE_SEED={SEED}, input {number} of {target}, begins with {data[:200].hex()}"
        )


def _mutated(chance: random.Random) -> tuple[str, bytes]:
    parts = [
        SHAPES[name](chance.choice((300, 2000, 16_000)))
        for name in chance.choices(list(SHAPES), k=chance.randint(1, 4))
    ]
    content = b"".join(parts) * chance.choice((1, 1, 2))
    count = len(parts) * (len(content) // len(b"".join(parts)))
    value = b"\xd0" + (len(content) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + content
    target, around = PLACES[chance.choice(list(PLACES))]
    mutated = bytearray(around(value))[:64_000]
    for _ in range(chance.randint(0, 3)):
        at = chance.randrange(min(len(mutated), chance.choice((50, len(mutated)))))
        mutated[at] = chance.choice((chance.randrange(256), 0x00, 0x45, 0xC1, 0xD1, 0xE0, 0xF0))
    return target, bytes(mutated)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.slow
def test_no_input_makes_memory_out_of_proportion(shape: str) -> None:
    """Protects memory: a byte becomes an object or two, never a hundred."""
    data = SHAPES[shape](8_000)
    for place in ("value", "body", "properties"):
        target, around = PLACES[place]
        encoded = around(data)
        for decode in TARGETS[target]:
            tracemalloc.start()
            _run(decode, encoded)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak <= MEMORY_FACTOR_MAX * len(encoded)
