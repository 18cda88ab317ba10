"""Processors and throttled producers of official SDKs that are programs of their own: Go's and Java's.

Both speak the same few words, so what must hold is written down here once: a program ``throttled`` sends
events that the service first refuses, and a program ``processor`` prints the partition and sequence number of
each event that it has processed and checkpointed, until its standard input ends.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from operator import itemgetter
from types import TracebackType

from azure.storage.blob import ContainerClient
from tests.interop.support import bodies, read, target_of
from tests.support.blob_storage import BlobStorage

from tidegate.client import EventHubProducer
from tidegate.model.events import EventData
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService

WAIT_S = 60.0
"""Longest wait for something that must happen; reached only when a test fails."""
_PARTITIONS = ("0", "1", "2", "3")
_EACH = 5
"""Events sent to each partition at a time."""

Processed = list[tuple[str, int]]
"""(partition id, sequence number) in the order in which a program said so."""


class ProcessorProgram:
    """An SDK's processor in a process of its own; a context manager that stops it in order."""

    def __init__(self, command: Sequence[str]) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr
        )
        self._changed = threading.Condition()
        self._processed: Processed = []
        self._has_ended = False
        self._reader = threading.Thread(target=self._read, name="processor program")
        self._reader.start()

    def processed(self) -> Processed:
        """What it has processed so far."""
        with self._changed:
            return list(self._processed)

    def wait_processed(self, count: int) -> Processed:
        """What it has processed, once that is at least ``count`` events."""
        with self._changed:
            met = self._changed.wait_for(lambda: len(self._processed) >= count or self._has_ended, WAIT_S)
            found = list(self._processed)
        assert met, f"{len(found)} of {count} events after {WAIT_S} s"
        assert len(found) >= count, f"it ended after {len(found)} of {count} events. {self._said()}"
        return found

    def stop(self) -> None:
        """Have it stop in order, and wait until it has ended."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(WAIT_S) == 0, self._said()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            partition_id, _, number = line.decode().strip().partition("\t")
            with self._changed:
                self._processed.append((partition_id, int(number)))
                self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _said(self) -> str:
        self._stderr.seek(0)
        return f"It wrote: {self._stderr.read().decode(errors='replace')[-2000:]}"

    def __enter__(self) -> ProcessorProgram:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is left of it, whatever happened."""
        self._process.kill()
        self._process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._stderr.close()


def check_processors(command: Sequence[str], service: HubService, blob_storage: BlobStorage) -> None:
    """Two processors share the partitions; one that is started later goes on behind their checkpoints.

    command: the program, to which the connection string, the hub, the storage and the container are added.
    """
    log, container = _Log(service), blob_storage.create_container()
    started = [*command, service.connection_string, log.hub, blob_storage.connection_string(), container]
    with ContainerClient.from_connection_string(blob_storage.connection_string(), container) as blobs:
        with ProcessorProgram(started) as first, ProcessorProgram(started) as second:
            _wait(lambda: _partitions_by_owner(blobs) == [2, 2], "the store has two owners of two")
            # Who has lost a partition reads on until its new owner has come.
            _wait(lambda: _share_evenly(first, second, log.send()), "each reads its two partitions")
            assert {*first.processed(), *second.processed()} == log.all()
            first.stop()
            second.stop()
        sent = log.send()
        with ProcessorProgram(started) as third:
            later = third.wait_processed(len(sent))
            third.stop()
        # A partition is read in order: what was processed again would have come before what is new.
        assert sorted(later, key=itemgetter(0)) == sent
        assert _checkpoints(blobs) == dict.fromkeys(_PARTITIONS, log.sent - 1)


def check_throttled_producer(command: Sequence[str], run_s_max: float) -> None:
    """Over the throughput units the SDK is told so, waits, and loses and doubles nothing.

    command: the program, to which the connection string, the hub, the count and the size of events are added.
    """
    count, size = 3, 600_000

    async def set_units(server: TidegateServer, units: int | None) -> None:
        await server.broker.set_throughput_units(units)

    async def refusals(server: TidegateServer) -> int:
        return server.broker.statistics().throttled_requests

    with HubService() as service:
        hub = service.create_hub(partition_count=1)
        service.call(lambda server: set_units(server, 1))
        run = subprocess.run(
            [*command, service.connection_string, hub, str(count), str(size)],
            capture_output=True,
            timeout=run_s_max,
        )
        assert run.returncode == 0, run.stderr.decode()
        assert service.call(refusals) > 0
        service.call(lambda server: set_units(server, None))
        events = read(target_of(service, "plain").consumer(hub), count)
        assert bodies(events) == [chr(number) * size for number in range(count)]


class _Log:
    """A hub, and what was sent to it."""

    def __init__(self, service: HubService) -> None:
        self._connection_string = service.connection_string
        self.hub = service.create_hub(partition_count=len(_PARTITIONS))
        self.sent = 0
        """Events in each partition."""

    def send(self) -> Processed:
        """Send a few events more to each partition; returns them, sorted."""
        asyncio.run(self._send())
        self.sent += _EACH
        return sorted(event for event in self.all() if event[1] >= self.sent - _EACH)

    def all(self) -> set[tuple[str, int]]:
        """Everything that was sent."""
        return {(partition, number) for partition in _PARTITIONS for number in range(self.sent)}

    async def _send(self) -> None:
        async with EventHubProducer.from_connection_string(self._connection_string, self.hub) as producer:
            for partition_id in _PARTITIONS:
                await producer.send([EventData(b"x")] * _EACH, partition_id=partition_id)


def _share_evenly(first: ProcessorProgram, second: ProcessorProgram, sent: Processed) -> bool:
    """Whether ``sent``, once all of it is processed, was processed once each, two partitions by either."""

    def of_sent(program: ProcessorProgram) -> Processed:
        return [event for event in program.processed() if event in sent]

    _wait(lambda: {*of_sent(first), *of_sent(second)} >= set(sent), "the two have processed everything")
    by_first, by_second = of_sent(first), of_sent(second)
    partitions = [len({partition_id for partition_id, _ in events}) for events in (by_first, by_second)]
    return sorted(by_first + by_second) == sent and partitions == [2, 2]


def _partitions_by_owner(blobs: ContainerClient) -> list[int]:
    """How many partitions each owner has, by the store."""
    owners = Counter(
        blob.metadata.get("ownerid", "")
        for blob in blobs.list_blobs(include=["metadata"])
        if "/ownership/" in blob.name
    )
    del owners[""]
    return sorted(owners.values())


def _checkpoints(blobs: ContainerClient) -> dict[str, int]:
    """Partition id → the sequence number of its checkpoint, by the store."""
    return {
        blob.name.rpartition("/")[2]: int(blob.metadata["sequencenumber"])
        for blob in blobs.list_blobs(include=["metadata"])
        if "/checkpoint/" in blob.name
    }


def _wait(is_met: Callable[[], bool], what: str) -> None:
    """Wait for what another process does; it can only be asked for."""
    deadline = time.monotonic() + WAIT_S
    while not is_met():
        assert time.monotonic() < deadline, f"not after {WAIT_S} s: {what}"
        time.sleep(0.05)
