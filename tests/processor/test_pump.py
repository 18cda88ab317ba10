"""A pump against the real service: failing batches, checkpoints, and positions that are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.processor.hosts import (
    QUICK,
    Journal,
    Recorder,
    Subject,
    checkpoint_all,
    delete_hub,
    group_of,
    publish,
    remove_events,
    until,
)

from tidegate.client import EventHubConsumer, EventHubProducer
from tidegate.model.errors import (
    ClosedError,
    EventHubReplacedError,
    InvalidArgumentError,
    PositionOutOfRangeError,
    StoreUnavailableError,
)
from tidegate.model.events import EventData, ReceivedEvent
from tidegate.model.position import EventPosition
from tidegate.processor import (
    GroupKey,
    MemoryStore,
    PartitionContext,
    PartitionState,
    PositionLostPolicy,
    ProcessorCheckpoint,
)
from tidegate.testing.hub import HubService
from tidegate.transport.clock import SystemClock

# --- batches that fail ------------------------------------------------------------------------------------


async def test_a_batch_that_fails_comes_again_in_order(
    hub_service: HubService, hub: str, store: MemoryStore
) -> None:
    """What process_events raises goes to process_error, and nothing is skipped or overtaken."""
    failures = iter([ValueError("first"), ValueError("second")])

    async def fail_twice(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        for failure in failures:
            raise failure
        await context.checkpoint()

    subject = Subject(hub_service, hub, store, fail_twice, max_batch_size=4)
    await publish(hub_service, hub, 10)
    async with subject.running():
        await until(lambda: len(subject.numbers) == 18)
        assert subject.host.statistics().partitions["0"].error is None
    assert subject.numbers == [0, 1, 2, 3] * 2 + list(range(10))
    calls = ["open", "events", "error ValueError", "events", "error ValueError", "events"]
    assert subject.journal.of("0")[:6] == calls
    assert subject.reported == [], "what a handler raises is its own affair"


async def test_a_batch_that_fails_is_not_checkpointed(
    hub_service: HubService, hub: str, store: MemoryStore
) -> None:
    """Neither by itself nor by a checkpoint of close: it comes again at the next host."""

    async def fail(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        raise ValueError("no")

    subject = Subject(hub_service, hub, store, fail, checkpoint_every_events=1)
    await publish(hub_service, hub, 3)
    async with subject.running():
        await until(lambda: len(subject.journal.errors) >= 2)
        assert isinstance(subject.host.statistics().partitions["0"].error, ValueError)
    assert await subject.checkpoint(store) is None
    assert subject.journal.of("0")[-1] == "close shutdown"


async def test_an_open_that_fails_is_tried_again(
    hub_service: HubService, hub: str, store: MemoryStore
) -> None:
    """The processor is told, closed as restarted, and a new instance opened."""
    journal = Journal()

    class Reluctant(Recorder):
        async def open(self, context: PartitionContext) -> None:
            await super().open(context)
            if journal.of("0").count("open") == 1:
                raise OSError("not yet")

    await publish(hub_service, hub, 1)
    subject = Subject(hub_service, hub, store)
    async with subject.host.running(factory=lambda context: Reluctant(journal)):
        await until(lambda: journal.count == 1)
    assert journal.of("0") == ["open", "error OSError", "close restarted", "open", "events", "close shutdown"]
    assert [type(error) for error in subject.reported] == [OSError]


async def test_a_silent_partition_can_call_the_handler(
    hub_service: HubService, hub: str, store: MemoryStore
) -> None:
    """With invoke_after_receive_timeout a call without events tells that none came; else none is made."""
    subject = Subject(
        hub_service, hub, store, checkpoint_all, receive_timeout_s=0.02, invoke_after_receive_timeout=True
    )
    async with subject.running():
        await until(lambda: subject.journal.of("0").count("nothing") >= 2)
        await publish(hub_service, hub, 1)
        await until(lambda: subject.numbers == [0])
    silent = Subject(hub_service, hub, store, receive_timeout_s=0.02)
    async with silent.running():
        await until(lambda: silent.state is PartitionState.RUNNING)
        await publish(hub_service, hub, 1)
        await until(lambda: silent.numbers == [1])
    assert "nothing" not in silent.journal.of("0")


# --- checkpoints ------------------------------------------------------------------------------------------


async def test_a_checkpoint_is_of_the_call_or_of_an_event_and_never_goes_back(
    hub_service: HubService, hub: str, store: MemoryStore
) -> None:
    """High water, low water, an older event, an event of elsewhere; and after the end it is refused."""
    seen: list[int | None] = []

    async def checkpoint(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        for event in (events[3], events[1], None, events[2]):
            await context.checkpoint(event)
            found = await subject.checkpoint(store)
            seen.append(None if found is None else found.sequence_number)
        elsewhere = ReceivedEvent(
            partition_id="9", sequence_number=0, offset="0", enqueued_time_ms=0, contents=events[0].contents
        )
        beyond = ReceivedEvent(
            partition_id="0", sequence_number=99, offset="", enqueued_time_ms=0, contents=events[0].contents
        )
        for wrong in (elsewhere, beyond):
            with pytest.raises(InvalidArgumentError):
                await context.checkpoint(wrong)

    subject = Subject(hub_service, hub, store, checkpoint)
    await publish(hub_service, hub, 10)
    async with subject.running():
        await until(lambda: subject.host.statistics().events_processed == 10)
    assert seen == [3, 3, 9, 9]
    assert subject.journal.errors == []
    found = await subject.checkpoint(store)
    assert found is not None
    assert (found.offset, found.event_hub_created_at_ms is None) == ("9", False)
    with pytest.raises(ClosedError):
        await subject.journal.contexts[0].checkpoint()


async def test_checkpoints_every_n_events(hub_service: HubService, hub: str, store: MemoryStore) -> None:
    """Behind the batch that completes N; what is left is checkpointed on shutdown."""
    seen: list[int | None] = []

    async def note(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        found = await subject.checkpoint(store)
        seen.append(None if found is None else found.sequence_number)

    subject = Subject(hub_service, hub, store, note, max_batch_size=2, checkpoint_every_events=3)
    await publish(hub_service, hub, 10)
    async with subject.running():
        await until(lambda: subject.host.statistics().events_processed == 10)
    assert seen == [None, None, 3, 3, 7]
    found = await subject.checkpoint(store)
    assert found is not None
    assert found.sequence_number == 9


async def test_checkpoints_every_t_seconds(hub_service: HubService, hub: str, store: MemoryStore) -> None:
    """Also when no event comes any more: the last ones do not wait for the next."""
    subject = Subject(hub_service, hub, store, receive_timeout_s=60.0, checkpoint_every_s=0.05)
    await publish(hub_service, hub, 10)
    async with subject.running():
        async with asyncio.timeout(30):
            while (found := await subject.checkpoint(store)) is None or found.sequence_number != 9:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert subject.numbers == list(range(10))


async def test_a_checkpoint_that_fails_is_reported_and_made_later(hub_service: HubService, hub: str) -> None:
    """A store that does not answer for a while costs no event and no session."""

    class Moody(MemoryStore):
        failures = 2

        async def update_checkpoint(self, *arguments: Any, **named: Any) -> None:
            if self.failures:
                self.failures -= 1
                raise StoreUnavailableError("The store is away.")
            await super().update_checkpoint(*arguments, **named)

    store = Moody(SystemClock())
    subject = Subject(hub_service, hub, store, max_batch_size=1, checkpoint_every_events=1)
    await publish(hub_service, hub, 5)
    async with subject.running():
        await until(lambda: subject.host.statistics().events_processed == 5)
    assert subject.numbers == list(range(5))
    assert [type(error) for error in subject.reported] == [StoreUnavailableError] * 2
    found = await subject.checkpoint(store)
    assert found is not None
    assert found.sequence_number == 4


@pytest.mark.parametrize("kind", ["sequence number", "offset", "enqueued time", "nothing processed"])
@pytest.mark.slow
async def test_any_one_position_is_enough_to_go_on(
    hub_service: HubService, hub: str, store: MemoryStore, kind: str
) -> None:
    """A checkpoint that another program wrote may hold only one of the three."""
    await publish(hub_service, hub, 3)
    await asyncio.sleep(0.005)  # the next enqueued time is another one
    await publish(hub_service, hub, 3)
    async with (
        EventHubConsumer.from_connection_string(hub_service.hub_connection_string(hub)) as consumer,
        await consumer.open_receiver("0", EventPosition.from_sequence_number(3)) as receiver,
    ):
        event = (await receiver.receive(1, 10))[0]
    checkpoints = {
        "sequence number": ProcessorCheckpoint("0", 3),
        "offset": ProcessorCheckpoint("0", None, event.offset),
        "enqueued time": ProcessorCheckpoint("0", None, None, event.enqueued_time_ms),
        "nothing processed": ProcessorCheckpoint("0", -1),
    }
    first = {"sequence number": 4, "offset": 4, "enqueued time": 3, "nothing processed": 0}[kind]
    subject = Subject(hub_service, hub, store, checkpoint_all)
    await store.update_checkpoint(await group_of(hub_service, hub), checkpoints[kind], lease=None)
    async with subject.running():
        await until(lambda: subject.numbers == list(range(first, 6)))


@pytest.mark.parametrize("kind", ["earliest", "latest", "time", "by partition"])
@pytest.mark.slow
async def test_the_initial_position_counts_without_a_checkpoint(
    hub_service: HubService, hub: str, store: MemoryStore, kind: str
) -> None:
    """Given once for all partitions, or as a function of the partition."""
    await publish(hub_service, hub, 3)
    positions: dict[str, Any] = {
        "earliest": EventPosition.earliest(),
        "latest": EventPosition.latest(),
        "time": EventPosition.from_enqueued_time(datetime.now(UTC) - timedelta(hours=1)),  # noqa: TID251
        "by partition": lambda partition_id: EventPosition.from_sequence_number(int(partition_id) + 1),
    }
    first = {"earliest": 0, "latest": 3, "time": 0, "by partition": 1}[kind]
    subject = Subject(hub_service, hub, store, initial_position=positions[kind])
    async with subject.running():
        await until(lambda: subject.state is PartitionState.RUNNING)
        await publish(hub_service, hub, 2)
        await until(lambda: subject.numbers == list(range(first, 5)))


async def test_latest_is_not_taken_anew_when_a_session_restarts(
    hub_service: HubService, hub: str, store: MemoryStore
) -> None:
    """Events that came between a failure and the restart are read, checkpoint or not."""
    subject = Subject(hub_service, hub, store, initial_position=EventPosition.latest())
    async with subject.running():
        await until(lambda: subject.state is PartitionState.RUNNING)
        async with EventHubConsumer.from_connection_string(
            hub_service.hub_connection_string(hub)
        ) as consumer:
            await publish(hub_service, hub, 2)
            async with await consumer.open_receiver("0", EventPosition.earliest(), owner_level=99):
                await publish(hub_service, hub, 2)
                await until(lambda: "close restarted" in subject.journal.of("0"))
        await until(lambda: subject.numbers[-4:] == [0, 1, 2, 3])


# --- positions that are lost ------------------------------------------------------------------------------

LOSSES = ("recreated", "beyond the end", "overtaken", "unknown offset")


async def _lose_position(
    service: HubService, hub: str, store: MemoryStore, group: GroupKey, how: str
) -> None:
    """Leave a hub with 5 events, and a checkpoint that its log does not match."""
    created_at_ms: int | None = None
    checkpoint = ProcessorCheckpoint("0", 2)
    match how:
        case "recreated":
            await publish(service, hub, 4)
            delete_hub(service, hub)
            service.create_hub(hub, partition_count=1)
            await publish(service, hub, 5)
            created_at_ms = 1_000
        case "beyond the end":
            await publish(service, hub, 5)
            checkpoint = ProcessorCheckpoint("0", 100)
        case "overtaken":
            await publish(service, hub, 10)
            remove_events(service, hub)
            await publish(service, hub, 5)
        case "unknown offset":
            await publish(service, hub, 5)
            checkpoint = ProcessorCheckpoint("0", None, "of another service")
    await store.update_checkpoint(
        group, replace(checkpoint, event_hub_created_at_ms=created_at_ms), lease=None
    )


@pytest.mark.parametrize("how", LOSSES)
@pytest.mark.slow
async def test_a_lost_position_stops_the_partition_with_one_error(
    hub_service: HubService, hub: str, store: MemoryStore, how: str
) -> None:
    """It is told once, names what was wanted and what is there; the partition stays owned, not retried."""
    subject = Subject(hub_service, hub, store)
    await _lose_position(hub_service, hub, store, await group_of(hub_service, hub), how)
    async with subject.running():
        await until(lambda: subject.state is PartitionState.STOPPED)
        epoch = subject.host.statistics().partitions["0"].epoch
        await asyncio.sleep(1.3 * QUICK.renew_interval_s)
        assert subject.state is PartitionState.STOPPED
        assert subject.host.statistics().partitions["0"].epoch == epoch
        error = subject.host.statistics().partitions["0"].error
    expected = EventHubReplacedError if how == "recreated" else PositionOutOfRangeError
    assert isinstance(error, expected)
    assert subject.reported == subject.journal.errors == [error]
    first = 10 if how == "overtaken" else 0
    assert f"holds {first} to {first + 4}" in str(error)
    assert {"recreated": "sequence number 3", "beyond the end": "101", "overtaken": "3 to 9"}.get(
        how, "of another service"
    ) in str(error)
    assert subject.journal.of("0") == ["open", f"error {expected.__name__}", "close failed"]


@pytest.mark.slow
@pytest.mark.parametrize("policy", [PositionLostPolicy.EARLIEST, PositionLostPolicy.LATEST])
@pytest.mark.parametrize("how", LOSSES)
async def test_a_lost_position_is_gone_on_from_as_the_policy_says(
    hub_service: HubService, hub: str, store: MemoryStore, how: str, policy: PositionLostPolicy
) -> None:
    """It is reported once, and the checkpoint is set at once, so that no later start meets the loss again."""
    subject = Subject(hub_service, hub, store, on_position_lost=policy)
    await _lose_position(hub_service, hub, store, await group_of(hub_service, hub), how)
    first = 10 if how == "overtaken" else 0
    expected = list(range(first, first + 6))
    if policy is PositionLostPolicy.LATEST:
        expected = expected[-1:]
    async with subject.running():
        await until(lambda: subject.state is PartitionState.RUNNING)
        await publish(hub_service, hub, 1)
        await until(lambda: subject.numbers == expected)
    assert len(subject.reported) == len(subject.journal.errors) == 1
    again = Subject(hub_service, hub, store, checkpoint_all)
    async with again.running():
        await until(lambda: again.numbers == expected)
    assert again.journal.errors == []


@pytest.mark.parametrize("policy", list(PositionLostPolicy))
@pytest.mark.slow
async def test_retention_that_overtakes_a_slow_handler_is_told(
    hub_service: HubService, hub: str, store: MemoryStore, policy: PositionLostPolicy
) -> None:
    """Events that were removed before they were fetched are never skipped in silence."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait_once(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        begun.set()
        await go_on.wait()

    connection_string = hub_service.hub_connection_string(hub)
    async with EventHubProducer.from_connection_string(connection_string) as producer:
        await producer.enqueue_many([EventData(b"." * 100_000)] * 100, partition_id="0")
    subject = Subject(
        hub_service, hub, store, wait_once, max_batch_size=1, prefetch_bytes=1, on_position_lost=policy
    )
    async with subject.running():
        await begun.wait()
        remove_events(hub_service, hub)
        await publish(hub_service, hub, 2)
        go_on.set()
        if policy is PositionLostPolicy.STOP:
            await until(lambda: subject.state is PartitionState.STOPPED)
        else:
            await until(lambda: len(subject.journal.errors) == 1)
            await until(lambda: subject.state is PartitionState.RUNNING)
            await publish(hub_service, hub, 1)
            await until(lambda: subject.numbers[-1] == 102)
            rest = [100, 101, 102] if policy is PositionLostPolicy.EARLIEST else [102]
            assert subject.numbers[-len(rest) :] == rest
            assert subject.numbers[-len(rest) - 1] < 99
    assert subject.journal.error_types() == ["PositionOutOfRangeError"]
    assert "were removed by retention" in str(subject.journal.errors[0])
    assert subject.journal.of("0").count("open") == 1


