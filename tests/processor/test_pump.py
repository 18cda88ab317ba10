"""A pump against the real service: failing batches, checkpoints, lost positions, stalls, stolen receivers."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, insert, select
from tests.processor.hosts import (
    PLAIN,
    QUICK,
    Journal,
    OnEvents,
    Recorder,
    checkpoint_all,
    delete_hub,
    never,
    publish,
    remove_events,
    until,
)

from tidegate.client import EventHubConsumer, EventHubProducer, PartitionProperties, PartitionReceiver
from tidegate.model.errors import (
    BrokenError,
    ClosedError,
    DatabaseUnavailableError,
    EventHubReplacedError,
    FencedError,
    InvalidArgumentError,
    PartitionStoppedError,
    PositionOutOfRangeError,
    StoreUnavailableError,
)
from tidegate.model.events import EventData, ReceivedEvent
from tidegate.model.position import EventPosition
from tidegate.processor import (
    EventProcessorHost,
    FailureAction,
    FailurePolicy,
    GroupKey,
    Lease,
    LeaseSnapshot,
    MemoryStore,
    PartitionContext,
    PartitionState,
    PositionLostPolicy,
    ProcessorCheckpoint,
    TransactionalProcessor,
    TransactionContext,
)
from tidegate.sql import Database, SqlStore
from tidegate.testing.hub import HubService
from tidegate.transport.clock import SystemClock


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(SystemClock())


@pytest.fixture
def hub(hub_service: HubService) -> str:
    """A fresh hub of one partition."""
    return hub_service.create_hub(partition_count=1)


class Subject:
    """One host on one hub of one partition, with what its processor and its callback were told."""

    def __init__(
        self, service: HubService, hub: str, store: Any, on_events: OnEvents | None = None, **options: Any
    ) -> None:
        self.service = service
        self.journal = Journal()
        self.reported: list[Exception] = []
        manager_options = options.pop("manager_options", QUICK)
        transactional = options.pop("transactional", False)
        self.host = EventProcessorHost(
            connection_string=service.hub_connection_string(hub),
            store=store,
            manager_options=manager_options,
            options=replace(PLAIN, on_exception=lambda error, _: self.reported.append(error), **options),
            transactional=transactional,
        )
        self.on_events = on_events

    def running(self) -> Any:
        """The host with a recording processor."""
        return self.host.running(factory=lambda context: Recorder(self.journal, self.on_events))

    @property
    def numbers(self) -> list[int]:
        """What was handed over."""
        return self.journal.numbers.get("0", [])

    @property
    def state(self) -> PartitionState | None:
        """Of the partition; None while it is not owned."""
        found = self.host.statistics().partitions.get("0")
        return None if found is None else found.state

    async def checkpoint(self, store: MemoryStore) -> ProcessorCheckpoint | None:
        """What the store has."""
        return (await store.list_checkpoints(self.host.group)).get("0")


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
    await store.update_checkpoint(subject.host.group, checkpoints[kind], lease=None)
    async with subject.running():
        await until(lambda: subject.numbers == list(range(first, 6)))


@pytest.mark.parametrize("kind", ["earliest", "latest", "time", "by partition"])
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
async def test_a_lost_position_stops_the_partition_with_one_error(
    hub_service: HubService, hub: str, store: MemoryStore, how: str
) -> None:
    """It is told once, names what was wanted and what is there; the partition stays owned, not retried."""
    subject = Subject(hub_service, hub, store)
    await _lose_position(hub_service, hub, store, subject.host.group, how)
    async with subject.running():
        await until(lambda: subject.state is PartitionState.STOPPED)
        epoch = subject.host.statistics().partitions["0"].epoch
        await asyncio.sleep(3 * QUICK.renew_interval_s)
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


@pytest.mark.parametrize("policy", [PositionLostPolicy.EARLIEST, PositionLostPolicy.LATEST])
@pytest.mark.parametrize("how", LOSSES)
async def test_a_lost_position_is_gone_on_from_as_the_policy_says(
    hub_service: HubService, hub: str, store: MemoryStore, how: str, policy: PositionLostPolicy
) -> None:
    """It is reported once, and the checkpoint is set at once, so that no later start meets the loss again."""
    subject = Subject(hub_service, hub, store, on_position_lost=policy)
    await _lose_position(hub_service, hub, store, subject.host.group, how)
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


# --- stalls, stolen receivers, lost leases ----------------------------------------------------------------

STALLING = replace(QUICK, stall_timeout_s=0.3)


async def test_a_handler_that_hangs_is_noticed_and_started_again(
    hub_service: HubService, hub: str, store: MemoryStore
) -> None:
    """Told by process_error and on_exception; cancelled, then opened anew under a higher epoch."""
    is_first = True

    async def hang_once(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            await never()

    subject = Subject(hub_service, hub, store, hang_once, manager_options=STALLING)
    await publish(hub_service, hub, 5)
    async with subject.running():
        await until(lambda: subject.host.statistics().events_processed == 5)
        assert subject.host.statistics().partitions["0"].epoch == 2
    assert subject.journal.of("0") == [
        "open",
        "events",
        "error PartitionStalledError",
        "close restarted",
        "open",
        "events",
        "close shutdown",
    ]
    assert [type(error).__name__ for error in subject.reported] == ["PartitionStalledError"]
    assert "handler has not returned" in str(subject.reported[0])
    assert subject.journal.overlaps == 0


async def test_a_handler_that_ignores_its_cancellation_is_given_up(
    hub_service: HubService, hub: str, store: MemoryStore
) -> None:
    """Its instance gets no further call, its context no checkpoint; the next instance is told the stall."""
    release = asyncio.Event()
    refused: list[Exception] = []
    is_first = True

    async def ignore_cancellation(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        nonlocal is_first
        if not is_first:
            return
        is_first = False
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        try:
            await context.checkpoint()
        except ClosedError as error:
            refused.append(error)

    subject = Subject(
        hub_service, hub, store, ignore_cancellation, manager_options=STALLING, close_timeout_s=0.1
    )
    await publish(hub_service, hub, 5)
    async with subject.running():
        await until(lambda: subject.host.statistics().events_processed == 5)
        release.set()
        await until(lambda: bool(refused))
    assert await subject.checkpoint(store) is None
    assert subject.journal.of("0") == [
        "open",
        "events",
        "open",
        "error PartitionStalledError",
        "events",
        "close shutdown",
    ]


async def test_an_open_that_hangs_is_noticed(hub_service: HubService, hub: str, store: MemoryStore) -> None:
    """It keeps its partition from being read as a hanging call does."""
    journal = Journal()

    class Hanging(Recorder):
        async def open(self, context: PartitionContext) -> None:
            await super().open(context)
            if len(journal.contexts) == 1:
                await never()

    await publish(hub_service, hub, 1)
    subject = Subject(hub_service, hub, store, manager_options=STALLING)
    async with subject.host.running(factory=lambda context: Hanging(journal)):
        await until(lambda: journal.count == 1)
    assert journal.error_types() == ["PartitionStalledError"]


async def test_a_receiver_that_is_silent_is_noticed(
    hub_service: HubService, hub: str, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events are there, the link is up, and none comes: only the service knows that there is backlog."""
    receive = PartitionReceiver.receive
    is_silent = True

    async def silent_once(
        self: PartitionReceiver, max_events: int = 1000, max_wait_s: float | None = None
    ) -> list[ReceivedEvent]:
        nonlocal is_silent
        if is_silent:
            is_silent = False
            await never()
        return await receive(self, max_events, max_wait_s)

    monkeypatch.setattr(PartitionReceiver, "receive", silent_once)
    subject = Subject(hub_service, hub, store, manager_options=STALLING)
    await publish(hub_service, hub, 3)
    async with subject.running():
        await until(lambda: subject.numbers == [0, 1, 2])
        assert subject.host.statistics().partitions["0"].epoch == 2
    assert "receiver has brought none" in str(subject.reported[0])


