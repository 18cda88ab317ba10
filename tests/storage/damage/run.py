"""Makes worlds, damages a copy of one for each case, and counts."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.storage.damage.kinds import injure
from tests.storage.damage.oracle import Extent, Oracle, serve
from tests.storage.damage.worlds import PLACES, World, make_world

from tidegate.storage.examination.examiner import examine
from tidegate.storage.files import OsFiles
from tidegate.storage.options import LogOptions
from tidegate.storage.segments.segment_reader import iter_batches


@dataclass(slots=True)
class Outcome:
    """The counts of a run."""

    cases: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    details: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        done = ", ".join(f"{count} {kind}" for kind, count in sorted(self.cases.items()))
        failed = ", ".join(f"{count} {kind}" for kind, count in sorted(self.failures.items()))
        return f"{self.cases.total()} cases: {done}.\nFailures: {failed or 'none'}."


async def run(
    seed: int,
    cases: Iterable[int],
    without: list[str],
    *,
    on_line: Callable[[str], None],
    is_canary: bool = False,
) -> Outcome:
    """Judge cases; each is determined by the seed and its number, but for the times within its world.

    without: defences that are switched off in the process that writes the logs; the caller does so in this
    one. is_canary: end with the first failure.
    """
    outcome = Outcome()
    memory = Path("/dev/shm")  # thousands of syncs that nothing depends on
    where = memory if memory.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="tidegate-damage-", dir=where) as name:
        worlds = [
            await _prepared(Path(name) / each, each == "killed", without) for each in ("killed", "stopped")
        ]
        for case in cases:
            randomness = random.Random(f"{seed} {case}")
            world, oracle = worlds[case % 2]
            scratch = Path(name) / "case"
            shutil.copytree(world.directory, scratch / "damaged")
            injury = injure(scratch / "damaged", world, randomness)
            failures = await oracle.judge(scratch / "damaged", injury, scratch)
            outcome.cases[injury.kind] += 1
            for kind, details in failures:
                outcome.failures[kind] += 1
                line = f"case {case}, {world.directory.parent.name}, {injury}: {kind}: {details}"
                outcome.details.append(line)
                on_line(line)
            shutil.rmtree(scratch)
            if case % 100 == 99:
                on_line(f"{case + 1} cases")
            if is_canary and failures:
                break
    return outcome


async def _prepared(directory: Path, is_killed: bool, without: list[str]) -> tuple[World, Oracle]:
    directory.mkdir()
    world = make_world(directory, is_killed=is_killed, settings=without)
    shutil.copytree(world.directory, directory / "intact")
    extents = {place: _extents(world.directory, place) for place in PLACES}
    intact, _ = await serve(directory / "intact")
    for place, served in intact.items():
        assert served.refusal is None, served.refusal
        missing = set(world.acknowledged[place]) - set(served.events)
        assert all(number < min(served.events, default=0) for number in missing), (place, sorted(missing))
    return world, Oracle(world, intact, extents)


def _extents(directory: Path, place: str) -> dict[int, Extent]:
    found = {}
    files = OsFiles()
    examination = examine(directory / "logs" / place, files=files, options=LogOptions(), is_deep=True)
    for segment in examination.segments:
        file = files.open_readable(segment.path)
        limit = segment.end_position
        for position, header, _ in iter_batches(file, segment.seed, segment.start_position, limit):
            assert header is not None
            for number in range(header.base_sequence_number, header.until_sequence_number):
                path = segment.path.relative_to(directory)
                found[number] = Extent(path, position, position + header.total_length)
        file.close()
    return found