async def test_a_hub_that_is_made_anew_under_a_host(
    hub_service: HubService, hub: str, store: MemoryStore
) -> None:
    """While the hub is missing the host waits; then its checkpoints are known to be the old hub's."""
    subject = Subject(
        hub_service,
        hub,
        store,
        checkpoint_all,
        on_position_lost=PositionLostPolicy.EARLIEST,
        manager_options=replace(QUICK, lease_duration_s=20.0),
    )
    await publish(hub_service, hub, 5)
    async with subject.running():
        await until(lambda: subject.numbers == list(range(5)))
        delete_hub(hub_service, hub)
        await until(lambda: "NotFoundError" in subject.journal.error_types())
        hub_service.create_hub(hub, partition_count=1)
        await publish(hub_service, hub, 3)
        await until(lambda: subject.numbers == [*range(5), *range(3)])
    assert "EventHubReplacedError" in subject.journal.error_types()


async def test_large_batches_come_whole_through_a_small_prefetch(
    hub_service: HubService, hub: str, store: MemoryStore
) -> None:
    """Nothing is lost or turned around where the window is smaller than a batch."""
    subject = Subject(hub_service, hub, store, checkpoint_all, max_batch_size=1000, prefetch_bytes=64 * 1024)
    async with EventHubProducer.from_connection_string(hub_service.hub_connection_string(hub)) as producer:
        await producer.enqueue_many([EventData(b"." * 1000)] * 5000, partition_id="0")
    async with subject.running():
        await until(lambda: len(subject.numbers) == 5000)
    assert subject.numbers == list(range(5000))
