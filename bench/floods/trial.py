"""One flood against one service: the canary by itself, under the flood, and afterwards; then a stop under it.

canary    |------ base ------|---- flood ----|------ settle ------|
attack                       |---------------|                         |---- again ----
service   |------------------------------------------------------------|--- SIGTERM ---|
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from bench.floods.attack import HUB, PARTITIONS, Flood
from bench.floods.canary import CANARY_HUB, CANARY_PARTITIONS, CONNECTION_STRING_VARIABLE, TIMEOUT_S, Sample
from bench.floods.service import FloodedService
from bench.measure import process_cpu_s
from tidegate.client import EventHubConsumer, EventHubProducer, RetryPolicy
from tidegate.model.errors import TidegateError
from tidegate.model.events import EventData
from tidegate.model.position import EventPosition

KINDS: Final = ("send", "append", "health", "connect")
_SAMPLE_S: Final = 0.05
_RECOVERY_S: Final = 2.0
"""After a flood; from then on the service must serve as before, and each partition take an event."""
_ATTACK_OVERTIME_S: Final = 20.0
_READ_TIMEOUT_S: Final = 20.0
_EVENT_BYTES: Final = 16_384


@dataclass(frozen=True, slots=True)
class Timing:
    """How long each part of a trial takes, and how large the flood is."""

    base_s: float = 4.0
    flood_s: float = 8.0
    settle_s: float = 10.0
    scale: float = 1.0
    """Of the numbers of connections and the like; tests take less than 1."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What the canary noticed in a part of a trial, by kind."""

    p50_ms: dict[str, float]
    p99_ms: dict[str, float]
    failed: dict[str, int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one flood."""

    flood: str
    base: Phase
    under: Phase
    after: Phase
    base_mb: float
    peak_mb: float
    after_mb: float
    cpu: float
    """Processors that the service kept busy under it."""
    tally: dict[str, int]
    """What came back to the attackers."""
    acknowledged: int
    lost: int | None
    """Of the events acknowledged to the canary, those that could not be read; None: nothing could."""
    is_alive: bool
    """Whether the process was still there afterwards."""
    stop_begins_s: float | None
    stop_ends_s: float | None
    """Seconds after SIGTERM, under the flood again; None: never."""


@dataclass(slots=True)
class _Watch:
    """Memory and processor time of a service, looked at by a thread."""

    service: FloodedService
    peak_mb: float = 0.0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    is_over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Look until it is over, or the service is."""
        started, before_s = time.monotonic(), process_cpu_s(self.service.process_id)
        while self.service.is_running and not self.is_over.wait(_SAMPLE_S):
            self.peak_mb = max(self.peak_mb, self.service.resident_mb())
            self.wall_s = time.monotonic() - started
            self.cpu_s = process_cpu_s(self.service.process_id) - before_s


def run_trial(flood: Flood, tree: Path, timing: Timing) -> Outcome:
    """Start a service from ``tree``, flood it, and say what came of it. Takes about half a minute."""
    with tempfile.TemporaryDirectory(prefix="tidegate-floods-") as name:
        directory = Path(name)
        with FloodedService(tree, directory, flood) as service:
            if flood.filled_mb:
                asyncio.run(_fill(service.connection_string, round(flood.filled_mb * timing.scale) or 1))
            return _run(flood, service, directory, timing)


def _run(flood: Flood, service: FloodedService, directory: Path, timing: Timing) -> Outcome:
    samples_file = directory / "samples"
    with _canary(service, samples_file):
        base_began = time.monotonic()
        time.sleep(timing.base_s)
        base_mb = service.resident_mb()
        with _watching(service) as watch, _attacking(flood, service, timing) as (began, attack):
            ended = began + timing.flood_s
            tally = _tally(attack, until=ended + _ATTACK_OVERTIME_S)
        time.sleep(max(0.0, ended + timing.settle_s - time.monotonic()))
        after_mb, is_alive = service.resident_mb(), service.is_running
    samples = [Sample(*json.loads(line)) for line in samples_file.read_text().splitlines()]
    acknowledged = {sample.number for sample in samples if sample.number >= 0}
    try:
        lost = len(acknowledged - asyncio.run(_stored(service.connection_string)))
    except (TidegateError, TimeoutError):
        lost = None
    stop_begins_s = stop_ends_s = None
    if service.is_running:
        with _attacking(flood, service, timing):
            time.sleep(min(2.0, timing.flood_s / 2))
            stop_begins_s, stop_ends_s = service.stop()
    return Outcome(
        flood=flood.name,
        base=_phase(samples, base_began, began),
        under=_phase(samples, began, ended),
        after=_phase(samples, ended + min(_RECOVERY_S, timing.settle_s / 2), math.inf),
        base_mb=base_mb,
        peak_mb=watch.peak_mb,
        after_mb=after_mb,
        cpu=watch.cpu_s / max(watch.wall_s, _SAMPLE_S),
        tally=tally,
        acknowledged=len(acknowledged),
        lost=lost,
        is_alive=is_alive,
        stop_begins_s=stop_begins_s,
        stop_ends_s=stop_ends_s,
    )


@contextmanager
def _canary(service: FloodedService, samples_file: Path) -> Iterator[None]:
    """The quiet user, whose samples are in the file afterwards."""
    command = [sys.executable, "-m", "bench.floods.canary", service.target.http, str(samples_file)]
    environment = os.environ | {CONNECTION_STRING_VARIABLE: service.connection_string}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield
            process.terminate()
            process.wait(TIMEOUT_S)
        finally:
            process.kill()


@contextmanager
def _attacking(
    flood: Flood, service: FloodedService, timing: Timing
) -> Iterator[tuple[float, subprocess.Popen[bytes]]]:
    """A process that attacks; yields when it began. It is ended on exit."""
    command = [sys.executable, "-m", "bench.floods.attack"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            order = {"flood": flood.name, "seconds": timing.flood_s, "scale": timing.scale}
            process.stdin.write(json.dumps(order | {"target": asdict(service.target)}).encode())
            process.stdin.close()
            yield float(process.stdout.readline()), process
        finally:
            process.kill()


def _tally(attack: subprocess.Popen[bytes], *, until: float) -> dict[str, int]:
    """What the attackers counted, once they are done; empty where they do not end in time."""
    timer = threading.Timer(until - time.monotonic(), attack.kill)
    timer.start()
    assert attack.stdout is not None
    text = attack.stdout.readline()
    timer.cancel()
    tally: dict[str, int] = json.loads(text or b"{}")
    return tally


@contextmanager
def _watching(service: FloodedService) -> Iterator[_Watch]:
    watch = _Watch(service)
    thread = threading.Thread(target=watch.run)
    thread.start()
    try:
        yield watch
    finally:
        watch.is_over.set()
        thread.join()


def _phase(samples: Sequence[Sample], start: float, until: float) -> Phase:
    p50_ms, p99_ms, failed = {}, {}, {}
    for kind in KINDS:
        found = [sample for sample in samples if sample.kind == kind and start <= sample.due < until]
        times_ms = sorted(sample.took_s * 1e3 for sample in found) or [TIMEOUT_S * 1e3]
        p50_ms[kind], p99_ms[kind] = times_ms[len(times_ms) // 2], times_ms[int(len(times_ms) * 0.99)]
        failed[kind] = sum(bool(sample.error) for sample in found) if found else 1
    return Phase(p50_ms, p99_ms, failed)


async def _fill(connection_string: str, megabytes: int) -> None:
    async with EventHubProducer.from_connection_string(connection_string, HUB) as producer:
        for number in range(megabytes):
            body = os.urandom(_EVENT_BYTES)
            events = [EventData(body) for _ in range(10**6 // _EVENT_BYTES)]
            await producer.send(events, partition_id=str(number % PARTITIONS))


async def _stored(connection_string: str) -> set[int]:
    """The numbers of the canary's events that can be read."""
    found: set[int] = set()
    async with (
        asyncio.timeout(_READ_TIMEOUT_S),
        EventHubConsumer.from_connection_string(
            connection_string, CANARY_HUB, retry=RetryPolicy(retries_max=2)
        ) as consumer,
    ):
        for partition in range(CANARY_PARTITIONS):
            properties = await consumer.get_partition_properties(str(partition))
            last = properties.last_enqueued_sequence_number
            if properties.is_empty:
                continue
            receiver = await consumer.open_receiver(str(partition), EventPosition.earliest())
            seen = -1
            while seen < last:
                for event in await receiver.receive(1_000, 1.0):
                    found.add(int(event.body))
                    seen = event.sequence_number
            await receiver.close()
    return found
