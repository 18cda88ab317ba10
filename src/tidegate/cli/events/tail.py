"""Reads all partitions of a hub concurrently and writes their events as they arrive."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from tidegate.cli.events.filters import EventFilter, FormatWriter
from tidegate.cli.events.records import COLUMNS, event_record
from tidegate.cli.shell.connection import check_event_hub
from tidegate.cli.shell.profiles import ServiceConnection
from tidegate.cli.shell.progress import ProgressBar, no_bar
from tidegate.cli.shell.render import Output, OutputFormat, remark
from tidegate.cli.shell.stream_lines import until_reader_goes
from tidegate.client import EventHubConsumer, EventHubProperties, PartitionEnds
from tidegate.model.errors import TidegateError
from tidegate.model.events import ReceivedEvent
from tidegate.model.hub_properties import no_partition
from tidegate.model.position import EventPosition, PositionKind

_TEXT_COLUMNS = ("partition", "sequence_number", "enqueued_time", "partition_key", "body")
_EVENTS_PER_BATCH_MAX = 1000
_PARTITIONS_READ_S = 10.0
"""Time between looks for added partitions."""
_BATCHES_QUEUED_MAX = 16
"""Batches between the receivers and the output: a slow reader of the pipe slows the receivers down."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which events to show."""

    position: EventPosition
    partition_id: str | None
    """None: all partitions."""
    events_max: int | None
    is_following: bool
    """False: stop at the last event of the log at the start."""
    filter: EventFilter
    is_verbose: bool
    """Whether to say what is read, on standard error."""


async def show_events(
    connection: ServiceConnection,
    hub: str,
    group: str,
    selection: Selection,
    writer: Writer,
) -> None:
    """Show the selected events; when interrupted, report their number and return.

    Raises BrokenPipeError once standard output is no longer read, even if no event arrives.
    """
    try:
        await read_events(connection, hub, group, selection, writer)
    except asyncio.CancelledError:
        # A tail ordinarily ends by being interrupted.
        remark(f"Stopped after {writer.event_count:,} events.")
    finally:
        writer.close()


async def read_events(
    connection: ServiceConnection,
    hub: str,
    group: str,
    selection: Selection,
    writer: Writer,
    *,
    on_partitions: Callable[[Sequence[PartitionEnds]], None] | None = None,
) -> None:
    """Write the selected events. on_partitions: called first with the ends of the partitions to read."""
    partition_ids = _chosen_partitions(await check_event_hub(connection, hub), selection.partition_id)
    async with (
        until_reader_goes(sys.stdout),
        EventHubConsumer.from_connection_string(
            connection.connection_string, hub, consumer_group=group, ca_file=connection.ca_file
        ) as consumer,
    ):
        if on_partitions is not None:
            ends = await consumer.get_all_partition_properties()
            on_partitions([each for each in ends if each.partition_id in partition_ids])
        await _Tail(consumer, selection, writer).run(partition_ids)


def _chosen_partitions(hub: EventHubProperties, wanted: str | None) -> tuple[str, ...]:
    if wanted is None:
        return hub.partition_ids
    if wanted not in hub.partition_ids:
        raise no_partition(hub.name, wanted, hub.partition_ids)
    return (wanted,)


