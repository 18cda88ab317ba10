"""Latency of small keyed appends: single events at a steady rate, each to a partition chosen at random.

Run as ``python -m bench.keyed_appends [--partitions N,N] [--rate N] [--seconds N] [--against DIR]``; prints a
line per number of partitions. With ``--against`` (a RAM disk, say) both directories take turns, and the line
has their ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

from tidegate.storage.log_manager import LogManager
from tidegate.storage.record import AppendResult

_EVENT_BYTES = 200
_LEFT_OUT_S = 1.0
"""The first appends begin segments."""
_TURN_S = 0.001


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
    latencies.sort()
    return latencies[len(latencies) // 2] * 1e3, latencies[len(latencies) * 99 // 100] * 1e3


def _run(parent: Path | None, partitions: int, options: argparse.Namespace) -> tuple[float, float]:
    with tempfile.TemporaryDirectory(dir=parent or Path.cwd()) as directory:
        return asyncio.run(
            _measure(Path(directory), partitions=partitions, rate=options.rate, seconds=options.seconds)
        )


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
    parser.add_argument("--against", type=Path, help="another disk, to compare")
    options = parser.parse_args()
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
