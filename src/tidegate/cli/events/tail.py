"""Reads all partitions of a hub concurrently and writes their events as they arrive."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from tidegate.amqp.errors import DecodeError
from tidegate.cli.events.filters import EventFilter, FormatWriter
from tidegate.cli.events.records import COLUMNS, event_record, remark_undecodable
from tidegate.cli.shell.connection import check_event_hub
from tidegate.cli.shell.profiles import ServiceConnection
from tidegate.cli.shell.progress import ProgressBar, no_bar
from tidegate.cli.shell.render import Output, counted, remark, visible_lines
from tidegate.cli.shell.stream_lines import until_reader_goes
from tidegate.client import EventHubConsumer, PartitionEnds
from tidegate.model.events import ReceivedEvent, refuse_undecodable
from tidegate.model.hub_properties import no_partition
from tidegate.model.position import EventPosition, PositionKind

_TEXT_COLUMNS = ("partition", "sequence_number", "enqueued_time", "partition_key", "body")


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
        remark(f"Stopped after {counted(writer.event_count, 'event')}.")
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
    properties, only = await check_event_hub(connection, hub), selection.partition_id
    if only is not None and only not in properties.partition_ids:
        raise no_partition(hub, only, properties.partition_ids)
    async with (
        until_reader_goes(sys.stdout),
        EventHubConsumer.from_connection_string(
            connection.connection_string, hub, consumer_group=group, ca_file=connection.ca_file
        ) as consumer,
    ):
        ends: list[PartitionEnds] = []
        if on_partitions is not None or selection.is_verbose or not selection.is_following:
            one = None if only is None else await consumer.get_partition_properties(only)
            ends = [one] if one else await consumer.get_all_partition_properties(properties)
        if on_partitions is not None:
            on_partitions(ends)
        await _Tail(consumer, selection, writer).run(ends)


class _Tail:
    """Writes the events of a selection."""

    def __init__(self, consumer: EventHubConsumer, selection: Selection, writer: Writer) -> None:
        self._consumer = consumer
        self._selection = selection
        self._writer = writer
        self._last: dict[str, int] = {}
        """By partition that is still read: the last event to show. Unused if new events are shown."""

    async def run(self, partitions: Sequence[PartitionEnds]) -> None:
        """Show events until the selection is exhausted; forever if it follows without a maximum."""
        selection = self._selection
        if selection.is_verbose:
            for ends in partitions:
                _remark_ends(ends, selection.position)
        wanted = None if selection.partition_id is None else [selection.partition_id]
        if not selection.is_following:
            self._last = {
                ends.partition_id: ends.last_enqueued_sequence_number
                for ends in partitions
                if _is_anything_after(selection.position, ends)
            }
            wanted = [*self._last]
        async with self._consumer.receive(selection.position, partition_ids=wanted) as receiver:
            while selection.is_following or self._last:
                if self._write(await receiver.receive()):
                    return

    def _write(self, events: list[ReceivedEvent]) -> bool:
        """Write those of the events that are selected; returns whether there are enough."""
        if not self._selection.is_following:
            events = [event for event in events if self._is_before_end(event)]
        if not self._selection.filter.is_open:
            events = [event for event in events if self._selection.filter.accepts(event)]
        events_max = self._selection.events_max
        if events_max is not None:
            events = events[: events_max - self._writer.event_count]
        self._writer.write(events)
        return events_max is not None and self._writer.event_count >= events_max

    def _is_before_end(self, event: ReceivedEvent) -> bool:
        last = self._last.get(event.partition_id, -1)
        if event.sequence_number >= last:
            self._last.pop(event.partition_id, None)
        return event.sequence_number <= last


def _remark_ends(ends: PartitionEnds, position: EventPosition) -> None:
    first, last = ends.begin_sequence_number, ends.last_enqueued_sequence_number
    held = "no events" if last < first else f"events {first} to {last}"
    remark(
        f"Partition {ends.partition_id}: the log has {held}; reading from {position.kind.value} "
        f"{'' if position.value is None else position.value}".rstrip()
    )


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
        self._records = output.record_stream(_TEXT_COLUMNS if output.is_table else COLUMNS)
        self._is_table = output.is_table
        self.event_count = 0
        self.bar: ProgressBar = no_bar

    def write(self, events: Sequence[ReceivedEvent]) -> None:
        """Write events, and flush them to the reader of a pipe."""
        for event in events:
            record = event_record(event)
            if self._is_table and record["decode_error"] is not None:
                record = {**record, "body": f"(not a valid AMQP message: {record['decode_error']})"}
            elif self._is_table and record["body_base64"] is not None:
                record = {**record, "body": f"(binary, {counted(len(event.body), 'byte')})"}
            self._records.write(record)
        self.event_count += len(events)
        self._records.flush()
        self.bar(self.event_count)

    def close(self) -> None:
        """Complete the output."""
        self._records.close()


class BodyWriter:
    """Writes bodies, one per line: unchanged for a program; an event must not control a terminal.

    An event that is not a valid AMQP message has its bytes in base64 instead, and a remark.
    """

    def __init__(self) -> None:
        self.event_count = 0
        self._is_shown = sys.stdout.isatty()

    def write(self, events: Sequence[ReceivedEvent]) -> None:
        """Write bodies, and flush them to the reader of a pipe."""
        refuse_undecodable(events)
        lines = b"".join(_body(event) + b"\n" for event in events)
        if self._is_shown:
            lines = visible_lines(lines.decode(errors="replace")).encode()
        sys.stdout.buffer.write(lines)
        sys.stdout.buffer.flush()
        self.event_count += len(events)

    def close(self) -> None:
        """There is nothing to complete."""


def _body(event: ReceivedEvent) -> bytes:
    try:
        return event.body
    except DecodeError:
        record = event_record(event)
        remark_undecodable(record)
        return str(record["body_base64"]).encode()


Writer = RecordWriter | BodyWriter | FormatWriter
