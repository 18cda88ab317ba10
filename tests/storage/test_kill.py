"""SIGKILL of a process that appends: everything it was told is stored, is stored."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.storage.test_power_loss import read_all

from tidegate.storage.log_manager import LogManager
from tidegate.storage.options import LogOptions

KILLS = 3
_APPENDER = """
import asyncio, os, sys
from pathlib import Path
from tidegate.storage.log_manager import LogManager
from tidegate.storage.options import LogOptions

async def main():
    options = LogOptions(segment_bytes_max=200_000, save_interval_bytes=90_000, journal_bytes=50_000)
    manager = await LogManager.open(Path(sys.argv[1]), options=options)
    await manager.create_logs("hub", 2)
    logs = [manager.open_log("hub", "0"), manager.open_log("hub", "1")]
    number = 0
    while True:
        futures = []
        for log in logs:
            for _ in range(10):
                payload = number.to_bytes(8, "big") * 100
                futures.append((number, log.append_nowait(payload, [400, 400], enqueued_time_ms=1)))
                number += 1
        for position, (sent, future) in enumerate(futures):
            result = await future
            line = f"{position // 10} {result.start_sequence_number} {sent}\\n"
            os.write(1, line.encode())

asyncio.run(main())
"""


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.repeats) for seed in (1, 2))])
@pytest.mark.faults
async def test_acknowledged_events_survive_sigkill(seed: int, tmp_path: Path) -> None:
    """The child writes each acknowledgement to a pipe and is killed after a random number of them, three
    times over.
    """
    print(f"seed {seed}")
    await kill(seed, tmp_path)


async def kill(seed: int, directory: Path) -> int:
    """Kill a child ``KILLS`` times; returns how many batches were acknowledged. Raises AssertionError and
    LogCorruptError."""
    randomness = random.Random(seed)
    count = 0
    for generation in range(KILLS):
        base = {"0": 0, "1": 0}
        if generation:
            base = await _bounds(directory)
        acknowledged = _append_until_killed(directory, randomness.randint(50, 1500))
        await _check(directory, base, acknowledged)
        count += len(acknowledged)
    return count


def _append_until_killed(directory: Path, count: int) -> list[tuple[str, int, int]]:
    """Run the child until it has told of ``count`` appends; returns (partition, start, number) of all it
    told.
    """
    command = [sys.executable, "-c", _APPENDER, str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(count)]
        child.kill()
        lines += child.stdout.read().splitlines()
    told = [line.split() for line in lines]
    return [(partition.decode(), int(start), int(number)) for partition, start, number in told]


async def _bounds(directory: Path) -> dict[str, int]:
    manager = await LogManager.open(directory, options=LogOptions())
    bounds = {
        partition: manager.open_log("hub", partition).view.next_sequence_number for partition in ("0", "1")
    }
    await manager.close()
    return bounds


async def _check(directory: Path, base: dict[str, int], acknowledged: list[tuple[str, int, int]]) -> None:
    manager = await LogManager.open(directory, options=LogOptions())
    for partition in ("0", "1"):
        batches = await read_all(manager.open_log("hub", partition))
        expected = 0
        for batch in batches:
            assert batch.base_sequence_number == expected
            expected = batch.until_sequence_number
        stored = {
            batch.base_sequence_number: int.from_bytes(batch.payload[:8], "big")
            for batch in batches
            if batch.base_sequence_number >= base[partition]
        }
        assert len(set(stored.values())) == len(stored)
        assert sorted(stored.values()) == list(stored.values())
        told = {start: number for name, start, number in acknowledged if name == partition}
        assert told.items() <= stored.items()
    await manager.close()
