"""What the tests of hosts share: quick options, a processor that remembers, events, and waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from tests.client.fake_service import until as until_within

from tidegate.client import EventHubConsumer, EventHubProducer, Namespace
from tidegate.model.events import EventData, ReceivedEvent
from tidegate.processor import (
    CloseReason,
    EventProcessor,
    EventProcessorHost,
    EventProcessorOptions,
    GroupKey,
    MemoryStore,
    PartitionContext,
    PartitionManagerOptions,
    PartitionState,
    ProcessorCheckpoint,
)
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService

QUICK = PartitionManagerOptions(lease_duration_s=30.0, renew_interval_s=1.2, stall_timeout_s=60.0)
"""Partitions are released and stolen within seconds; no lease runs out, no store is given up and nothing
stalls because the machine is busy."""
STALLING = replace(QUICK, stall_timeout_s=1.5)
"""What hangs is noticed after a time in which what does not hang gets through on a busy machine, too."""
PLAIN = EventProcessorOptions(receive_timeout_s=0.2, close_timeout_s=5.0)


class Journal:
    """What the processors of a test were called with, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        """(partition id, what): "open", "events", "error <type>", "close <reason>"."""
        self.numbers: dict[str, list[int]] = {}
        """By partition id, the sequence numbers that were handed over, in order."""
        self.errors: list[Exception] = []
        self.contexts: list[PartitionContext] = []
        self.running: dict[str, int] = {}
        self.overlaps = 0

    @property
    def count(self) -> int:
        """Events handed over."""
        return sum(map(len, self.numbers.values()))

    def of(self, partition_id: str) -> list[str]:
        """What happened to a partition."""
        return [what for partition, what in self.calls if partition == partition_id]

    def note(self, context: PartitionContext, what: str) -> None:
        """Write a call down."""
        self.calls.append((context.partition_id, what))

    def error_types(self) -> list[str]:
        """The names of the errors' types."""
        return [type(error).__name__ for error in self.errors]


OnEvents = Callable[[PartitionContext, Sequence[ReceivedEvent]], Awaitable[None]]


class Recorder(EventProcessor):
    """Writes everything into a journal; ``on_events`` does what the test is about."""

    def __init__(self, journal: Journal, on_events: OnEvents | None = None) -> None:
        self.journal = journal
        self.on_events = on_events

    async def open(self, context: PartitionContext) -> None:
        self.journal.contexts.append(context)
        self.journal.note(context, "open")

    async def process_events(self, context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        journal, partition_id = self.journal, context.partition_id
        journal.overlaps += journal.running.get(partition_id, 0)
        journal.running[partition_id] = journal.running.get(partition_id, 0) + 1
        try:
            journal.note(context, "events" if events else "nothing")
            journal.numbers.setdefault(partition_id, []).extend(event.sequence_number for event in events)
            if self.on_events is not None:
                await self.on_events(context, events)
        finally:
            journal.running[partition_id] -= 1

    async def process_error(self, context: PartitionContext, error: Exception) -> None:
        self.journal.errors.append(error)
        self.journal.note(context, f"error {type(error).__name__}")

    async def close(self, context: PartitionContext, reason: CloseReason) -> None:
        self.journal.note(context, f"close {reason}")


async def checkpoint_all(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
    """A handler that checkpoints each of its calls."""
    await context.checkpoint()


async def publish(service: HubService, hub: str, count: int, *, partition_id: str = "0") -> None:
    """Send ``count`` small events to one partition."""
    async with EventHubProducer.from_connection_string(service.hub_connection_string(hub)) as producer:
        await producer.send([EventData(b"%d" % number) for number in range(count)], partition_id=partition_id)


async def until(is_reached: Callable[[], bool]) -> None:
    """Wait for a condition; TimeoutError where it never holds."""
    await until_within(is_reached, timeout_s=30.0)


def remove_events(service: HubService, hub: str, partition_id: str = "0") -> None:
    """What retention does when all events of a partition are too old."""

    async def apply(server: TidegateServer) -> None:
        partition = server.broker.event_hub(hub).partition(partition_id)
        await partition.apply_retention(before_ms=2**60, bytes_max=None)

    service.call(apply)


def delete_hub(service: HubService, hub: str) -> None:
    """Delete an event hub."""

    async def delete(server: TidegateServer) -> None:
        await server.broker.delete_event_hub(hub)

    service.call(delete)


async def group_of(service: HubService, hub: str) -> GroupKey:
    """The hub's default group, as a host knows it once it is registered."""
    namespace = Namespace.from_connection_string(service.connection_string)
    async with EventHubConsumer(namespace, hub) as consumer:
        found = await consumer.get_event_hub_properties()
    return GroupKey.of(found, "$Default", host=namespace.host, authority=namespace.authority)


async def never() -> None:
    """Hangs until it is cancelled."""
    await asyncio.Event().wait()


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
