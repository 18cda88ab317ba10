"""Logs to damage: written by a process of their own, which is then killed or stopped.

Of each partition it is known what was sent, what was acknowledged under which number, and when.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

from tidegate.broker.catalog import Catalog, EventHubRecord
from tidegate.model.errors import LogFullError
from tidegate.storage.check import check_log_directory
from tidegate.storage.files import OsFiles, WritableFile
from tidegate.storage.log_manager import LogManager
from tidegate.storage.options import LogOptions
from tidegate.storage.record import encode_batch, encode_lengths
from tidegate.storage.segments.segment import SegmentHeader
from tidegate.transport.clock import SystemClock

OPTIONS = LogOptions(segment_bytes_max=8000, index_interval_bytes=1000, journal_bytes=100_000)
PLACES = ("a/0", "a/1", "b/0", "b/1", "c/0", "c/1", "d/0")
"""Busy, idle, busy, one event now and then, empty, one that a repair has left with a gap, and one on a disk
that refuses writes after it has taken them."""
HUBS = {"a": 2, "b": 2, "c": 2, "d": 1}
"""The number of partitions of each."""
_RUN_S = 2.3


@dataclass(slots=True)
class World:
    """A data directory, and what is known about it."""

    directory: Path
    is_killed: bool
    acknowledged: dict[str, dict[int, tuple[int, float]]] = field(default_factory=dict)
    """By place and number: which event it was, and when it was acknowledged (``time.monotonic``)."""
    settings: dict[str, int] = field(default_factory=dict)
    """By hub: which change of it was acknowledged last."""
    ended_at: float = 0.0
    older: list[Path] = field(default_factory=list)
    """Copies of the directory as it was before."""
    refused: list[tuple[Path, int, bytes]] = field(default_factory=list)
    """Writes that the disk refused and had taken: file, position and bytes."""

    def is_certain(self, place: str, number: int) -> bool:
        """Whether the event was acknowledged more than a second before the kill, or before the stop."""
        return not self.is_killed or self.acknowledged[place][number][1] < self.ended_at - 1.0


@cache
def event(place: str, name: int) -> bytes:
    """The event of a place with this name; no two are the same.

    Some hold what looks like a batch of the log that has just their number: a log sent as an event.
    """
    randomness = random.Random(f"{place} {name}")
    if place == "d/0":
        return f"d/0 {name};".encode().ljust(100, b".")
    start = f"{place} {name};".encode()
    if name % 3:
        return start + randomness.randbytes(randomness.randrange(20, 300))
    forged = b"FORGED"
    header = encode_batch(
        forged,
        encode_lengths(len(forged), [len(forged)]),
        1,
        seed=SegmentHeader(randomness.randbytes(16), 0, 1, 0).seed,
        chain=randomness.randrange(2**32),
        base_sequence_number=name,
        enqueued_time_ms=name,
        durable_position=0,
        producer=None,
    )
    return start + header + forged + randomness.randbytes(30)


def make_world(directory: Path, *, is_killed: bool, settings: list[str]) -> World:
    """Write logs into ``directory / "world"``. settings: defences that are switched off, for canaries."""
    world = World(directory / "world", is_killed, {place: {} for place in PLACES})
    command = [sys.executable, "-m", "tests.storage.damage.worlds", str(world.directory), *settings]
    acknowledgements = directory / "acknowledgements"
    with (
        acknowledgements.open("wb") as output,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output) as child,
    ):
        assert child.stdin is not None
        while b"begun" not in acknowledgements.read_bytes():
            assert child.poll() is None
            time.sleep(0.01)
        # The age of an acknowledgement is what this is about.
        begun = time.monotonic()
        for number in range(3):
            time.sleep(max(0.0, begun + _RUN_S * (number + 1) / 4 - time.monotonic()))
            world.older.append(directory / f"older{number}")
            _copy(world.directory, world.older[-1])
        time.sleep(max(0.0, begun + _RUN_S - time.monotonic()))
        if is_killed:
            world.ended_at = time.monotonic()
            child.kill()
        else:
            child.stdin.close()
    lines = acknowledgements.read_bytes().splitlines()
    for line in lines:
        words = line.decode().split()
        if words[:1] == ["refused"] and len(words) == 4:
            path = Path(words[1]).relative_to(world.directory)
            world.refused.append((path, int(words[2]), bytes.fromhex(words[3])))
        elif words[:1] == ["changed"] and len(words) == 4:
            world.settings[words[1]] = int(words[2])
        elif len(words) == 4:  # the last line may be cut short by the kill
            place, number, name, at = words[0], int(words[1]), int(words[2]), float(words[3])
            world.acknowledged[place][number] = (name, at)
    (world.directory / "lock").unlink()
    return world


def _copy(source: Path, target: Path) -> None:
    """Copy a directory that is in use; what disappears meanwhile is left out."""
    for path in sorted(source.rglob("*")):
        if path.is_file():
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            try:
                shutil.copy(path, copy)
            except FileNotFoundError:
                continue


class _RefusingFiles(OsFiles):
    """A disk of hub d that now and then takes a write, and then says that there is no space for it."""

    def __init__(self) -> None:
        self.is_refusing = False

    def create(self, path: Path) -> WritableFile:
        return self._wrapped(path, super().create(path))

    def open_writable(self, path: Path) -> WritableFile:
        return self._wrapped(path, super().open_writable(path))

    def _wrapped(self, path: Path, file: WritableFile) -> WritableFile:
        is_wrapped = path.suffix == ".log" and path.parts[-3].startswith("d")
        return cast(WritableFile, _RefusingFile(self, path, file)) if is_wrapped else file


class _RefusingFile:
    def __init__(self, files: _RefusingFiles, path: Path, file: WritableFile) -> None:
        self._files = files
        self._path = path
        self._file = file

    def write_at(self, buffers: Sequence[bytes], position: int) -> int:
        written = self._file.write_at(buffers, position)
        if self._files.is_refusing:
            os.write(1, f"refused {self._path} {position} {b''.join(buffers).hex()}\n".encode())
            raise OSError(errno.ENOSPC, "no space left on device")
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _Appender:
    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self._names: dict[str, int] = {}

    async def append(self, place: str, count: int = 1) -> None:
        """Append events in one batch, whose names are the numbers that they are expected to get."""
        log = self._manager.open_log(*place.split("/"))
        name = max(self._names.get(place, 0), log.view.next_sequence_number)
        self._names[place] = name + count
        events = [event(place, number) for number in range(name, name + count)]
        result = await log.append_nowait(b"".join(events), [*map(len, events)], enqueued_time_ms=name)
        at = time.monotonic()
        lines = [
            f"{place} {result.start_sequence_number + each} {name + each} {at}\n" for each in range(count)
        ]
        os.write(1, "".join(lines).encode())


class _Settings:
    """Changes hubs in the catalog: the number of the last change stands where their creation would."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._number = max((hub.created_at_ms for hub in catalog.event_hubs.values()), default=0)

    async def change(self, hub: str) -> None:
        self._number += 1
        await self._catalog.put_event_hub(
            EventHubRecord(
                hub_id=hub,
                name=hub,
                partition_count=HUBS[hub],
                retention_hours=1,
                created_at_ms=self._number,
            )
        )
        os.write(1, f"changed {hub} {self._number} .\n".encode())


