"""What others notice of one stuck file: the latency of their sends, and of ``/health``.

Run as ``python -m bench.isolation [--seconds 5] [--directory DIR]``; needs Linux and a C compiler. Calls on
one file of a real service do not return for some seconds (``tests/support/stuck_files.c``). Meanwhile single
events are sent to other partitions at a steady rate, and ``/health`` is asked; each time is from when the
call was due. A line for each file, the first one for none.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Final

from tests.support.stuck_files import StuckFiles

from tidegate.client import EventHubAdministrator, EventHubProducer
from tidegate.model.events import EventData
from tidegate.testing.hub import HubProcess
from tidegate.transport.tasks import TaskOwner

_PARTITIONS: Final = 8
_EVERY_S: Final = 0.02
"""From one event of a partition to its next, and from one ``/health`` to the next."""


class _Load:
    """Sends to all partitions but the first, and ``/health``."""

    def __init__(self, service: HubProcess, producer: EventHubProducer, tasks: TaskOwner) -> None:
        self._tasks = tasks
        self._service = service
        self._producer = producer
        self.sends: list[float] = []
        self.health: list[float] = []
        self._begun: set[asyncio.Task[None]] = set()

    async def run(self, seconds: float) -> int:
        """Returns how many sends had no answer at its end."""
        reader, writer = await asyncio.open_connection(*str(self._service.ready.http).rsplit(":", 1))
        begun = time.monotonic()
        asked: asyncio.Task[None] | None = None
        for turn in range(int(seconds / _EVERY_S)):
            due = begun + turn * _EVERY_S
            await asyncio.sleep(due - time.monotonic())
            for index in range(1, _PARTITIONS):
                send = self._producer.send([EventData(bytes(200))], partition_id=str(index))
                self._start(self._timed(due, send, self.sends))
            if asked is None or asked.done():
                asked = self._start(self._timed(due, _ask_health(reader, writer), self.health))
        await asyncio.sleep(0.2)
        unanswered = sum(not each.done() for each in self._begun)
        writer.close()
        return unanswered

    async def finish(self) -> None:
        """Wait for all answers."""
        await asyncio.gather(*self._begun)

    def _start(self, work: Awaitable[None]) -> asyncio.Task[None]:
        async def run() -> None:
            await work

        task = self._tasks.start(run(), name="load")
        self._begun.add(task)
        return task

    async def _timed(self, due: float, call: Awaitable[None], times: list[float]) -> None:
        await call
        times.append(time.monotonic() - due)


async def _ask_health(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET /health HTTP/1.1\r\nHost: bench\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    await reader.readexactly(int(length.split(b":")[1]))


def _figures(times: list[float]) -> str:
    if not times:
        return "none answered"
    found = sorted(times)
    shown = (found[len(found) // 2], found[len(found) * 99 // 100], found[-1])
    return "p50 {:.1f}, p99 {:.1f}, worst {:.1f} ms".format(*(1000 * each for each in shown))


@asynccontextmanager
async def _opened(service: HubProcess, hub: str) -> AsyncIterator[EventHubProducer]:
    async with EventHubProducer.from_connection_string(service.connection_string, hub) as producer:
        for index in range(_PARTITIONS):
            await producer.send([EventData(b"first")], partition_id=str(index))
        yield producer


async def _measure(service: HubProcess, stuck_files: StuckFiles, seconds: float) -> None:
    hub = service.create_hub(partition_count=_PARTITIONS)
    (logs,) = (service.data_dir / "logs").iterdir()
    administrator = EventHubAdministrator.from_connection_string(service.connection_string)
    numbers = iter(range(100))

    async def create() -> None:
        await administrator.create_event_hub(f"new-{next(numbers)}", partition_count=32)

    async def send() -> None:
        await producer.send([EventData(b"stuck")], partition_id="0")

    cases: list[tuple[str, str | None, Callable[[], Awaitable[None]] | None]] = [
        ("nothing", None, None),
        ("segment of another partition", f"{logs}/0/", send),
        ("journal", "/journal.", None),
        ("files of a new event hub", ".new/", create),
        ("control log", "/control.", create),
        ("nothing, while event hubs are created", None, create),
    ]
    async with TaskOwner("bench") as tasks, administrator, _opened(service, hub) as producer:
        for name, part, work in cases:
            load = _Load(service, producer, tasks)
            with nullcontext() if part is None else stuck_files.stuck(part):
                begun = None if work is None else tasks.start(_working(work, seconds), name="work")
                unanswered = await load.run(seconds)
            await load.finish()
            if begun is not None:
                await begun
            print(
                f"stuck: {name}: sends {_figures(load.sends)}, {unanswered} unanswered before it went on; "
                f"health {_figures(load.health)}",
                flush=True,
            )


async def _working(work: Callable[[], Awaitable[None]], seconds: float) -> None:
    """Again and again, as long as the load takes."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await work()
        await asyncio.sleep(0.1)


def main() -> None:
    """Parse the options, start a service, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument(
        "--directory", type=Path, help="on the disk to measure; default: the current directory"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory or Path.cwd()) as directory:
        stuck_files = StuckFiles(Path(directory), os.environ)
        with HubProcess(Path(directory) / "data", is_http_used=True) as service:
            asyncio.run(_measure(service, stuck_files, options.seconds))


if __name__ == "__main__":
    main()
