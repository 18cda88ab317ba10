"""``tidegate send``: one event per line of standard input or of a file."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.connection import check_event_hub, resolve_connection
from tidegate.cli.options import CaFileOption, ConnectionStringOption
from tidegate.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from tidegate.cli.connection import ServiceConnection
    from tidegate.cli.json_path import JsonPath
    from tidegate.client import EventHubProducer


@dataclass(frozen=True, slots=True)
class Routing:
    """How events find their partition; at most one field is set."""

    key_path: JsonPath | None = None
    """Take each event's key from its own JSON."""
    partition_key: str | None = None
    partition_id: str | None = None


def send(
    hub: Annotated[str, typer.Argument(metavar="HUB", help="The event hub to send to.")],
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Read the lines of this file instead of standard input."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Partition key from each line's JSON, e.g. .carrier or .device.id"),
    ] = None,
    partition_key: Annotated[
        str | None, typer.Option(metavar="TEXT", help="One partition key for all of them.")
    ] = None,
    partition: Annotated[
        str | None, typer.Option(metavar="ID", help="Send to this partition; without any: the emptiest turn.")
    ] = None,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Send each line of standard input, or of a file, as one event.

    Empty lines are left out. It ends when every line is acknowledged, that is: on the service's disk. Ctrl-C
    sends what was read and tells how much that was.

    \b
    Examples:
      echo '{"device": "a1", "celsius": 21.5}' | tidegate send telemetry --key .device
      tidegate send telemetry --file readings.jsonl --key .device
    """
    from tidegate.cli.interrupt import run_interruptible
    from tidegate.cli.json_path import JsonPath

    if sum(option is not None for option in (key, partition_key, partition)) > 1:
        raise InvalidArgumentError("--key, --partition-key and --partition exclude each other.")
    connection = resolve_connection(connection_string, ca_file, os.environ)
    routing = Routing(None if key is None else JsonPath.parse(key), partition_key, partition)
    try:
        descriptor = sys.stdin.fileno() if file is None else os.open(file, os.O_RDONLY)
    except OSError as error:
        raise InvalidArgumentError(f"Cannot read {file}: {error.strerror}.") from error
    run_interruptible(_send_all(connection, hub, descriptor, routing))


async def _send_all(connection: ServiceConnection, hub: str, descriptor: int, routing: Routing) -> None:
    from tidegate.cli.stream_lines import read_lines
    from tidegate.client import EventHubProducer

    started = time.monotonic()
    sender = _Sender(routing)
    await check_event_hub(connection, hub)
    async with EventHubProducer.from_connection_string(
        connection.connection_string, hub, ca_file=connection.ca_file
    ) as producer:
        try:
            await sender.send_lines(producer, read_lines(descriptor))
        finally:
            # Also when interrupted or stopped by a bad line: what was taken is sent, and counted.
            await producer.flush()
            elapsed_s = max(time.monotonic() - started, 1e-9)
            count = sender.event_count
            sys.stderr.write(
                f"Sent {count:,} events in {elapsed_s:.1f} s ({count / elapsed_s:,.0f} events/s).\n"
            )


class _Sender:
    """Turns lines into events and counts them."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._line_number = 0
        self.event_count = 0

    async def send_lines(self, producer: EventHubProducer, chunks: AsyncIterator[list[bytes]]) -> None:
        """Enqueue every non-empty line; raises InvalidArgumentError naming the line that cannot be routed."""
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
                await self._enqueue(producer, bodies[: len(keys)], keys)
            await asyncio.sleep(0)

    async def _enqueue(
        self, producer: EventHubProducer, bodies: Sequence[bytes], keys: Sequence[str | None]
    ) -> None:
        from tidegate.model.events import EventData

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
