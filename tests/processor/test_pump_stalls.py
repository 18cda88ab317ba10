"""A pump against the real service: what hangs, is stolen or is fenced."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.processor.hosts import (
    QUICK,
    STALLING,
    Journal,
    Recorder,
    Subject,
    checkpoint_all,
    group_of,
    never,
    publish,
    until,
)

from tidegate.client import EventHubConsumer, PartitionEnds, PartitionReceiver
from tidegate.model.errors import (
    ClosedError,
    FencedError,
)
from tidegate.model.events import ReceivedEvent
from tidegate.model.position import EventPosition
from tidegate.processor import (
    GroupKey,
    Lease,
    LeaseSnapshot,
    MemoryStore,
    PartitionContext,
    PartitionState,
    ProcessorCheckpoint,
)
from tidegate.testing.hub import HubService
from tidegate.transport.clock import SystemClock


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
async def test_a_receiver_that_is_silent_is_noticed(
    hub_service: HubService, hub: str, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events are there, the link is up, and none comes: only the service knows that there is backlog."""
    receive = PartitionReceiver.receive
    is_silent = True

    async def silent_once(
        self: PartitionReceiver, max_events: int = 1000, max_wait_s: float | None = None, **named: Any
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
    assert "receiver has returned none" in str(subject.reported[0])


@pytest.mark.slow
async def test_a_question_that_hangs_hides_no_other_partition(
    hub_service: HubService, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service does not answer for one partition: the watchdog still comes to the others."""
    hub = hub_service.create_hub(partition_count=3)
    ask, receive = EventHubConsumer.get_partition_properties, PartitionReceiver.receive
    unanswered: set[str] = set()
    silenced: set[str] = set()

    async def ask_or_hang(self: EventHubConsumer, partition_id: str) -> PartitionEnds:
        if len(silenced) == 3 and not unanswered:
            unanswered.add(partition_id)
        if partition_id in unanswered:
            await never()
        return await ask(self, partition_id)

    async def silent_once(
        self: PartitionReceiver, max_events: int = 1000, max_wait_s: float | None = None, **named: Any
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


@pytest.mark.slow
async def test_what_is_idle_or_slow_is_not_stalled(
    hub_service: HubService, hub: str, store: MemoryStore
) -> None:
    """Neither an empty partition nor one whose batches take longer than the time, but each a part of it."""
    stall_s = STALLING.effective_stall_timeout_s

    async def slow(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        await asyncio.sleep(stall_s / 4)

    subject = Subject(hub_service, hub, store, slow, manager_options=STALLING, max_batch_size=1)
    async with subject.running():
        await asyncio.sleep(stall_s * 1.3)
        await publish(hub_service, hub, 6)
        await until(lambda: subject.host.statistics().events_processed == 6)
    assert subject.reported == []
    assert subject.numbers == list(range(6))


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
    group = await group_of(hub_service, hub)
    async with subject.running():
        await until(lambda: subject.state is PartitionState.RUNNING)
        await store.update_checkpoint(group, ProcessorCheckpoint("0", -1), lease=intruder)
        await publish(hub_service, hub, 3)
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
