"""The measurements of ``tidegate bench``: the disk and loopback alone, and a service with its clients."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tidegate.cli.shell.progress import progress_bar
from tidegate.client import EventHubAdministrator, EventHubConsumer, EventHubProducer
from tidegate.model.errors import BrokenError
from tidegate.model.events import EventData
from tidegate.model.position import EventPosition
from tidegate.server.ready import ReadyInformation
from tidegate.transport.clock import SystemClock

WRITE: Final = "disk: sync 1 MB"
SYNC: Final = "disk: sync 4 KB"
LOOPBACK: Final = "loopback: copy 1 MB"

_HUB: Final = "bench"
_PARTITIONS: Final = 4
_EVENT_BYTES: Final = 1_000
_EVENTS_TOGETHER: Final = 1_000
_SENDS_TOGETHER: Final = 64
_BYTES_MAX: Final = 1 << 30
"""Of events and of files, so that a fast disk is not filled (our choice)."""
_MB: Final = 1_000_000
_START_S: Final = 60.0
_LOOK_S: Final = 0.05
_CLOCK: Final = SystemClock()


@dataclass(frozen=True, slots=True)
class Measured:
    """How often something was done, and how many bytes it moved."""

    name: str
    count: int
    byte_count: int
    seconds: float
    compared_with: str = ""
    """The measurement that sets its limit; "": none."""

    @property
    def per_s(self) -> float:
        """Times per second."""
        return self.count / max(self.seconds, 1e-9)

    @property
    def mb_per_s(self) -> float:
        """Megabytes per second."""
        return self.byte_count / max(self.seconds, 1e-9) / 1e6


async def measure(directory: Path | None, seconds: float) -> list[Measured]:
    """All measurements, in a temporary folder of ``directory``; ``seconds`` each.

    Raises BrokenError if the service does not start. Cancellation: service and folder are gone.
    """
    found: list[Measured] = []
    stop = threading.Event()
    with (
        tempfile.TemporaryDirectory(dir=directory, prefix=".tidegate-bench-") as name,
        progress_bar("Measuring", 7) as bar,
    ):
        folder = Path(name)

        def add(measured: Measured) -> None:
            found.append(measured)
            bar(len(found))

        try:
            for work in (partial(_write, WRITE, _MB, folder), partial(_write, SYNC, 4096, folder), _copy):
                add(await asyncio.to_thread(work, seconds, stop))
        finally:
            # The thread ends its turn when the command is interrupted.
            stop.set()
        async with _service(folder) as connection_string:
            await measure_service(connection_string, seconds, add)
    return found


async def measure_service(connection_string: str, seconds: float, add: Callable[[Measured], None]) -> None:
    """Measure a running service, in a hub of its own."""
    async with EventHubAdministrator.from_connection_string(connection_string) as administrator:
        await administrator.create_event_hub(_HUB, partition_count=_PARTITIONS)
    async with EventHubProducer.from_connection_string(connection_string, _HUB) as producer:
        add(await _append(producer, seconds))
        for together in (1, _SENDS_TOGETHER):
            add(await _send(producer, seconds, together))
    async with EventHubConsumer.from_connection_string(connection_string, _HUB) as consumer:
        add(await _deliver(consumer, seconds))


def _turns(seconds: float, turn_bytes: int = 0, stop: threading.Event | None = None) -> Iterator[int]:
    """The numbers of turns, until it is time or they have moved _BYTES_MAX; at least one."""
    until, number = _CLOCK.monotonic() + seconds, 0
    while number * turn_bytes < _BYTES_MAX:
        yield number
        number += 1
        if _CLOCK.monotonic() >= until or (stop is not None and stop.is_set()):
            return


def _write(name: str, size: int, folder: Path, seconds: float, stop: threading.Event) -> Measured:
    data = os.urandom(size)
    with tempfile.TemporaryFile(dir=folder) as file:
        begun, count = _CLOCK.monotonic(), 0
        for number in _turns(seconds, size, stop):
            os.pwrite(file.fileno(), data, number * size)
            os.fdatasync(file.fileno())
            count += 1
        return Measured(name, count, count * size, _CLOCK.monotonic() - begun)


def _copy(seconds: float, stop: threading.Event) -> Measured:
    chunk, received = bytes(_MB), 0

    def receive() -> None:
        nonlocal received
        buffer = bytearray(_MB)
        connection, _ = listener.accept()
        with connection:
            while count := connection.recv_into(buffer):
                received += count

    with socket.create_server(("127.0.0.1", 0)) as listener:
        receiver = threading.Thread(target=receive)
        receiver.start()
        begun = _CLOCK.monotonic()
        with socket.create_connection(listener.getsockname()) as sender:
            # Nothing is stored: no limit of bytes.
            for _ in _turns(seconds, stop=stop):
                sender.sendall(chunk)
        receiver.join()
        return Measured(LOOPBACK, received // _MB, received, _CLOCK.monotonic() - begun)


@asynccontextmanager
async def _service(folder: Path) -> AsyncIterator[str]:
    """A service with its data in the folder; its connection string."""
    ready = folder / "ready.json"
    words = ["serve", "--data-dir", str(folder / "data"), "--amqp-port", "0", "--ready-file", str(ready)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    log = folder / "service.log"
    with log.open("wb") as stream:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tidegate.cli", *words),
            env=kept | {"TIDEGATE_CONFIG_DIR": str(folder)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            # Ctrl-C is for this process, which stops the service.
            start_new_session=True,
        )
    try:
        async with asyncio.timeout(_START_S):
            while not ready.exists() and process.returncode is None:  # noqa: ASYNC110 - another process
                await asyncio.sleep(_LOOK_S)
        if process.returncode is not None:
            raise BrokenError(
                f"The service did not start. It wrote: {log.read_text(errors='replace')[-1000:]}"
            )
        yield ReadyInformation.from_json(ready.read_text()).connection_string
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def _append(producer: EventHubProducer, seconds: float) -> Measured:
    events = [EventData(os.urandom(_EVENT_BYTES)) for _ in range(_EVENTS_TOGETHER)]
    await producer.send(events[:1])
    begun, count = _CLOCK.monotonic(), 0
    for number in _turns(seconds, _EVENTS_TOGETHER * _EVENT_BYTES):
        count += await producer.enqueue_many(events, partition_id=str(number % _PARTITIONS))
    await producer.flush()
    spent = _CLOCK.monotonic() - begun
    return Measured("append: 1 KB events in batches", count, count * _EVENT_BYTES, spent, WRITE)


async def _send(producer: EventHubProducer, seconds: float, together: int) -> Measured:
    event, count = EventData(os.urandom(_EVENT_BYTES)), 0

    async def send(number: int) -> None:
        nonlocal count
        for _ in _turns(seconds, _EVENT_BYTES):
            await producer.send([event], partition_id=str(number % _PARTITIONS))
            count += 1

    begun = _CLOCK.monotonic()
    await asyncio.gather(*map(send, range(together)))
    spent = _CLOCK.monotonic() - begun
    return Measured(f"send: {together} at a time", count, count * _EVENT_BYTES, spent, SYNC)


async def _deliver(consumer: EventHubConsumer, seconds: float) -> Measured:
    count = byte_count = 0

    async def read(partition_id: str, until: int) -> None:
        nonlocal count, byte_count
        async with await consumer.open_receiver(partition_id, EventPosition.earliest()) as receiver:
            for _ in _turns(seconds):
                events = await receiver.receive(10_000, 1.0)
                count += len(events)
                byte_count += sum(len(event.body) for event in events)
                if events and events[-1].sequence_number + 1 >= until:
                    return

    ends = [each for each in await consumer.get_all_partition_properties() if not each.is_empty]
    begun = _CLOCK.monotonic()
    await asyncio.gather(*(read(each.partition_id, each.next_sequence_number) for each in ends))
    return Measured("delivery: 1 KB events", count, byte_count, _CLOCK.monotonic() - begun, LOOPBACK)


def records_of(found: Sequence[Measured]) -> list[dict[str, object]]:
    """Rows of the table: each figure beside its limit."""
    by_name = {each.name: each for each in found}
    records: list[dict[str, object]] = []
    for each in found:
        limit = by_name.get(each.compared_with)
        ratio = None
        if limit is not None:
            # Sends are compared by number, streams by bytes.
            is_counted = each.compared_with == SYNC
            ratio = each.per_s / limit.per_s if is_counted else each.mb_per_s / limit.mb_per_s
        records.append(
            {
                "measured": each.name,
                "per_s": round(each.per_s, 1),
                "MB_per_s": round(each.mb_per_s, 2),
                "ratio": ratio if ratio is None else round(ratio, 2),
                "to": each.compared_with or None,
            }
        )
    return records
