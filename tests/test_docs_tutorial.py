"""The tutorial, followed to the letter: its commands in order, its programs, and what they show."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
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
_DEADLINE_S = 60.0


def _blocks() -> Iterator[tuple[list[str], list[str]]]:
    """Each block of commands, with the lines that the page says they show."""
    text = _PAGE.read_text(encoding="utf-8")
    for commands, shown in re.findall(r"```sh\n(.*?)```\n(?:\n```text\n(.*?)```)?", text, flags=re.DOTALL):
        lines = [line for line in commands.splitlines() if not line.startswith(_NOT_RUN)]
        yield lines, shown.splitlines()


@pytest.mark.programs
@pytest.mark.spark
def test_the_tutorial_works_as_it_stands(tmp_path: Path) -> None:
    """Somebody who types it gets what it says, over an interruption of the host, down to the last row."""
    directory = write_programs(tmp_path)
    with HubService() as service:
        environment = environment_of(service) | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "TIDEGATE_CONFIG_DIR": str(tmp_path / "config"),
        }
        for lines, shown in _blocks():
            found = "".join(_run(line, directory, environment) for line in lines)
            for line in shown:
                words = [re.escape(word) for word in line.split() if word != "…"]
                assert re.search(r"\s+".join(words), found), f"{line!r} is not in:\n{found}"
    rows = _rows(directory)
    assert (len(rows), len(set(rows))) == (_EVENTS, _EVENTS)


def _run(line: str, directory: Path, environment: dict[str, str]) -> str:
    if line.startswith(_RUN_ELSEWHERE) or "readings.db" in line or "readings_by_dataframe.db" in line:
        return ""
    if line == "python readings_host.py":
        for wanted in (1, _EVENTS):
            with _host(directory, environment):
                _wait_for_events(directory, wanted)
        return ""
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


@contextmanager
def _host(directory: Path, environment: dict[str, str]) -> Iterator[None]:
    """The host's program, ended as by Ctrl-C."""
    words = [sys.executable, "readings_host.py"]
    with subprocess.Popen(words, cwd=directory, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            yield
            assert process.poll() is None, "The host ended by itself."
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(_DEADLINE_S)


def _wait_for_events(directory: Path, count: int) -> None:
    """Until as many rows and dead letters are there."""
    deadline = SystemClock().monotonic() + _DEADLINE_S
    while len(_rows(directory)) + _dead_letters(directory) < count:
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
