"""Retention by time: each event goes when its time has come, however few others there are."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.clocks import SetClock

from tidegate.broker import Broker, Partition
from tidegate.model.errors import OutOfOrderSequenceError
from tidegate.model.times import milliseconds_of
from tidegate.server.opening import open_broker
from tidegate.storage.record import ProducerBatch
from tidegate.transport.tasks import TaskOwner

_HOUR_S = 3600


async def _append(partition: Partition, sequence: int) -> int:
    producer = ProducerBatch(producer_id=7, epoch=0, sequence=sequence)
    result = await partition.append(b"event", array("I", (5,)), producer=producer)
    return result.start_sequence_number


async def _look(broker: Broker, partition: Partition, clock: SetClock, times_ms: list[int]) -> None:
    """Apply retention, and compare what is left with what is due."""
    await broker.apply_retention()
    now_ms = milliseconds_of(clock.now_utc())
    oldest_ms = [*times_ms, now_ms][partition.begin_sequence_number]
    assert oldest_ms >= now_ms - (_HOUR_S + _HOUR_S // 10) * 1000, "it is still there"
    if partition.begin_sequence_number:
        assert times_ms[partition.begin_sequence_number - 1] < now_ms - _HOUR_S * 1000, "it went too early"


@pytest.fixture
async def tasks() -> AsyncIterator[TaskOwner]:
    """The test's tasks."""
    async with TaskOwner("test") as owner:
        yield owner


@pytest.mark.parametrize("pause_s", [87, 290, 1000])
@pytest.mark.slow
async def test_an_event_goes_within_a_tenth_of_its_hours(
    tmp_path: Path, clock: SetClock, pause_s: int
) -> None:
    """Events that came steadily were all served 150 minutes later, in a hub that keeps an hour."""
    broker = await open_broker(tmp_path, clock=clock)
    hub = await broker.create_event_hub("hub", partition_count=2, retention_hours=1)
    partition, idle = hub.partitions
    times_ms: list[int] = []
    for second in range(3 * _HOUR_S):
        if second % pause_s == 0 and second < 2 * _HOUR_S:
            assert await _append(partition, len(times_ms)) == len(times_ms)
            times_ms.append(milliseconds_of(clock.now_utc()))
        if second % 60 == 0:
            await _look(broker, partition, clock, times_ms)
        clock.advance(1)
    clock.advance(_HOUR_S // 5)
    await broker.apply_retention()
    assert partition.begin_sequence_number == partition.next_sequence_number == len(times_ms)
    assert (idle.begin_sequence_number, idle.next_sequence_number) == (0, 0)
    files = list((tmp_path / "logs").glob("*/0/*.log"))
    assert len(files) == 1, "nothing is left but the empty segment"
    await broker.close()


@pytest.mark.slow
async def test_numbers_and_producers_outlive_the_events(tmp_path: Path, clock: SetClock) -> None:
    """A partition whose events are all gone goes on with the next number, and knows its producers: a repeat
    is recognized, a gap refused. After a restart as well."""
    broker = await open_broker(tmp_path, clock=clock)
    await broker.create_event_hub("hub", partition_count=1, retention_hours=1)
    for restarts in range(3):
        partition = broker.event_hub("hub").partitions[0]
        assert await _append(partition, restarts) == restarts
        for _ in range(70):
            clock.advance(60)
            await broker.apply_retention()
        ends = await partition.ends()
        assert (ends.begin_sequence_number, ends.next_sequence_number) == (restarts + 1, restarts + 1)
        await broker.close()
        broker = await open_broker(tmp_path, clock=clock)
        partition = broker.event_hub("hub").partitions[0]
        again = await partition.ends()
        assert (again.begin_sequence_number, again.next_sequence_number) == (restarts + 1, restarts + 1)
        assert again.last_enqueued_time_ms == ends.last_enqueued_time_ms
        assert await _append(partition, restarts) == restarts
        with pytest.raises(OutOfOrderSequenceError):
            await _append(partition, restarts + 2)
    await broker.close()


async def test_a_look_at_many_partitions_lets_others_have_turns(
    tmp_path: Path, clock: SetClock, tasks: TaskOwner
) -> None:
    """It would stop the event loop for as long as all of them take."""
    broker = await open_broker(tmp_path, clock=clock)
    for number in range(10):
        await broker.create_event_hub(f"hub{number}", partition_count=5)
    turns = 0
    look = tasks.start(broker.apply_retention(), name="look")
    while not look.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 50
    await broker.close()
