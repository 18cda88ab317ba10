"""One stuck file, in a real service: what needs it waits, and nobody else does."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from shutil import which
from typing import TypeVar
from urllib.request import urlopen

import pytest
from tests.support.absent import not_tested
from tests.support.stuck_files import StuckFiles

from tidegate.client import EventHubAdministrator, EventHubConsumer, EventHubProducer
from tidegate.model.events import EventData
from tidegate.model.position import EventPosition
from tidegate.testing.hub import HubProcess
from tidegate.transport.tasks import TaskOwner

T = TypeVar("T")

_PARTITIONS = 4
_ROUNDS = 50


@pytest.fixture
async def tasks() -> AsyncIterator[TaskOwner]:
    """The test's tasks."""
    async with TaskOwner("test") as owner:
        yield owner


@pytest.fixture
def stuck_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StuckFiles:
    """Services that are started now have it preloaded."""
    if sys.platform != "linux" or which("cc") is None:
        not_tested("A stuck file of a real service: needs Linux and a C compiler (cc).")
    environment = dict(os.environ)
    files = StuckFiles(tmp_path, environment)
    for name in ("STUCK_CONTROL", "LD_PRELOAD"):
        monkeypatch.setenv(name, environment[name])
    return files


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


@pytest.mark.slow
async def test_a_stuck_file_stops_its_partition_alone(
    tmp_path: Path, stuck_files: StuckFiles, tasks: TaskOwner
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
            with stuck_files.stuck(f"{logs}/0/"):
                send = tasks.start(producer.send([EventData(b"stuck")], partition_id="0"), name="send")
                read = tasks.start(_read(consumer, "0", 2), name="read")
                await _use_the_others(service, producer, consumer)
                assert not send.done()
                assert not read.done()
            await send
            assert await read == [b"before", b"stuck"]


@pytest.mark.slow
async def test_while_the_journal_is_stuck_appends_wait(
    tmp_path: Path, stuck_files: StuckFiles, tasks: TaskOwner
) -> None:
    """Sends to several partitions hang. Reads, ``/health`` and the creation of an event hub are over before
    it goes on; then all that was sent is there."""
    with HubProcess(tmp_path / "data", is_http_used=True) as service:
        hub = service.create_hub(partition_count=_PARTITIONS)
        async with (
            EventHubProducer.from_connection_string(service.connection_string, hub) as producer,
            EventHubConsumer.from_connection_string(service.connection_string, hub) as consumer,
            EventHubAdministrator.from_connection_string(service.connection_string) as administrator,
        ):

            def send(index: int) -> asyncio.Task[None]:
                event = EventData(b"%d" % index)
                return tasks.start(producer.send([event], partition_id=str(index)), name="send")

            await asyncio.gather(*map(send, range(_PARTITIONS)))
            with stuck_files.stuck("/journal."):
                # A round that has one partition needs no journal: events of several must meet in one.
                sends = [send(index) for index in range(_PARTITIONS)]
                while not (await asyncio.wait(sends, timeout=2))[1]:
                    sends += [send(index) for index in range(_PARTITIONS)]
                times = _Times()
                for number in range(_ROUNDS):
                    assert await times.of("health", lambda: _health(service)) == 200
                    index = number % _PARTITIONS
                    bodies = await times.of("read", lambda: _read(consumer, str(index), 1))  # noqa: B023
                    assert bodies == [b"%d" % index]
                await times.of("create", lambda: administrator.create_event_hub("another", partition_count=2))
                print(times)
                assert not all(each.done() for each in sends)
            await asyncio.gather(*sends)
            count = 1 + len(sends) // _PARTITIONS
            for index in range(_PARTITIONS):
                assert await _read(consumer, str(index), count) == [b"%d" % index] * count


@pytest.mark.slow
async def test_while_a_creation_is_stuck_the_others_go_on(
    tmp_path: Path, stuck_files: StuckFiles, tasks: TaskOwner
) -> None:
    """Making a new log's files hangs: sends, reads and ``/health`` are over before it goes on."""
    with HubProcess(tmp_path / "data", is_http_used=True) as service:
        hub = service.create_hub(partition_count=_PARTITIONS)
        async with (
            EventHubProducer.from_connection_string(service.connection_string, hub) as producer,
            EventHubConsumer.from_connection_string(service.connection_string, hub) as consumer,
            EventHubAdministrator.from_connection_string(service.connection_string) as administrator,
        ):
            for index in range(1, _PARTITIONS):
                await producer.send([EventData(b"before")], partition_id=str(index))
            with stuck_files.stuck("/2.new/"):
                creation = tasks.start(
                    administrator.create_event_hub("slow", partition_count=4), name="creation"
                )
                await _use_the_others(service, producer, consumer, is_created_too=False)
                assert not creation.done()
            await creation
            await producer.send([EventData(b"after")], partition_id="0")


async def _use_the_others(
    service: HubProcess,
    producer: EventHubProducer,
    consumer: EventHubConsumer,
    *,
    is_created_too: bool = True,
) -> None:
    times = _Times()
    for number in range(_ROUNDS):
        for index in range(1, _PARTITIONS):
            events = [EventData(b"%d" % number)]
            await times.of("send", lambda: producer.send(events, partition_id=str(index)))  # noqa: B023
        assert await times.of("health", lambda: _health(service)) == 200
    for index in range(1, _PARTITIONS):
        bodies = await times.of("read", lambda: _read(consumer, str(index), 1 + _ROUNDS))  # noqa: B023
        assert bodies == [b"before", *(b"%d" % number for number in range(_ROUNDS))]
    if is_created_too:
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


async def _health(service: HubProcess) -> int:
    def get() -> int:
        with urlopen(f"http://{service.ready.http}/health") as response:
            status: int = response.status
            return status

    return await asyncio.to_thread(get)
