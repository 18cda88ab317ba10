"""Measure every part, and print rates, CPU per event, ratios to baselines of the same run, and the targets.

    make bench                               all of it, on a quiet machine in less than three hours
    make bench ARGS=--quick                  fewer events and one round, in less than 20 minutes
    make bench ARGS="--only spark"           one part; repeatable, and --list says which there are
    make bench ARGS=--page                   renew docs/benchmarks.md and its pictures, too

Each part is a process of its own, and what it found is kept in build/bench: a run that was cut off goes on
with the parts that are missing. What was measured of another commit, or before a change, counts as missing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.support.servers import ServerMissingError

from bench.measure import Figure, Found, Measurement
from bench.parts import PARTS, Load, progress
from bench.report import as_json, machine, print_all

_ROOT: Final = Path(__file__).parents[1]
_KEPT: Final = _ROOT / "build" / "bench"
_QUICK_SHARE: Final = 4


def main() -> None:
    """Parse the options, measure what is missing, print everything; exit code 1 where a part failed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    names = [part.name for part in PARTS]
    parser.add_argument("--list", action="store_true", help="say which parts there are, and end")
    parser.add_argument("--only", action="append", choices=names, metavar="PART", help="repeatable")
    parser.add_argument("--quick", action="store_true", help="fewer events, one round instead of three")
    parser.add_argument("--again", action="store_true", help="measure what has been measured, too")
    parser.add_argument("--events", type=int, default=200_000, help="of a part but Spark's")
    parser.add_argument("--event-bytes", type=int, default=1024, help="of each event's body")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures there, too ('-': stdout)"
    )
    parser.add_argument("--page", action="store_true", help="write docs/benchmarks.md, too")
    parser.add_argument("--part", choices=names, help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.list:
        for part in PARTS:
            print(f"{part.name:15} {part.what}")
        return
    events = given.events // _QUICK_SHARE if given.quick else given.events
    load = Load(events - events % 16, given.event_bytes, given.quick)
    if given.part:
        given.into.write_text(json.dumps(_measure(given.part, load)))
        return
    wanted = given.only or names
    failed = [name for name in wanted if not _is_measured(name, load, is_again=given.again)]
    found = {name: _found(name, load) for name in wanted if name not in failed}
    if str(given.json) == "-":
        sys.stdout.write(as_json(found) + "\n")
    else:
        print_all(found)
        if given.json is not None:
            given.json.write_text(as_json(found))
    if given.page:
        from bench.page import write_page  # asks Spark's and the SDK's versions

        for path in write_page(found, rounds=load.rounds):
            progress.print(f"written: {path.relative_to(_ROOT)}")
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}")


def _measure(name: str, load: Load) -> dict[str, Any]:
    """What is kept of a part. In a process of its own, of which Spark's workers are, too."""
    part = next(part for part in PARTS if part.name == name)
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as directory:
        found = part.measure(Path(directory), load)
    return {"machine": machine(), "found": asdict(found)}


def _is_measured(name: str, load: Load, *, is_again: bool) -> bool:
    """Measure a part, unless it has been; False if that failed."""
    file = _file(name, load)
    if file.exists() and not is_again:
        progress.print(f"{name}: measured before")
        return True
    progress.print(f"{name}: measuring …")
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    events = load.events * (_QUICK_SHARE if load.is_quick else 1)
    words = [f"--part={name}", f"--into={part}", f"--events={events}", f"--event-bytes={load.event_bytes}"]
    words += ["--quick"] if load.is_quick else []
    if subprocess.run([sys.executable, "-m", "bench", *words], cwd=_ROOT).returncode:
        progress.print(f"{name}: failed")
        return False
    part.replace(file)
    return True


def _found(name: str, load: Load) -> Found:
    kept = json.loads(_file(name, load).read_bytes())["found"]
    return Found(
        [Measurement(**each) for each in kept["baselines"]],
        [Measurement(**each) for each in kept["stages"]],
        [Figure(**each) for each in kept["figures"]],
    )


def _file(name: str, load: Load) -> Path:
    quick = "-quick" if load.is_quick else ""
    return _KEPT / f"{name}-{load.events}x{load.event_bytes}{quick}-{_tree()}.json"


@cache
def _tree() -> str:
    """A name for what the checkout held when this began."""
    words = (["rev-parse", "HEAD"], ["diff", "HEAD"])
    found = [subprocess.run(["git", *each], cwd=_ROOT, capture_output=True).stdout for each in words]
    return hashlib.sha256(b"".join(found)).hexdigest()[:12]


if __name__ == "__main__":
    try:
        main()
    except ServerMissingError as error:
        sys.exit(f"This machine lacks something: {error}")
