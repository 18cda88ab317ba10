"""Turns input into events, finds each one's key, and sends them."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from tidegate.cli.events.records import ParsedRecord, parse_record
from tidegate.cli.shell.connection import check_event_hub
from tidegate.cli.shell.profiles import ServiceConnection
from tidegate.cli.shell.progress import ProgressBar, no_bar, progress_bar
from tidegate.cli.shell.render import counted, remark
from tidegate.cli.shell.stream_lines import lines_of, read_chunks, unzipped
from tidegate.client import EventHubProducer
from tidegate.files import BINARY
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import EventTooLargeError, InvalidArgumentError, TidegateError
from tidegate.model.events import EventData
from tidegate.model.json_path import JsonPath
from tidegate.transport.tasks import TaskOwner

_VERBOSE_INTERVAL_S = 1.0
_SLICES_PER_S = 10
"""With a rate, the events of a tenth of a second are sent together."""


@dataclass(frozen=True, slots=True)
class Routing:
    """How events are assigned to partitions; at most one field is set."""

    key_path: JsonPath | None = None
    """Where each event's JSON holds its key."""
    partition_key: str | None = None
    partition_id: str | None = None
    is_partition_kept: bool = False
    """Whether records without a key go to the partition that they name."""


@dataclass(frozen=True, slots=True)
class Input:
    """What is read, and what becomes of it."""

    descriptors: Sequence[int]
    """Open files, read one after the other."""
    is_whole: bool = False
    """Whether each file is one event, unchanged; else each line that is not empty."""
    is_record: bool = False
    """Whether lines are records, as ``receive --nl`` writes them."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Added to those of records."""
    content_type: str | None = None
    message_id: str | None = None
    correlation_id: str | None = None
    count_max: int | None = None
    """Events to send at most."""
    rate: float | None = None
    """Events per second at most."""
    skip: int = 0
    """Lines that are not empty, skipped at the beginning: they were sent before."""
    is_import: bool = False
    """Whether to say where the next run continues if this one does not reach the end."""
    is_zipped: bool = False
    is_verbose: bool = False
    """Whether to say what is sent, on standard error."""

    @property
    def _is_plain(self) -> bool:
        return not (self.properties or self.content_type or self.message_id or self.correlation_id)

    def event_of(self, body: bytes) -> ParsedRecord:
        """The event of a line or file, with key and partition of a record. Raises InvalidArgumentError."""
        found = parse_record(body) if self.is_record else ParsedRecord(EventData(body), None, None)
        return found if self._is_plain else found._replace(event=self._made(found.event))

    def _made(self, event: EventData) -> EventData:
        return EventData(
            event.body,
            {**event.properties, **self.properties},
            self.content_type or event.content_type,
            self.message_id or event.message_id,
            self.correlation_id or event.correlation_id,
        )


async def send_input(connection: ServiceConnection, hub: str, given: Input, routing: Routing) -> None:
    """Send the events of files; what is already read is sent and counted, however it ends.

    On a terminal, a bar shows the progress of files; the length of a pipe is unknown.
    """
    started = time.monotonic()
    found = await check_event_hub(connection, hub)
    if given.is_verbose:
        host = ConnectionString.parse(connection.connection_string).host
        partitions = counted(len(found.partition_ids), "partition")
        remark(f"Sending to {found.name} at {host}, which has {partitions}.")
    sender = _Sender(given, routing, found.partition_ids)
    async with (
        EventHubProducer.from_connection_string(
            connection.connection_string, hub, ca_file=connection.ca_file
        ) as producer,
        TaskOwner("send", on_failure=lambda _: None) as tasks,
    ):
        if given.is_verbose:
            tasks.start(sender.report_forever(), name="report")
        is_complete = False
        try:
            with _bar_of(given) as bar:
                await sender.send_all(producer, bar)
            is_complete = True
        finally:
            # Also when interrupted or stopped by an invalid line: the lines before are sent and counted.
            await producer.flush()
            elapsed_s = max(time.monotonic() - started, 1e-9)
            count = sender.event_count
            remark(
                f"Sent {counted(count, 'event')} in {elapsed_s:.1f} s ({count / elapsed_s:,.0f} events/s)."
            )
            if given.is_import and not is_complete:
                remark(_how_to_continue(given.skip + count, sender.refused_line))


def _how_to_continue(done_count: int, refused_line: int | None) -> str:
    if refused_line is None:
        return f"To continue after them, add --skip {done_count}."
    return (
        f"To continue, correct line {refused_line} and add --skip {done_count}, or leave it out with "
        f"--skip {done_count + 1}."
    )


def _bar_of(given: Input) -> AbstractContextManager[ProgressBar]:
    """A bar that counts the bytes sent of files; none if a length is unknown."""
    statuses = [os.fstat(descriptor) for descriptor in given.descriptors]
    if given.is_zipped or not all(stat.S_ISREG(status.st_mode) for status in statuses):
        return nullcontext(no_bar)
    return progress_bar("Sending", sum(status.st_size for status in statuses))


class _Line(NamedTuple):
    """An event to send, and where it was read."""

    event: EventData
    partition_key: str | None
    partition_id: str | None
    number: int
    """Of the line or file, from 1."""


