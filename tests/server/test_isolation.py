"""One stuck file, in a real service: its partition waits, and nobody else does."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import TypeVar
from urllib.request import urlopen

import pytest
from tests.support.absent import not_tested

from tidegate.client import EventHubAdministrator, EventHubConsumer, EventHubProducer
from tidegate.model.events import EventData
from tidegate.model.position import EventPosition
from tidegate.testing.hub import HubProcess
from tidegate.transport.tasks import TaskOwner

T = TypeVar("T")

_SOURCE = Path(__file__).parents[1] / "support" / "stuck_files.c"
_PARTITIONS = 4
_ROUNDS = 50


@pytest.fixture
async def tasks() -> AsyncIterator[TaskOwner]:
    """The test's tasks."""
    async with TaskOwner("test") as owner:
        yield owner


class _StuckFiles:
    """Files of the service whose calls do not return."""

    def __init__(self, control: Path) -> None:
        self._control = control

    @contextmanager
    def stuck(self, path: Path) -> Iterator[None]:
        """All calls on files below ``path`` wait."""
        new = self._control.with_suffix(".new")
        new.write_text(f"{path}/")
        new.rename(self._control)
        try:
            yield
        finally:
            self._control.unlink()


@pytest.fixture
def stuck_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _StuckFiles:
    """Services that are started now have it preloaded."""
    if sys.platform != "linux" or which("cc") is None:
        not_tested("A stuck file of a real service: needs Linux and a C compiler (cc).")
    library = tmp_path / "stuck_files.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, _SOURCE, "-ldl"], check=True)
    control = tmp_path / "stuck"
    monkeypatch.setenv("STUCK_CONTROL", str(control))
    monkeypatch.setenv(
        "LD_PRELOAD", os.pathsep.join(filter(None, [str(library), os.environ.get("LD_PRELOAD")]))
    )
    return _StuckFiles(control)


class _Times:
    """How long calls took; printed, not judged."""

    def __init__(self) -> None:
        self._times: dict[str, list[float]] = {}

    async def of(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        started = time.monotonic()
        result = await call()
        self._times.setdefault(name, []).append(time.monotonic() - started)
        return result

    def __str__(self) -> str:
        return "\n".join(
            f"{name}: {len(times)} calls, p50 {1000 * statistics.median(times):.1f} ms, "
            f"p99 {1000 * sorted(times)[len(times) * 99 // 100]:.1f} ms, worst {1000 * max(times):.1f} ms"
            for name, times in self._times.items()
        )


async def test_a_stuck_file_stops_its_partition_alone(
    tmp_path: Path, stuck_files: _StuckFiles, tasks: TaskOwner
) -> None:
    """Reads and writes of one partition hang. Sends to the others and reads of them, ``/health``, and the
    creation and deletion of event hubs are over before it goes on; then all that was sent to it is there."""
    with HubProcess(tmp_path / "data", is_http_used=True) as service:
        hub = service.create_hub(partition_count=_PARTITIONS)
        (logs,) = (tmp_path / "data" / "logs").iterdir()
        async with (
            EventHubProducer.from_connection_string(service.connection_string, hub) as producer,
            EventHubConsumer.from_connection_string(service.connection_string, hub) as consumer,
        ):
            for index in range(_PARTITIONS):
                await producer.send([EventData(b"before")], partition_id=str(index))
            with stuck_files.stuck(logs / "0"):
                send = tasks.start(producer.send([EventData(b"stuck")], partition_id="0"), name="send")
                read = tasks.start(_read(consumer, "0", 2), name="read")
                await _use_the_others(service, producer, consumer)
                assert not send.done()
                assert not read.done()
            await send
            assert await read == [b"before", b"stuck"]


async def _use_the_others(
    service: HubProcess, producer: EventHubProducer, consumer: EventHubConsumer
) -> None:
    times = _Times()
    health = f"http://{service.ready.http}/health"
    for number in range(_ROUNDS):
        for index in range(1, _PARTITIONS):
            events = [EventData(b"%d" % number)]
            await times.of("send", lambda: producer.send(events, partition_id=str(index)))  # noqa: B023
        assert await times.of("health", lambda: asyncio.to_thread(_get, health)) == 200
    for index in range(1, _PARTITIONS):
        bodies = await times.of("read", lambda: _read(consumer, str(index), 1 + _ROUNDS))  # noqa: B023
        assert bodies == [b"before", *(b"%d" % number for number in range(_ROUNDS))]
    async with EventHubAdministrator.from_connection_string(service.connection_string) as administrator:
        await times.of("create", lambda: administrator.create_event_hub("another", partition_count=2))
        await times.of("delete", lambda: administrator.delete_event_hub("another"))
    print(times)


async def _read(consumer: EventHubConsumer, partition_id: str, count: int) -> list[bytes]:
    bodies: list[bytes] = []
    async with await consumer.open_receiver(partition_id, EventPosition.earliest()) as receiver:
        while len(bodies) < count:
            bodies += [event.body for event in await receiver.receive(count - len(bodies))]
    return bodies


def _get(url: str) -> int:
    with urlopen(url) as response:
        status: int = response.status
        return status
