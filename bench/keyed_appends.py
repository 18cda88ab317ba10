"""Latency of small keyed events: single events at a steady rate, each to a partition that its key chooses.

Run as ``python -m bench.keyed_appends [--service] [--partitions N,N] [--rate N] [--seconds N]
[--against DIR]``; prints a line per number of partitions. Without ``--service``, events are appended to the
log alone; with it, a process publishes them to a real service, and a host in this one handles them. With
``--against`` (a RAM disk, say) both directories take turns, and the line has their ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tidegate.client import EventHubProducer
from tidegate.model.events import EventData, ReceivedEvent
from tidegate.processor import EventProcessorHost, MemoryStore, PartitionContext
from tidegate.storage.log_manager import LogManager
from tidegate.storage.record import AppendResult
from tidegate.testing.hub import HubProcess
from tidegate.transport.clock import SystemClock

_EVENT_BYTES = 200
_LEFT_OUT_S = 1.0
"""The first appends begin segments."""
_TURN_S = 0.001
_KEYS = 20_000
_HUB = "bench"
_DUE = struct.Struct("<d")
_FIRST, _LEFT_OUT = 0.0, -1.0
"""Instead of the time at which an event was due."""


async def _measure(directory: Path, *, partitions: int, rate: int, seconds: float) -> tuple[float, float]:
    """p50 and p99 in milliseconds, from the time at which each append was due."""
    manager = await LogManager.open(directory)
    await manager.create_logs("bench", partitions)
    logs = [manager.open_log("bench", str(number)) for number in range(partitions)]
    latencies: list[float] = []
    payload = bytes(_EVENT_BYTES)
    chosen = random.Random(0)
    for log in logs:
        await log.append_nowait(payload, [_EVENT_BYTES], enqueued_time_ms=0)
    started = time.perf_counter()

    def note(due: float, future: asyncio.Future[AppendResult]) -> None:
        future.result()
        if due > started + _LEFT_OUT_S:
            latencies.append(time.perf_counter() - due)

    sent = 0
    while (now := time.perf_counter()) < started + seconds:
        while sent < (now - started) * rate:
            due = started + sent / rate
            sent += 1
            future = chosen.choice(logs).append_nowait(payload, [_EVENT_BYTES], enqueued_time_ms=sent)
            future.add_done_callback(partial(note, due))
        await asyncio.sleep(_TURN_S)
    await logs[0].producer_state(0)  # after all that was queued
    await manager.close()
    return _percentiles(latencies)


async def _handle(
    connection_string: str, *, partitions: int, rate: int, seconds: float
) -> tuple[float, float]:
    """As ``_measure``, to the call of the handler."""
    latencies: list[float] = []
    started: set[str] = set()
    all_started, all_handled = asyncio.Event(), asyncio.Event()
    left = int(rate * seconds)

    async def handle(context: PartitionContext, batch: Sequence[ReceivedEvent]) -> None:
        nonlocal left
        now = time.monotonic()
        for event in batch:
            (due,) = _DUE.unpack_from(event.body)
            if due == _FIRST:
                started.add(context.partition_id)
                if len(started) == partitions:
                    all_started.set()
                continue
            left -= 1
            if due != _LEFT_OUT:
                latencies.append(now - due)
        if left == 0:
            all_handled.set()

    host = EventProcessorHost("bench", _HUB, "$Default", connection_string, MemoryStore(SystemClock()))
    await host.register(handle)
    words = ["-m", "bench.keyed_appends", "--publish", f"--partitions={partitions}"]
    publisher = await asyncio.create_subprocess_exec(
        sys.executable, *words, f"--rate={rate}", f"--seconds={seconds}", stdin=asyncio.subprocess.PIPE
    )
    assert publisher.stdin is not None
    publisher.stdin.write(f"{connection_string}\n".encode())
    await all_started.wait()
    publisher.stdin.close()
    await all_handled.wait()
    await publisher.wait()
    await host.unregister()
    return _percentiles(latencies)


async def _publish(connection_string: str, *, partitions: int, rate: int, seconds: float) -> None:
    """One event to each partition, then, when standard input ends, those that are measured."""
    keys = [f"device-{number}" for number in range(_KEYS)]
    chosen = random.Random(0)
    count = int(rate * seconds)
    async with EventHubProducer.from_connection_string(connection_string, _HUB) as producer:
        for number in range(partitions):
            await producer.enqueue(EventData(_DUE.pack(_FIRST).ljust(_EVENT_BYTES)), partition_id=str(number))
        await producer.flush()
        await asyncio.to_thread(sys.stdin.read)
        begun = time.monotonic()
        sent = 0
        while sent < count:
            until = min(count, int((time.monotonic() - begun) * rate))
            while sent < until:
                due = begun + sent / rate
                body = _DUE.pack(due if due > begun + _LEFT_OUT_S else _LEFT_OUT).ljust(_EVENT_BYTES)
                producer.enqueue_nowait(EventData(body), partition_key=chosen.choice(keys))
                sent += 1
            await asyncio.sleep(_TURN_S)


def _percentiles(latencies: list[float]) -> tuple[float, float]:
    latencies.sort()
    return latencies[len(latencies) // 2] * 1e3, latencies[len(latencies) * 99 // 100] * 1e3


def measure_service(parent: Path, *, partitions: int, rate: int, seconds: float) -> tuple[float, float]:
    """p50 and p99 in milliseconds from publish to handler, of a service whose data is in ``parent``."""
    with tempfile.TemporaryDirectory(dir=parent) as name, HubProcess(Path(name)) as service:
        service.create_hub(_HUB, partition_count=partitions)
        return asyncio.run(
            _handle(service.connection_string, partitions=partitions, rate=rate, seconds=seconds)
        )


def _run(parent: Path | None, partitions: int, options: argparse.Namespace) -> tuple[float, float]:
    load = {"partitions": partitions, "rate": options.rate, "seconds": options.seconds}
    if options.service:
        return measure_service(parent or Path.cwd(), **load)
    with tempfile.TemporaryDirectory(dir=parent or Path.cwd()) as name:
        return asyncio.run(_measure(Path(name), **load))


def main() -> None:
    """Parse the options, and measure each number of partitions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", default="4,32,256,1024")
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--directory", type=Path, help="on the disk to measure; default: the current directory"
    )
    parser.add_argument("--service", action="store_true", help="publish to a service, and handle")
    parser.add_argument("--publish", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--against", type=Path, help="another disk, to compare")
    options = parser.parse_args()
    if options.publish:
        load = {"partitions": int(options.partitions), "rate": options.rate, "seconds": options.seconds}
        asyncio.run(_publish(sys.stdin.readline().strip(), **load))
        return
    for partitions in map(int, options.partitions.split(",")):
        places = [options.directory] + ([options.against] if options.against else [])
        runs: list[list[tuple[float, float]]] = [[] for _ in places]
        for _ in range(options.repeats):
            for place, found in zip(places, runs, strict=True):
                found.append(_run(place, partitions, options))
        medians = [[statistics.median(each[which] for each in found) for which in (0, 1)] for found in runs]
        line = f"partitions={partitions} rate={options.rate}: " + " | ".join(
            f"p50 {p50:.2f} ms ({min(found)[0]:.2f}-{max(found)[0]:.2f}), p99 {p99:.2f} ms"
            for (p50, p99), found in zip(medians, runs, strict=True)
        )
        if options.against:
            line += " | ratio p50 {:.2f}, p99 {:.2f}".format(
                *(disk / memory for disk, memory in zip(*medians, strict=True))
            )
        print(line, flush=True)


if __name__ == "__main__":
    main()
