"""Turns lines into events, finds each one's key, and sends them."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from tidegate.cli.shell.connection import check_event_hub
from tidegate.cli.shell.profiles import ServiceConnection
from tidegate.cli.shell.progress import ProgressBar, no_bar, progress_bar
from tidegate.cli.shell.render import remark
from tidegate.cli.shell.stream_lines import read_lines
from tidegate.client import EventHubProducer
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import EventData
from tidegate.model.json_path import JsonPath
from tidegate.transport.tasks import TaskOwner


@dataclass(frozen=True, slots=True)
class Routing:
    """How events are assigned to partitions; at most one field is set."""

    key_path: JsonPath | None = None
    """Where each event's JSON holds its key."""
    partition_key: str | None = None
    partition_id: str | None = None


async def send_lines(connection: ServiceConnection, hub: str, descriptor: int, routing: Routing) -> None:
    """Send each line of a file descriptor; lines already read are sent and counted, however it ends.

    On a terminal, a bar shows the progress of a file; the length of a pipe is unknown.
    """
    started = time.monotonic()
    await check_event_hub(connection, hub)
    sender = _Sender(routing)
    async with EventHubProducer.from_connection_string(
        connection.connection_string, hub, ca_file=connection.ca_file
    ) as producer:
        try:
            with _bar_of(descriptor) as bar:
                await sender.send_chunks(producer, read_lines(descriptor), bar)
        finally:
            # Also when interrupted or stopped by an invalid line: the lines before are sent and counted.
            await producer.flush()
            elapsed_s = max(time.monotonic() - started, 1e-9)
            count = sender.event_count
            remark(f"Sent {count:,} events in {elapsed_s:.1f} s ({count / elapsed_s:,.0f} events/s).")


def _bar_of(descriptor: int) -> AbstractContextManager[ProgressBar]:
    """A bar that counts the bytes sent of a file; none for a descriptor of unknown length."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        return nullcontext(no_bar)
    return progress_bar("Sending", status.st_size)


class _Sender:
    """Turns lines into events and counts them."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._line_number = 0
        self.event_count = 0

    async def send_chunks(
        self, producer: EventHubProducer, chunks: AsyncIterator[list[bytes]], bar: ProgressBar
    ) -> None:
        """Enqueue every non-empty line; raises InvalidArgumentError naming the line that cannot be routed.

        bar: called with the bytes read so far.
        """
        taken_bytes = 0
        async for lines in chunks:
            bodies: list[bytes] = []
            keys: list[str | None] = []
            try:
                for line in lines:
                    self._line_number += 1
                    if line:
                        keys.append(self._key_of(line))
                        bodies.append(line)
            finally:
                await self._enqueue_whole(producer, bodies[: len(keys)], keys)
            taken_bytes += sum(map(len, lines)) + len(lines)
            bar(taken_bytes)
            await asyncio.sleep(0)

    async def _enqueue_whole(
        self, producer: EventHubProducer, bodies: Sequence[bytes], keys: Sequence[str | None]
    ) -> None:
        """As ``_enqueue``. Cancellation: all of them are still enqueued, and counted together."""
        # Waiting for the task raises its error.
        async with TaskOwner("send", on_failure=lambda _: None) as tasks:
            task = tasks.start(self._enqueue(producer, bodies, keys), name="enqueue")
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                await task
                raise

    async def _enqueue(
        self, producer: EventHubProducer, bodies: Sequence[bytes], keys: Sequence[str | None]
    ) -> None:
        events = [EventData(body) for body in bodies]
        if self._routing.partition_id is not None:
            await producer.enqueue_many(events, partition_id=self._routing.partition_id)
        else:
            await producer.enqueue_many(events, partition_keys=keys)
        self.event_count += len(events)

    def _key_of(self, line: bytes) -> str | None:
        if self._routing.key_path is None:
            return self._routing.partition_key
        try:
            return self._routing.key_path.text_in(line)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"Line {self._line_number}: {error.message}", next_step="The lines before it were sent."
            ) from error