class _Sender:
    """Turns input into events and counts them."""

    def __init__(self, given: Input, routing: Routing, partition_ids: Sequence[str]) -> None:
        self._input = given
        self._routing = routing
        self._partition_ids = partition_ids
        self._skipped_count = 0
        self._line_number = 0
        self._begun_at: float | None = None
        self.event_count = 0
        self.refused_line: int | None = None
        """The first that could not be sent."""

    async def send_all(self, producer: EventHubProducer, bar: ProgressBar) -> None:
        """Enqueue every event.

        bar: called with the bytes read so far.
        Raises InvalidArgumentError and EventTooLargeError, which name the line that cannot be sent.
        """
        taken_bytes = 0
        for descriptor in self._input.descriptors:
            chunks = read_chunks(descriptor)
            chunks = unzipped(chunks) if self._input.is_zipped else chunks
            bodies_read = _whole(chunks) if self._input.is_whole else lines_of(chunks)
            async for bodies in bodies_read:
                if not await self._send(producer, bodies):
                    return
                taken_bytes += sum(map(len, bodies)) + (0 if self._input.is_whole else len(bodies))
                bar(taken_bytes)
                await asyncio.sleep(0)

    async def report_forever(self) -> None:
        """Say now and then how many events were sent."""
        while True:
            await asyncio.sleep(_VERBOSE_INTERVAL_S)
            remark(f"{counted(self.event_count, 'event')} so far.")

    async def _send(self, producer: EventHubProducer, bodies: Sequence[bytes]) -> bool:
        """Enqueue events; False once there are enough."""
        given = self._input
        lines: list[_Line] = []
        is_enough = False
        try:
            for body in bodies:
                self._line_number += 1
                if not body and not given.is_whole:
                    continue
                if self._skipped_count < given.skip:
                    self._skipped_count += 1
                    continue
                if given.count_max is not None and self.event_count + len(lines) >= given.count_max:
                    is_enough = True
                    break
                lines.append(self._read(body))
        finally:
            await self._enqueue_at_rate(producer, lines)
        return not is_enough and (given.count_max is None or self.event_count < given.count_max)

    async def _enqueue_at_rate(self, producer: EventHubProducer, lines: Sequence[_Line]) -> None:
        rate = self._input.rate
        size = len(lines) if rate is None else max(1, int(rate / _SLICES_PER_S))
        for start in range(0, len(lines), size or 1):
            if rate is not None:
                loop = asyncio.get_running_loop()
                if self._begun_at is None:
                    self._begun_at = loop.time()
                await asyncio.sleep(self._begun_at + self.event_count / rate - loop.time())
            await self._enqueue_whole(producer, lines[start : start + size])

    async def _enqueue_whole(self, producer: EventHubProducer, lines: Sequence[_Line]) -> None:
        """As ``_enqueue``. Cancellation: all of them are still enqueued, and counted together."""
        # Waiting for the task raises its error.
        async with TaskOwner("send", on_failure=lambda _: None) as tasks:
            task = tasks.start(self._enqueue(producer, lines), name="enqueue")
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                await task
                raise

    async def _enqueue(self, producer: EventHubProducer, lines: Sequence[_Line]) -> None:
        before = self.event_count
        try:
            # One run after the other, so that events with a key and others keep their order in a partition.
            for partition_id, run in groupby(lines, key=attrgetter("partition_id")):
                found = [*run]
                events = self._counted(found)
                if partition_id is not None:
                    await producer.enqueue_many(events, partition_id=partition_id)
                else:
                    await producer.enqueue_many(events, partition_keys=[each.partition_key for each in found])
        except (InvalidArgumentError, EventTooLargeError) as error:
            raise self._refused(lines[self.event_count - before].number, error) from error

    def _counted(self, lines: Iterable[_Line]) -> Iterator[EventData]:
        """Their events; each counts when the next one is asked for, as one that is refused never is."""
        for each in lines:
            yield each.event
            self.event_count += 1

    def _refused(self, line: int, error: TidegateError) -> TidegateError:
        """The error, with the line."""
        self.refused_line = line
        return type(error)(
            f"{'File' if self._input.is_whole else 'Line'} {line}: {error.message}",
            next_step="What was before it was sent.",
        )

    def _read(self, body: bytes) -> _Line:
        """An event, with the key or the partition that it is sent by."""
        routing = self._routing
        try:
            found = self._input.event_of(body)
            key = found.partition_key if routing.partition_key is None else routing.partition_key
            if routing.key_path is not None:
                key = routing.key_path.text_in(found.event.body)
            partition_id = routing.partition_id
            if routing.is_partition_kept and key is None and found.partition_id is not None:
                partition_id = found.partition_id
                if partition_id not in self._partition_ids:
                    raise InvalidArgumentError(f"The event hub has no partition {partition_id!r}.")
        except InvalidArgumentError as error:
            raise self._refused(self._line_number, error) from error
        return _Line(found.event, key, partition_id, self._line_number)


async def _whole(chunks: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    """All of a file, as one body."""
    yield [b"".join([chunk async for chunk in chunks])]


def opened(file: Path) -> int:
    """A file's descriptor. Raises InvalidArgumentError if it cannot be read."""
    try:
        return os.open(file, os.O_RDONLY | BINARY)
    except OSError as error:
        raise InvalidArgumentError(f"Cannot read {file}: {error.strerror}.") from error
