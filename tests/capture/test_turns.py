"""The encoding thread: hubs take turns, and none keeps the others waiting."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import fastavro
import pytest
from tests.capture.support import capture_files, captured_numbers, wait_until
from tests.support.clocks import SetClock

from tidegate.broker import Broker
from tidegate.capture import CaptureService
from tidegate.capture.avro_file import AvroEncoder, Encoding, StoredEvents
from tidegate.capture.turns import EncodingShare, EncodingTurns
from tidegate.capture.window import WindowLimits
from tidegate.model.capture import CaptureSettings
from tidegate.transport.tasks import TaskOwner
from tidegate.wire.batch import wrap_event

_EMPTY = wrap_event(b"")


async def test_the_next_turn_is_of_the_hub_that_has_used_least() -> None:
    """A hub of costly turns has few of them; one that was away has no claim to what it left."""
    clock, order = SetClock(), list[str]()
    turns = EncodingTurns(monotonic=clock.monotonic)
    shares = {name: EncodingShare(turns) for name in ("costly", "cheap", "later")}

    async def work(name: str, cost_s: float) -> None:
        def call(_: Callable[[], bool]) -> None:
            order.append(name)
            clock.advance(cost_s)

        await shares[name].run(call)

    async with TaskOwner("test") as tasks:
        works = [("costly", 10.0)] * 3 + [("cheap", 4.0)] * 4
        begun = [tasks.start(work(*each), name=each[0]) for each in works]
        await asyncio.gather(*begun)
        assert order == ["costly", "cheap", "cheap", "cheap", "costly", "cheap", "costly"]
        order.clear()
        works = [("cheap", 4.0)] * 3 + [("later", 4.0)] * 3
        begun = [tasks.start(work(*each), name=each[0]) for each in works]
        await asyncio.gather(*begun)
    assert order[:4] == ["cheap", "later", "cheap", "later"]


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_cancelled_turn_is_passed_on(is_late: bool) -> None:
    """Protects all captures from one that ends while it waits, or in the moment of its turn."""

    class Turns(EncodingTurns):
        def _pass_on(self) -> None:
            super()._pass_on()
            if is_late:
                cancelled.cancel()

    turns = Turns()
    first, second, third = (EncodingShare(turns) for _ in range(3))
    wanted: list[bool] = []
    loop, started, is_free = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    def hold(is_wanted: Callable[[], bool]) -> None:
        loop.call_soon_threadsafe(started.set)
        asyncio.run_coroutine_threadsafe(is_free.wait(), loop).result()
        wanted.append(is_wanted())

    async with TaskOwner("test") as tasks:
        tasks.start(first.run(hold), name="first")
        await started.wait()
        cancelled = tasks.start(second.run(lambda _: None), name="second")
        waiting = tasks.start(third.run(lambda is_wanted: is_wanted()), name="third")
        await asyncio.sleep(0)
        if not is_late:
            cancelled.cancel()
        is_free.set()
        assert await waiting is False
        assert wanted == [True]
        assert await first.run(lambda _: 5) == 5


async def test_a_cancelled_call_sees_that_the_thread_is_wanted() -> None:
    """A capture that is stopped does not encode a large batch to its end."""
    share = EncodingShare(EncodingTurns())
    loop, started, ended = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    def call(is_wanted: Callable[[], bool]) -> None:
        loop.call_soon_threadsafe(started.set)
        while not is_wanted():
            pass
        loop.call_soon_threadsafe(ended.set)

    async with TaskOwner("test") as tasks:
        task = tasks.start(share.run(call), name="call")
        await started.wait()
        task.cancel()
        async with asyncio.timeout(60):
            await ended.wait()


@pytest.mark.slow
def test_a_large_batch_gives_the_thread_back() -> None:
    """After some milliseconds, with the bytes so far, and continues where it was."""
    count = 20_000
    batches = [
        StoredEvents(start, 0, memoryview(_EMPTY * count), array("I", [len(_EMPTY)]) * count)
        for start in (0, count)
    ]
    encoder = AvroEncoder(b"a marker 16 long")
    encoding = Encoding(encoder, batches)
    data = encoding.run(lambda: True)
    assert 0 < encoder.event_count < count
    assert not encoding.is_done
    while not encoding.is_done:
        data += encoding.run(lambda: encoder.event_count < count)
    data += encoder.finish()
    numbers = [each["SequenceNumber"] for each in fastavro.reader(BytesIO(data)) if isinstance(each, dict)]
    assert numbers == list(range(2 * count))


@pytest.mark.slow
async def test_a_hub_of_tiny_events_does_not_stop_the_capture_of_others(
    broker: Broker, tmp_path: Path, clock: SetClock
) -> None:
    """A batch of a megabyte can have 200,000 events, and takes ten seconds."""
    service = CaptureService(
        broker,
        namespace="ns",
        directory=tmp_path / "data" / "capture",
        clock=clock,
        limits_of=lambda settings: WindowLimits(100_000_000, 60_000, settings.is_empty_skipped),
    )
    service.start()
    files = tmp_path / "files"
    try:
        for name, event in (("costly", _EMPTY), ("quiet", wrap_event(b"\x00\x53\x75\xa0\x01x"))):
            hub = await broker.create_event_hub(name, partition_count=1)
            count = 200_000 if name == "costly" else 10
            await hub.partition("0").append(event * count, array("I", [len(event)]) * count)
        clock.advance(61)
        for name in ("costly", "quiet"):
            settings = CaptureSettings.from_mapping({"destination": str(files), "is_empty_skipped": True})
            await broker.set_capture(name, settings)
        await wait_until(lambda: capture_files(files / "ns"), deadline_s=120.0)
        assert captured_numbers(files) == list(range(10))
        assert sum(path.stat().st_size for path in files.rglob("*.tmp")) < 6_000_000  # of 12,600,000
    finally:
        await service.close()
