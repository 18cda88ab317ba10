"""Counts the Python calls of one act, and the files that they are in: `python -m tools.calls [--json]`.

Uses ``sys.setprofile``, for the client and for a service in a thread of the same process. Each act is counted
once, after an uncounted one that loads its imports:

    publish        one event on an open link
    host batch     100 events, from sending them until the Event Processor Host's handler has returned
    group create   the command, from its arguments to its last line
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

from rich.console import Console
from rich.table import Table

import tidegate
from tidegate import EventData, EventHubProducer, EventProcessorHost, MemoryStore, ReceivedEvent
from tidegate.cli import main as command_line
from tidegate.processor import PartitionContext
from tidegate.testing.hub import HubService
from tidegate.transport.clock import SystemClock

_PACKAGE: Final = str(Path(tidegate.__file__).parent) + os.sep
_EVENTS: Final = 100


@dataclass(slots=True)
class Calls:
    """Calls of Python functions during one act."""

    every: int = 0
    """Including the standard library and other packages."""
    own: int = 0
    """Of functions in ``src/tidegate``."""
    files: Counter[str] = field(default_factory=Counter)
    """Own calls by file."""


class Counting:
    """Counts calls in all threads that start after ``install``, and in this one."""

    def __init__(self) -> None:
        self._calls: Calls | None = None

    def install(self) -> None:
        """Call it before starting the threads to be counted."""
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)

    @contextmanager
    def act(self) -> Iterator[Calls]:
        """Count while the block runs."""
        self._calls = calls = Calls()
        try:
            yield calls
        finally:
            self._calls = None

    def _on_event(self, frame: FrameType, event: str, _: object) -> None:
        calls = self._calls
        if calls is None or event != "call":
            return
        calls.every += 1
        name = frame.f_code.co_filename
        if name.startswith(_PACKAGE):
            calls.own += 1
            calls.files[name.removeprefix(_PACKAGE)] += 1


async def _publish(counting: Counting, string: str, hub: str) -> Calls:
    async with EventHubProducer.from_connection_string(string, hub) as producer:
        await producer.send([EventData(b"first")], partition_id="0")
        with counting.act() as calls:
            await producer.send([EventData(b"second")], partition_id="0")
    return calls


async def _host_batch(counting: Counting, string: str, hub: str) -> Calls:
    handled: asyncio.Queue[int] = asyncio.Queue()

    async def handle(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        await context.checkpoint()
        handled.put_nowait(len(events))

    async def wait_for(count: int) -> None:
        while count > 0:
            count -= await handled.get()

    async with EventHubProducer.from_connection_string(string, hub) as producer:
        host = EventProcessorHost.from_connection_string(string, hub, store=MemoryStore(SystemClock()))
        async with host.running(handle):
            await producer.send([EventData(b"first")], partition_id="0")
            await wait_for(1)
            with counting.act() as calls:
                await producer.send(
                    [EventData(b"%d" % number) for number in range(_EVENTS)], partition_id="0"
                )
                await wait_for(_EVENTS)
    return calls


def _group_create(counting: Counting, string: str, hub: str) -> Calls:
    def run(name: str) -> None:
        arguments = ["tidegate", "group", "create", hub, name, "--connection-string", string]
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            try:
                sys.argv = arguments
                command_line()
            except SystemExit as ended:
                if ended.code:
                    raise RuntimeError(output.getvalue()) from ended

    run("first")
    with counting.act() as calls:
        run("second")
    return calls


def count() -> dict[str, Calls]:
    """Each act's calls; starts a service on loopback."""
    counting = Counting()
    counting.install()
    try:
        with HubService() as service:
            string = service.connection_string
            hubs = [service.create_hub(partition_count=1) for _ in range(3)]
            return {
                "publish": asyncio.run(_publish(counting, string, hubs[0])),
                f"host batch of {_EVENTS}": asyncio.run(_host_batch(counting, string, hubs[1])),
                "group create": _group_create(counting, string, hubs[2]),
            }
    finally:
        threading.setprofile(None)
        sys.setprofile(None)


def main() -> int:
    """Print the figures as a table, or as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tools.calls", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = count()
    if arguments.json:
        rows = {name: {"calls": c.every, "own": c.own, "files": len(c.files)} for name, c in found.items()}
        print(json.dumps(rows))
        return 0
    table = Table("act", "calls", "of Tidegate's", "in files")
    for name, calls in found.items():
        table.add_row(name, f"{calls.every:,}", f"{calls.own:,}", str(len(calls.files)))
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