async def _prepare(directory: Path) -> None:
    """Logs that were stopped and started before, one of them with a gap."""
    manager = await LogManager.open(directory, options=OPTIONS)
    settings = _Settings(await Catalog.open(manager.control, SystemClock()))
    for hub, partition_count in HUBS.items():
        await manager.create_logs(hub, partition_count)
        await settings.change(hub)
    appender = _Appender(manager)
    for place in ("a/0", "a/1", "b/1"):
        for _ in range(20):
            await appender.append(place)
    log = manager.open_log("c", "1")
    for number in range(10):
        await log.append_nowait(b"x" * 500, [500], enqueued_time_ms=number)
    await manager.close()
    for path in (directory / "logs/c/1").glob("*.log"):
        path.write_bytes(path.read_bytes()[:1000])
    assert check_log_directory(directory, repair=True).is_repaired


async def _work(directory: Path) -> None:
    await _prepare(directory)
    files = _RefusingFiles()
    manager = await LogManager.open(directory, options=OPTIONS, files=files)
    settings = _Settings(await Catalog.open(manager.control, SystemClock()))
    appender = _Appender(manager)
    for _ in range(10):
        await appender.append("c/1")
    for turn in range(40):
        files.is_refusing = turn % 4 == 2
        with contextlib.suppress(LogFullError):
            await appender.append("d/0")
    files.is_refusing = False
    await appender.append("d/0")
    for _ in range(30):
        await appender.append("a/1", 2)
    await manager.open_log("a", "0").apply_retention(before_ms=10, bytes_max=None)
    os.write(1, b"begun\n")
    is_ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, is_ended.set)
    turn = 0
    while not is_ended.is_set():
        turn += 1
        await asyncio.gather(*(appender.append(place, turn % 3 + 1) for place in ("a/0", "b/0", "a/0")))
        if turn % 15 == 1:
            await appender.append("b/1")
            await settings.change("ab"[turn % 2])
        await asyncio.sleep(0.01)
    await manager.close()


if __name__ == "__main__":
    from tests.storage.damage.canaries import switch_off

    for defence in sys.argv[2:]:
        switch_off(defence)
    asyncio.run(_work(Path(sys.argv[1])))
