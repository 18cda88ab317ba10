"""Append throughput of the partition log: fsync before every acknowledgement, many appends in flight.

Run as ``python -m bench.log_append [--partitions N] [--events N] [--batch N]``; prints one line of figures.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from tidegate.storage.log_manager import LogManager
from tidegate.storage.record import AppendResult

_EVENT_BYTES = 1024


async def _measure(directory: Path, *, partitions: int, events: int, batch: int, in_flight: int) -> str:
    manager = await LogManager.open(directory)
    await manager.create_logs("bench", partitions)
    logs = [manager.open_log("bench", str(number)) for number in range(partitions)]
    payload, lengths = bytes(_EVENT_BYTES * batch), [_EVENT_BYTES] * batch
    slots = asyncio.Semaphore(in_flight)

    def release(future: asyncio.Future[AppendResult]) -> None:
        future.result()
        slots.release()

    started, started_cpu = time.perf_counter(), time.process_time()
    for number in range(events // batch):
        await slots.acquire()
        log = logs[number % partitions]
        log.append_nowait(payload, lengths, enqueued_time_ms=number).add_done_callback(release)
    for _ in range(in_flight):
        await slots.acquire()
    append_s, append_cpu_s = time.perf_counter() - started, time.process_time() - started_cpu
    started = time.perf_counter()
    for log in logs:
        start = 0
        while start < log.known_bounds.next_sequence_number:
            start = (await log.read(start, bytes_max=1_000_000))[-1].until_sequence_number
    read_s = time.perf_counter() - started
    await manager.close()
    return (
        f"partitions={partitions} batch={batch} events={events}: "
        f"append {events / append_s:,.0f} events/s, cpu {append_cpu_s / events * 1e6:.2f} us/event; "
        f"read {events / read_s:,.0f} events/s"
    )


def main() -> None:
    """Parse the options and measure once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--in-flight", type=int, default=128)
    parser.add_argument(
        "--directory", type=Path, help="on the disk to measure; default: the current directory"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory or Path.cwd()) as directory:
        print(
            asyncio.run(
                _measure(
                    Path(directory),
                    partitions=options.partitions,
                    events=options.events,
                    batch=options.batch,
                    in_flight=options.in_flight,
                )
            )
        )


if __name__ == "__main__":
    main()