class _Tail:
    """One task per partition fills a bounded queue; ``run`` writes the batches from it."""

    def __init__(self, consumer: EventHubConsumer, selection: Selection, writer: Writer) -> None:
        self._consumer = consumer
        self._selection = selection
        self._writer = writer
        # None: one reader has finished.
        self._batches: asyncio.Queue[list[ReceivedEvent] | None] = asyncio.Queue(_BATCHES_QUEUED_MAX)

    async def run(self, partition_ids: Sequence[str]) -> None:
        """Show events until the selection is exhausted; forever if it follows without a maximum."""
        try:
            async with asyncio.TaskGroup() as readers:
                tasks = [
                    readers.create_task(self._read(partition_id, self._selection.position))
                    for partition_id in partition_ids
                ]
                if self._selection.is_following and self._selection.partition_id is None:
                    tasks.append(readers.create_task(self._follow_hub({*partition_ids}, readers, tasks)))
                await self._write(reader_count=len(partition_ids))
                for task in tasks:
                    task.cancel()
        except BaseExceptionGroup as group:
            # The first reader's error, which cancelled the others.
            raise group.exceptions[0] from None

    async def _follow_hub(
        self, known: set[str], readers: asyncio.TaskGroup, tasks: list[asyncio.Task[None]]
    ) -> None:
        """Read partitions that are added to the hub, from their beginning."""
        while True:
            await asyncio.sleep(_PARTITIONS_READ_S)
            with contextlib.suppress(TidegateError):  # the readers report it
                for partition_id in (await self._consumer.get_event_hub_properties()).partition_ids:
                    if partition_id not in known:
                        known.add(partition_id)
                        tasks.append(readers.create_task(self._read(partition_id, EventPosition.earliest())))

    async def _read(self, partition_id: str, position: EventPosition) -> None:
        last_sequence_number: int | None = None
        if self._selection.is_verbose:
            ends = await self._consumer.get_partition_properties(partition_id)
            remark(
                f"Partition {partition_id}: the log has events {ends.begin_sequence_number} to "
                f"{ends.last_enqueued_sequence_number}; reading from {position.kind.value} "
                f"{'' if position.value is None else position.value}".rstrip()
            )
        if not self._selection.is_following:
            partition = await self._consumer.get_partition_properties(partition_id)
            if not _is_anything_after(position, partition):
                await self._batches.put(None)
                return
            last_sequence_number = partition.last_enqueued_sequence_number
        async with await self._consumer.open_receiver(partition_id, position, is_peeking=True) as receiver:
            while True:
                events = await receiver.receive(max_events=_EVENTS_PER_BATCH_MAX)
                if last_sequence_number is None:
                    await self._batches.put(events)
                    continue
                await self._batches.put([e for e in events if e.sequence_number <= last_sequence_number])
                if events and events[-1].sequence_number >= last_sequence_number:
                    await self._batches.put(None)
                    return

    async def _write(self, *, reader_count: int) -> None:
        events_max = self._selection.events_max
        while reader_count:
            events = await self._batches.get()
            if events is None:
                reader_count -= 1
                continue
            if not self._selection.filter.is_open:
                events = [event for event in events if self._selection.filter.accepts(event)]
            if events_max is not None:
                events = events[: events_max - self._writer.event_count]
            self._writer.write(events)
            if events_max is not None and self._writer.event_count >= events_max:
                return


def _is_anything_after(position: EventPosition, partition: PartitionEnds) -> bool:
    """Whether the partition has events at or after ``position``, by its properties."""
    if partition.is_empty or position.kind is PositionKind.LATEST:
        return False
    if isinstance(position.value, int):
        return position.value <= partition.last_enqueued_sequence_number
    if isinstance(position.value, datetime) and partition.last_enqueued_time is not None:
        return position.value <= partition.last_enqueued_time
    return True


def events_after(position: EventPosition, partition: PartitionEnds) -> int:
    """The events that a partition has from ``position`` on; if that is a time, all of the partition's."""
    first = partition.begin_sequence_number
    if isinstance(position.value, int):
        first = max(first, position.value)
    return max(0, partition.next_sequence_number - max(first, 0))


class RecordWriter:
    """Writes events as records in the chosen format."""

    def __init__(self, output: Output) -> None:
        columns = _TEXT_COLUMNS if output.format is OutputFormat.TABLE else COLUMNS
        self._records = output.record_stream(columns)
        self.event_count = 0
        self.bar: ProgressBar = no_bar

    def write(self, events: Sequence[ReceivedEvent]) -> None:
        """Write events, and flush them to the reader of a pipe."""
        for event in events:
            self._records.write(event_record(event))
        self.event_count += len(events)
        self._records.flush()
        self.bar(self.event_count)

    def close(self) -> None:
        """Complete the output."""
        self._records.close()


class BodyWriter:
    """Writes bodies unchanged, one per line."""

    def __init__(self) -> None:
        self.event_count = 0

    def write(self, events: Sequence[ReceivedEvent]) -> None:
        """Write bodies, and flush them to the reader of a pipe."""
        sys.stdout.buffer.write(b"".join(event.body + b"\n" for event in events))
        sys.stdout.buffer.flush()
        self.event_count += len(events)

    def close(self) -> None:
        """There is nothing to complete."""


Writer = RecordWriter | BodyWriter | FormatWriter
