"""Damage to one file, or an exchange of two: what a disk, a file system or a person may do."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.storage.damage.worlds import World

from tidegate.storage.control.reading import FILE_NAMES
from tidegate.storage.journal.reading import JOURNAL_NAMES

KINDS = ("bit", "byte", "sector", "cut", "insert", "delete", "swap", "older", "missing", "zeros", "stale")
_SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True)
class Injury:
    """What was done."""

    kind: str
    paths: tuple[Path, ...]
    """The files, relative to the data directory."""
    start: int = 0
    end: int | None = None
    """Bytes of the file as it was that are affected; None: up to its end."""

    def __str__(self) -> str:
        names = " and ".join(map(str, self.paths))
        return f"{self.kind} of {names} at {self.start}..{'' if self.end is None else self.end}"


def injure(directory: Path, world: World, randomness: random.Random) -> Injury:
    """Damage the copy of a world in ``directory``."""
    kind = randomness.choice(KINDS)
    files = sorted(path.relative_to(directory) for path in directory.glob("logs/*/*/*"))
    segments = [path for path in files if path.suffix == ".log"]
    path = randomness.choice(segments if randomness.random() < 0.6 else files)
    if randomness.random() < 0.3:  # the end of a log is where most can go wrong
        parent = randomness.choice(segments).parent
        path = max(each for each in segments if each.parent == parent)
    if randomness.random() < 0.25:
        files = [Path(name) for name in randomness.choice((JOURNAL_NAMES, JOURNAL_NAMES, FILE_NAMES))]
        path = randomness.choice(files)
    if kind == "stale":
        return _stale(directory, world, randomness)
    if kind == "swap":
        return _swap(directory, path, files, randomness)
    if kind == "older":
        return _older(directory, path, world, randomness)
    whole = directory / path
    if kind == "missing":
        whole.unlink()
        return Injury(kind, (path,))
    data = bytearray(whole.read_bytes())
    start, end = _change(kind, data, randomness)
    whole.write_bytes(data)
    return Injury(kind, (path,), start, end)


def _change(kind: str, data: bytearray, randomness: random.Random) -> tuple[int, int | None]:
    """Change the contents of a file; returns which bytes are affected."""
    size = len(data)
    if size == 0:
        return 0, None
    at = randomness.randrange(size)
    if randomness.random() < 0.3:
        at = max(0, size - 1 - randomness.randrange(min(size, 600)))
    length = randomness.choice((1, 2, 40, 300, 3000))
    match kind:
        case "bit":
            data[at] ^= 1 << randomness.randrange(8)
            return at, at + 1
        case "byte":
            data[at] = (data[at] + randomness.randrange(1, 256)) % 256
            return at, at + 1
        case "sector":
            start = at - at % _SECTOR_BYTES
            end = min(start + _SECTOR_BYTES, size)
            other = randomness.randrange(0, size, _SECTOR_BYTES)
            source = (
                bytes(512),
                randomness.randbytes(512),
                bytes(data[other : other + 512]).ljust(512, b"\0"),
            )
            data[start:end] = randomness.choice(source)[: end - start]
            return start, end
        case "cut":
            at = randomness.choice((at, at - at % _SECTOR_BYTES, _batch_start(data, at)))
            del data[at:]
            return at, None
        case "insert":
            at = randomness.choice((at, _batch_start(data, at), size))
            inserted = randomness.choice((randomness.randbytes(length), bytes(data[at : at + length])))
            data[at:at] = inserted
            return at, at + 1
        case "delete":
            begin = randomness.choice((at, _batch_start(data, at)))
            end = min(size, begin + length)
            if randomness.random() < 0.5:
                end = _batch_start(data, min(size, begin + 900))
                end = end if end > begin else size
            del data[begin:end]
            return begin, end
        case _:
            assert kind == "zeros"
            data[:] = bytes(size)
            return 0, None


def _batch_start(data: bytearray, at: int) -> int:
    """The beginning of a batch at or before ``at``."""
    return max(data.rfind(b"TGRB", 0, at + 4), 0)


def _swap(directory: Path, path: Path, files: list[Path], randomness: random.Random) -> Injury:
    """Exchange a file with another of its kind: of the same partition, another one, or another hub."""
    alike = [each for each in files if each != path and (each.suffix == path.suffix or len(files) == 2)]
    same_name = [each for each in alike if each.name == path.name]
    other = randomness.choice(same_name if same_name and randomness.random() < 0.5 else alike)
    one, two = directory / path, directory / other
    kept = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(kept)
    return Injury("swap", (path, other))


def _stale(directory: Path, world: World, randomness: random.Random) -> Injury:
    """Bring a write back that was refused, and whose place then got another one of the same length."""
    path, position, stale = randomness.choice(world.refused)
    data = bytearray((directory / path).read_bytes())
    data[position : position + len(stale)] = stale
    (directory / path).write_bytes(data)
    return Injury("stale", (path,))


def _older(directory: Path, path: Path, world: World, randomness: random.Random) -> Injury:
    """Put an earlier copy of a file back, or of the other copy of the manifest; a file that was not there yet
    goes."""
    source = randomness.choice(world.older) / path
    if source.exists():
        shutil.copy(source, directory / path)
    else:
        (directory / path).unlink()
    return Injury("older", (path,))
