"""Turns input into events, finds each one's key, and sends them."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from tidegate.cli.events.records import parse_record
from tidegate.cli.shell.connection import check_event_hub
from tidegate.cli.shell.profiles import ServiceConnection
from tidegate.cli.shell.progress import ProgressBar, no_bar, progress_bar
from tidegate.cli.shell.render import remark
from tidegate.cli.shell.stream_lines import read_chunks, read_lines
from tidegate.client import EventHubProducer
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import InvalidArgumentError
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
    is_verbose: bool = False
    """Whether to say what is sent, on standard error."""

    @property
    def _is_plain(self) -> bool:
        return not (self.properties or self.content_type or self.message_id or self.correlation_id)

    def event_of(self, body: bytes) -> tuple[EventData, str | None]:
        """The event of a line or file, and the key that a record has. Raises InvalidArgumentError."""
        if not self.is_record:
            if self._is_plain:
                return EventData(body), None
            return self._made(EventData(body)), None
        event, key = parse_record(body)
        return (event if self._is_plain else self._made(event)), key

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
        remark(f"Sending to {found.name} at {host}, which has {len(found.partition_ids)} partitions.")
    sender = _Sender(given, routing)
    async with (
        EventHubProducer.from_connection_string(
            connection.connection_string, hub, ca_file=connection.ca_file
        ) as producer,
        TaskOwner("send", on_failure=lambda _: None) as tasks,
    ):
        if given.is_verbose:
            tasks.start(sender.report_forever(), name="report")
        try:
            with _bar_of(given.descriptors) as bar:
                await sender.send_all(producer, bar)
        finally:
            # Also when interrupted or stopped by an invalid line: the lines before are sent and counted.
            await producer.flush()
            elapsed_s = max(time.monotonic() - started, 1e-9)
            count = sender.event_count
            remark(f"Sent {count:,} events in {elapsed_s:.1f} s ({count / elapsed_s:,.0f} events/s).")


def _bar_of(descriptors: Sequence[int]) -> AbstractContextManager[ProgressBar]:
    """A bar that counts the bytes sent of files; none if a length is unknown."""
    statuses = [os.fstat(descriptor) for descriptor in descriptors]
    if not all(stat.S_ISREG(status.st_mode) for status in statuses):
        return nullcontext(no_bar)
    return progress_bar("Sending", sum(status.st_size for status in statuses))


class _Sender:
    """Turns input into events and counts them."""

    def __init__(self, given: Input, routing: Routing) -> None:
        self._input = given
        self._routing = routing
        self._line_number = 0
        self._begun_at: float | None = None
        self.event_count = 0

    async def send_all(self, producer: EventHubProducer, bar: ProgressBar) -> None:
        """Enqueue every event; raises InvalidArgumentError naming the line that cannot be sent.

        bar: called with the bytes read so far.
        """
        taken_bytes = 0
        for descriptor in self._input.descriptors:
            bodies_read = _whole(descriptor) if self._input.is_whole else read_lines(descriptor)
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
            remark(f"{self.event_count:,} events so far.")

    async def _send(self, producer: EventHubProducer, bodies: Sequence[bytes]) -> bool:
        """Enqueue events; False once there are enough."""
        given = self._input
        events: list[EventData] = []
        keys: list[str | None] = []
        is_enough = False
        try:
            for body in bodies:
                self._line_number += 1
                if not body and not given.is_whole:
                    continue
                if given.count_max is not None and self.event_count + len(events) >= given.count_max:
                    is_enough = True
                    break
                event, key = self._read(body)
                events.append(event)
                keys.append(key)
        finally:
            await self._enqueue_at_rate(producer, events, keys)
        return not is_enough and (given.count_max is None or self.event_count < given.count_max)

    async def _enqueue_at_rate(
        self, producer: EventHubProducer, events: Sequence[EventData], keys: Sequence[str | None]
    ) -> None:
        rate = self._input.rate
        size = len(events) if rate is None else max(1, int(rate / _SLICES_PER_S))
        for start in range(0, len(events), size or 1):
            if rate is not None:
                loop = asyncio.get_running_loop()
                if self._begun_at is None:
                    self._begun_at = loop.time()
                await asyncio.sleep(self._begun_at + self.event_count / rate - loop.time())
            part = slice(start, start + size)
            await self._enqueue_whole(producer, events[part], keys[part])

    async def _enqueue_whole(
        self, producer: EventHubProducer, events: Sequence[EventData], keys: Sequence[str | None]
    ) -> None:
        """As ``_enqueue``. Cancellation: all of them are still enqueued, and counted together."""
        # Waiting for the task raises its error.
        async with TaskOwner("send", on_failure=lambda _: None) as tasks:
            task = tasks.start(self._enqueue(producer, events, keys), name="enqueue")
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                await task
                raise

    async def _enqueue(
        self, producer: EventHubProducer, events: Sequence[EventData], keys: Sequence[str | None]
    ) -> None:
        if self._routing.partition_id is not None:
            await producer.enqueue_many(events, partition_id=self._routing.partition_id)
        else:
            await producer.enqueue_many(events, partition_keys=keys)
        self.event_count += len(events)

    def _read(self, body: bytes) -> tuple[EventData, str | None]:
        try:
            event, key = self._input.event_of(body)
            if self._routing.key_path is not None:
                return event, self._routing.key_path.text_in(event.body)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"{'File' if self._input.is_whole else 'Line'} {self._line_number}: {error.message}",
                next_step="What was before it was sent.",
            ) from error
        return event, key if self._routing.partition_key is None else self._routing.partition_key


async def _whole(descriptor: int) -> AsyncIterator[list[bytes]]:
    """All of a file, as one body."""
    yield [b"".join([chunk async for chunk in read_chunks(descriptor)])]