async def test_a_question_that_hangs_hides_no_other_partition(
    hub_service: HubService, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service does not answer for one partition: the watchdog still comes to the others."""
    hub = hub_service.create_hub(partition_count=3)
    ask, receive = EventHubConsumer.get_partition_properties, PartitionReceiver.receive
    unanswered: set[str] = set()
    silenced: set[str] = set()

    async def ask_or_hang(self: EventHubConsumer, partition_id: str) -> PartitionProperties:
        if len(silenced) == 3 and not unanswered:
            unanswered.add(partition_id)
        if partition_id in unanswered:
            await never()
        return await ask(self, partition_id)

    async def silent_once(
        self: PartitionReceiver, max_events: int = 1000, max_wait_s: float | None = None
    ) -> list[ReceivedEvent]:
        if self.partition_id not in silenced:
            silenced.add(self.partition_id)
            await never()
        return await receive(self, max_events, max_wait_s)

    monkeypatch.setattr(EventHubConsumer, "get_partition_properties", ask_or_hang)
    monkeypatch.setattr(PartitionReceiver, "receive", silent_once)
    for partition_id in "012":
        await publish(hub_service, hub, 1, partition_id=partition_id)
    subject = Subject(hub_service, hub, store, manager_options=STALLING)
    async with subject.running():
        await until(lambda: len(subject.journal.numbers) == 2)
    assert unanswered.isdisjoint(subject.journal.numbers)


async def test_a_handler_that_is_only_a_function_fails_visibly(
    hub_service: HubService, hub: str, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no process_error to be told by: the log and the statistics say what happened."""
    failures = iter([ValueError("no such table")])

    async def handle(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        for failure in failures:
            raise failure

    subject = Subject(hub_service, hub, store)
    await publish(hub_service, hub, 3)
    async with subject.host.running(handle):
        await until(lambda: subject.host.statistics().events_processed == 3)
    assert "no such table" in caplog.text


async def test_what_is_idle_or_slow_is_not_stalled(
    hub_service: HubService, hub: str, store: MemoryStore
) -> None:
    """Neither an empty partition nor one whose batches each take half of the time."""

    async def slow(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        await asyncio.sleep(0.15)

    subject = Subject(hub_service, hub, store, slow, manager_options=STALLING, max_batch_size=1)
    async with subject.running():
        await asyncio.sleep(0.6)
        await publish(hub_service, hub, 5)
        await until(lambda: subject.host.statistics().events_processed == 5)
    assert subject.reported == []
    assert subject.numbers == list(range(5))


async def test_a_stolen_receiver_whose_lease_is_ours_takes_a_higher_epoch(
    hub_service: HubService, hub: str, store: MemoryStore
) -> None:
    """A stray reader with the same epoch does not stop a host for good."""
    subject = Subject(hub_service, hub, store, checkpoint_all)
    await publish(hub_service, hub, 3)
    async with subject.running():
        await until(lambda: subject.numbers == [0, 1, 2])
        async with EventHubConsumer.from_connection_string(
            hub_service.hub_connection_string(hub)
        ) as consumer:
            stray = await consumer.open_receiver("0", EventPosition.latest(), owner_level=1)
            await publish(hub_service, hub, 3)
            await until(lambda: subject.numbers == list(range(6)))
            assert stray.is_over
        assert subject.host.statistics().partitions["0"].epoch >= 2
    assert subject.journal.error_types() == ["ReceiverStolenError"]
    assert subject.journal.of("0").count("close restarted") == 1


async def test_a_store_that_raises_anything_costs_no_host(hub_service: HubService, hub: str) -> None:
    """A store may be anybody's code: its error, asked whose the lease is, is reported, and all goes on."""

    class Careless(MemoryStore):
        failures_left = 0

        def fail(self) -> None:
            if self.failures_left:
                self.failures_left -= 1
                raise OSError("The share is gone.")

        async def list_leases(self, group: GroupKey) -> LeaseSnapshot:
            self.fail()
            return await super().list_leases(group)

        async def acquire(self, *arguments: Any, **named: Any) -> Lease | None:
            self.fail()
            return await super().acquire(*arguments, **named)

    store = Careless(SystemClock())
    slow_look = replace(QUICK, lease_duration_s=60.0, renew_interval_s=20.0)
    subject = Subject(hub_service, hub, store, checkpoint_all, manager_options=slow_look)
    await publish(hub_service, hub, 3)
    async with subject.running():
        await until(lambda: subject.numbers == [0, 1, 2])
        store.failures_left = 2
        async with EventHubConsumer.from_connection_string(
            hub_service.hub_connection_string(hub)
        ) as consumer:
            await consumer.open_receiver("0", EventPosition.latest(), owner_level=1)
            await publish(hub_service, hub, 3)
            await until(lambda: subject.numbers == list(range(6)))
    reported = [type(error) for error in subject.reported]
    assert reported.count(OSError) == 2


async def test_a_lease_that_somebody_took_closes_the_partition_quietly(
    hub_service: HubService, hub: str, store: MemoryStore
) -> None:
    """The new owner's receiver throws this one out; that is no error, and no checkpoint is taken after it."""
    slow_look = replace(QUICK, lease_duration_s=60.0, renew_interval_s=20.0)
    subject = Subject(hub_service, hub, store, manager_options=slow_look)
    await publish(hub_service, hub, 3)
    async with subject.running():
        await until(lambda: subject.numbers == [0, 1, 2])
        group = subject.host.group
        held = (await store.list_leases(group)).leases["0"]
        assert await store.acquire(group, "0", "thief", expected=held) is not None
        async with (
            EventHubConsumer.from_connection_string(hub_service.hub_connection_string(hub)) as consumer,
            await consumer.open_receiver("0", EventPosition.latest(), owner_level=2),
        ):
            await until(lambda: subject.journal.of("0")[-1] == "close ownership_lost")
            with pytest.raises(FencedError):
                await subject.journal.contexts[0].checkpoint()
    assert subject.journal.errors == subject.reported == []


async def test_a_checkpoint_that_is_fenced_though_the_lease_is_ours_stops_the_partition(
    hub_service: HubService, hub: str, store: MemoryStore
) -> None:
    """Somebody else moves this group's checkpoint under a higher epoch: going on would be for nothing."""
    subject = Subject(hub_service, hub, store, checkpoint_all)
    intruder = Lease("0", "intruder", 99, None, datetime(2026, 1, 1, tzinfo=UTC), "")
    await store.update_checkpoint(subject.host.group, ProcessorCheckpoint("0", -1), lease=intruder)
    await publish(hub_service, hub, 3)
    async with subject.running():
        await until(lambda: subject.state is PartitionState.STOPPED)
    assert subject.journal.error_types() == ["FencedError"]
    assert subject.numbers == [0, 1, 2]
    assert subject.journal.of("0")[-1] == "close failed"


async def test_checkpoints_are_read_once_for_partitions_that_start_together(
    hub_service: HubService,
) -> None:
    """A store that is far away is asked once, not once per partition."""

    class Counting(MemoryStore):
        reads = 0

        async def list_checkpoints(self, group: GroupKey) -> Mapping[str, ProcessorCheckpoint]:
            self.reads += 1
            return await super().list_checkpoints(group)

    store = Counting(SystemClock())
    hub = hub_service.create_hub(partition_count=8)
    subject = Subject(hub_service, hub, store)
    async with subject.running():
        await until(
            lambda: (
                [each.state for each in subject.host.statistics().partitions.values()]
                == [PartitionState.RUNNING] * 8
            )
        )
    assert store.reads < 8


async def test_a_store_without_epochs_opens_receivers_with_owner_level_0(
    hub_service: HubService, hub: str
) -> None:
    """Official processors read with level 0; a higher one would shut them out for good."""
    store = MemoryStore(SystemClock(), has_epochs=False)
    subject = Subject(hub_service, hub, store, checkpoint_all)
    await publish(hub_service, hub, 3)
    async with subject.running():
        await until(lambda: subject.numbers == [0, 1, 2])
        levels = hub_service.call(_owner_levels(hub))
    assert levels == [0]


def _owner_levels(hub: str) -> Any:
    async def read(server: Any) -> list[int | None]:
        return [each.owner_level for each in server.broker.event_hub(hub).partition("0").receivers()]

    return read


# --- transactions -----------------------------------------------------------------------------------------

metadata = MetaData()
seen_table = Table("seen", metadata, Column("number", Integer, primary_key=True))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(f"sqlite:///{tmp_path}/host.db") as database:
        database.ensure_table(seen_table)
        yield database


def _rows(database: Database) -> list[int]:
    with database.read() as connection:
        return sorted(connection.execute(select(seen_table.c.number)).scalars())


def _forget_rows(database: Database) -> None:
    with database.writing() as connection, connection.begin():
        connection.execute(seen_table.delete())


def _write(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
    context.connection.execute(insert(seen_table), [{"number": event.sequence_number} for event in events])


class _Duck:
    def process_events(self, context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        _write(context, events)


class _Face(TransactionalProcessor):
    def process_events(self, context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        _write(context, events)


@pytest.mark.parametrize(
    ("arguments", "is_given"),
    [
        ({"handler": _Face}, False),
        ({"handler": _Duck}, True),
        ({"handler": _write}, True),
        ({"factory": lambda context: _Face()}, True),
    ],
)
async def test_rows_and_checkpoint_are_committed_together(
    hub_service: HubService, hub: str, database: Database, arguments: dict[str, Any], is_given: bool
) -> None:
    """Every kind of transactional handler; the next host goes on where the last transaction ended."""
    store = SqlStore(database)
    try:
        for round_ in (1, 2):
            await publish(hub_service, hub, 10)
            subject = Subject(hub_service, hub, store, transactional=is_given, max_batch_size=3)
            async with subject.host.running(**arguments):
                await until(lambda: _rows(database) == list(range(10 * round_)))  # noqa: B023
                await until(lambda: subject.host.statistics().events_processed == 10)  # noqa: B023
            assert subject.reported == []
    finally:
        await store.close()


@pytest.mark.parametrize("position", [EventPosition.latest(), EventPosition.from_offset("3")])
async def test_a_transaction_starts_at_the_initial_position(
    hub_service: HubService, hub: str, database: Database, position: EventPosition
) -> None:
    """It needs a number to start from, however the position is given."""
    store = SqlStore(database)
    await publish(hub_service, hub, 6)
    subject = Subject(hub_service, hub, store, transactional=True, initial_position=position)
    first = 4 if position.value else 6
    async with subject.host.running(_write):
        await until(lambda: subject.state is PartitionState.RUNNING)
        await publish(hub_service, hub, 2)
        await until(lambda: _rows(database) == list(range(first, 8)))
    await store.close()


async def test_the_threads_of_sessions_that_ended_are_gone(
    hub_service: HubService, hub: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition that is opened anew again and again, and a host that ended, leave none to the collector."""
    receive, failures = PartitionReceiver.receive, iter([BrokenError("Cut."), BrokenError("Cut again.")])

    async def break_twice(
        self: PartitionReceiver, max_events: int = 1000, max_wait_s: float | None = None
    ) -> list[ReceivedEvent]:
        for failure in failures:
            raise failure
        return await receive(self, max_events, max_wait_s)

    others = set(threading.enumerate())  # of other tests, which the collector has not come to yet

    def threads() -> list[str]:
        mine = set(threading.enumerate()) - others
        return [each.name for each in mine if each.name.startswith("tidegate partition")]

    monkeypatch.setattr(PartitionReceiver, "receive", break_twice)
    store = SqlStore(database)
    await publish(hub_service, hub, 1)
    subject = Subject(hub_service, hub, store, transactional=True)
    gc.disable()
    try:
        async with subject.host.running(_write):
            await until(lambda: _rows(database) == [0])
            await until(lambda: len(threads()) == 1)
        await until(lambda: not threads())
    finally:
        gc.enable()
    await store.close()


async def test_a_stop_by_policy_keeps_the_partition_stopped(
    hub_service: HubService, hub: str, database: Database
) -> None:
    """Everything before the event is committed; the lease is kept, so no other host meets the same event."""

    class Picky(_Face):
        def process_events(self, context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
            if any(event.sequence_number == 4 for event in events):
                raise ValueError("not this one")
            super().process_events(context, events)

    store = SqlStore(database)
    await publish(hub_service, hub, 10)
    subject = Subject(hub_service, hub, store, failure_policy=FailurePolicy(FailureAction.STOP))
    other = Subject(hub_service, hub, store)
    async with subject.host.running(Picky):
        await until(lambda: subject.state is PartitionState.STOPPED)
        assert _rows(database) == [0, 1, 2, 3]
        async with other.host.running(Picky):
            await asyncio.sleep(QUICK.lease_duration_s * 1.5)
            assert other.host.statistics().partitions == {}
        found = subject.host.statistics().partitions["0"]
        assert isinstance(found.error, PartitionStoppedError)
        assert (found.state, found.epoch) == (PartitionState.STOPPED, 1)
    assert [type(error) for error in subject.reported] == [PartitionStoppedError]
    await store.close()


async def test_a_database_that_is_away_costs_no_batch(
    hub_service: HubService, hub: str, database: Database
) -> None:
    """It is reported, and the same batch runs again."""
    failures = 2

    class Away(SqlStore):
        """Its first transactions meet a database that does not answer."""

        def open_transactions(self, *arguments: Any, **named: Any) -> Any:
            transactions = super().open_transactions(*arguments, **named)
            process = transactions.process

            async def process_or_fail(*given: Any, **values: Any) -> Any:
                nonlocal failures
                if failures:
                    failures -= 1
                    raise DatabaseUnavailableError("The database is away.")
                return await process(*given, **values)

            transactions.process = process_or_fail  # type: ignore[method-assign]
            return transactions

    store = Away(database)
    await publish(hub_service, hub, 5)
    subject = Subject(hub_service, hub, store, transactional=True)
    async with subject.host.running(_write):
        await until(lambda: _rows(database) == list(range(5)))
    assert [type(error) for error in subject.reported] == [DatabaseUnavailableError] * 2
    await store.close()


async def test_a_checkpoint_that_a_person_moves_is_gone_on_from(
    hub_service: HubService, hub: str, database: Database
) -> None:
    """The running transaction is fenced, and the host begins anew from where the checkpoint is now."""
    store = SqlStore(database)
    await publish(hub_service, hub, 4)
    subject = Subject(hub_service, hub, store, transactional=True)
    async with subject.host.running(_write):
        await until(lambda: _rows(database) == [0, 1, 2, 3])
        _forget_rows(database)
        await store.update_checkpoint(
            subject.host.group, ProcessorCheckpoint("0", 1), lease=None, is_rewind_allowed=True
        )
        await publish(hub_service, hub, 2)
        await until(lambda: _rows(database) == [2, 3, 4, 5])
    await store.close()


@pytest.mark.parametrize("policy", list(PositionLostPolicy))
async def test_a_hub_made_anew_is_told_apart_in_transactions(
    hub_service: HubService, hub: str, database: Database, policy: PositionLostPolicy
) -> None:
    """The old hub's checkpoint is neither used nor silently overwritten."""
    store = SqlStore(database)
    await publish(hub_service, hub, 4)
    first = Subject(hub_service, hub, store, transactional=True)
    async with first.host.running(_write):
        await until(lambda: _rows(database) == [0, 1, 2, 3])
    delete_hub(hub_service, hub)
    hub_service.create_hub(hub, partition_count=1)
    await publish(hub_service, hub, 6)
    _forget_rows(database)
    second = Subject(hub_service, hub, store, transactional=True, on_position_lost=policy)
    async with second.host.running(_write):
        if policy is PositionLostPolicy.STOP:
            await until(lambda: second.state is PartitionState.STOPPED)
            expected = []
        else:
            await until(lambda: second.state is PartitionState.RUNNING)
            await publish(hub_service, hub, 1)
            expected = list(range(7)) if policy is PositionLostPolicy.EARLIEST else [6]
            await until(lambda: _rows(database) == expected)
    assert _rows(database) == expected
    assert [type(error) for error in second.reported] == [EventHubReplacedError]
    await store.close()


async def test_a_transaction_that_hangs_is_fenced_by_the_next_epoch(
    hub_service: HubService, hub: str, database: Database
) -> None:
    """The hanging thread cannot be ended; when it goes on, what it wrote is rolled back."""
    release, hanging = threading.Event(), threading.Event()

    def hang_once(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        if not hanging.is_set():
            hanging.set()
            release.wait(30)
        _write(context, events)

    store = SqlStore(database)
    await publish(hub_service, hub, 5)
    subject = Subject(
        hub_service, hub, store, transactional=True, manager_options=STALLING, close_timeout_s=0.1
    )
    try:
        async with subject.host.running(hang_once):
            await until(lambda: "PartitionStalledError" in [type(each).__name__ for each in subject.reported])
            release.set()
            await until(lambda: _rows(database) == list(range(5)))
            await until(lambda: subject.state is PartitionState.RUNNING)
    finally:
        release.set()
    await store.close()
    assert _rows(database) == list(range(5))


async def test_a_transaction_that_hangs_for_ever_holds_up_nobody(
    hub_service: HubService, database: Database
) -> None:
    """It is undone from outside and reported: both partitions go on although the call never returns."""
    hub = hub_service.create_hub(partition_count=2)
    release, hanging = threading.Event(), threading.Event()

    def hang_once(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        first = 100 * int(context.partition_id)
        numbers = [{"number": first + event.sequence_number} for event in events]
        context.connection.execute(insert(seen_table), numbers)
        if context.partition_id == "0" and not hanging.is_set():
            hanging.set()
            release.wait(60)

    store = SqlStore(database)
    subject = Subject(
        hub_service, hub, store, transactional=True, manager_options=STALLING, close_timeout_s=0.1
    )
    try:
        async with subject.host.running(hang_once):
            await publish(hub_service, hub, 5)
            await until(hanging.is_set)
            await publish(hub_service, hub, 4, partition_id="1")
            await until(lambda: len(_rows(database)) == 9)
            assert not release.is_set()
            assert "PartitionStalledError" in [type(each).__name__ for each in subject.reported]
    finally:
        release.set()
    await store.close()
    assert _rows(database) == [0, 1, 2, 3, 4, 100, 101, 102, 103]


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
