"""Tries each version of PySpark in an environment of its own: ``make spark-matrix``.

    python -m tests.spark.matrix [--json] [--version 4.2 …] [--page FILE]

Each environment is below ``build/``: this version of PySpark and what Spark Connect needs, and for the rest
this environment. Prints a table of versions, features and results; ends with 1 if a feature failed, not if it
was refused by name. ``--page`` writes the table, with today's date, into a page of the documentation.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.spark.matrix.program import FEATURES
from tools.floors import ROOT

VERSIONS: Final = ("4.0", "4.1", "4.2", "4.3")
_BUILD: Final = ROOT / "build/spark-matrix"
_TIMEOUT_S: Final = 1200
_CONNECT: Final = " with Connect"
_BEGIN, _END = "<!-- spark-matrix begins -->", "<!-- spark-matrix ends -->"

Results = dict[str, dict[str, str]]
"""Column → feature → result."""


def main() -> int:
    """Install, run and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.matrix", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--version", action="append", metavar="X.Y", help="only this one; may be repeated")
    parser.add_argument("--page", type=Path, help="a page whose table is to be renewed")
    given = parser.parse_args()
    results: Results = {}
    for version in given.version or VERSIONS:
        python, exact = install(version)
        for arguments, suffix in (((), ""), (("--connect",), _CONNECT)):
            say(f"PySpark {exact}{suffix} …")
            results[f"{exact}{suffix}"] = run(python, arguments)
    table = table_of(results)
    print(json.dumps(results, indent=2) if given.json else table)
    if given.page:
        renew(given.page, table)
    return any(result.startswith("failed") for column in results.values() for result in column.values())


def install(version: str) -> tuple[Path, str]:
    """The Python of this version's environment, and the version with its third number."""
    place = _BUILD / version
    python = place / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    (packages,) = place.glob("lib/*/site-packages")
    # All other packages are those of this environment, at the locked versions.
    shared = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (packages / "locked.pth").write_text(shared)
    say(f"Installing PySpark {version} …")
    words = (
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        f"pyspark[connect]=={version}.*",
    )
    subprocess.run([str(python), *words], check=True)
    program = "import pyspark; print(pyspark.__version__)"
    exact = subprocess.run([str(python), "-c", program], check=True, capture_output=True, text=True).stdout
    return python, exact.strip()


def run(python: Path, arguments: Sequence[str]) -> dict[str, str]:
    """Each feature's result."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    words = [str(python), "-m", "tests.spark.matrix.program", *arguments]
    _BUILD.mkdir(parents=True, exist_ok=True)
    log = _BUILD / f"{python.parents[1].name}{'-connect' if arguments else ''}.log"
    with log.open("w") as errors:
        done = subprocess.run(
            words,
            cwd=ROOT,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            timeout=_TIMEOUT_S,
        )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = {line["feature"]: line["result"] for line in lines}
    missing = f"failed: the program ended with {done.returncode}: see {log.relative_to(ROOT)}"
    return {feature: found.get(feature, missing) for feature in FEATURES}


def table_of(results: Results, features: Iterable[str] = FEATURES) -> str:
    """The results as a table in Markdown; what is refused or failed has a note below it."""
    notes: list[str] = []

    def cell(result: str) -> str:
        kind, _, words = result.partition(": ")
        if not words:
            return kind
        if words not in notes:
            notes.append(words)
        return f"{kind} ({notes.index(words) + 1})"

    rows = [f"| | {' | '.join(results)} |", "|---" * (len(results) + 1) + "|"]
    for feature in features:
        cells = (cell(column[feature]) for column in results.values())
        rows.append(f"| {feature} | {' | '.join(cells)} |")
    return "\n".join(
        [*rows, *(["", *(f"{n}. {words}" for n, words in enumerate(notes, 1))] if notes else [])]
    )


def renew(page: Path, table: str) -> None:
    """Replace the table of a page."""
    text = page.read_text(encoding="utf-8")
    before, after = text.partition(_BEGIN)[0], text.partition(_END)[2]
    today = datetime.now(UTC).date().isoformat()  # noqa: TID251
    inner = f"{_BEGIN}\n`make spark-matrix` of {today}:\n\n{table}\n{_END}"
    page.write_text(f"{before}{inner}{after}", encoding="utf-8")


def say(text: str) -> None:
    """Show progress."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
