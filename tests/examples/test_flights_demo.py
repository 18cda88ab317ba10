"""The main job, for real: service, events, Spark with a SIGKILL in mid-batch, redrive. Figures to the row."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from examples.flights.data import FLIGHT_COUNT, UNSCORED_FLIGHT_COUNT
from tests.support.postgresql import PostgresqlServer

from tidegate.sql import Database

COMMAND = (sys.executable, "-m", "examples.flights")
SUBSET = ("--flights-max", "24000", "--events-per-trigger", "4000")
"""Six micro-batches: enough to crash in the middle, and quick."""

OPEN = "SELECT count(*) FROM tidegate_dead_letter WHERE status = 'open'"

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """No service, database or profile of this user's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    return kept | {"TIDEGATE_CONFIG_DIR": str(tmp_path / "config")}


def _run_json(data_dir: Path, *options: str, environment: dict[str, str]) -> dict[str, object]:
    words = [*COMMAND, "--data-dir", str(data_dir), "--json", *options]
    found = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    summary = json.loads(found.stdout)
    assert isinstance(summary, dict)
    return summary


def _processes_that_name(directory: Path) -> list[str]:
    """Command lines of living processes that name a directory."""
    found = subprocess.run(["ps", "-A", "-o", "args="], capture_output=True, text=True, check=True)
    return [line for line in found.stdout.splitlines() if str(directory) in line]


@pytest.mark.programs
@pytest.mark.parametrize(
    ("options", "arrived", "cancelled", "diverted"),
    [
        pytest.param(SUBSET, 23_671, 261, 68, id="24,000"),
        pytest.param((), 327_346, 8_255, 1_175, id="all", marks=pytest.mark.repeats),
    ],
)
def test_flights_with_sqlite(
    tmp_path: Path,
    environment: dict[str, str],
    options: tuple[str, ...],
    arrived: int,
    cancelled: int,
    diverted: int,
) -> None:
    """Rows + dead letters hold after a crash, and the two printed commands, pasted, bring every dead letter
    into the table; a second run over the same directory finds all of it done."""
    data_dir = tmp_path / "it's here"
    unscored_count = cancelled + diverted
    flight_count = arrived + unscored_count
    assert options or (flight_count, unscored_count) == (FLIGHT_COUNT, UNSCORED_FLIGHT_COUNT)
    words = [*COMMAND, "--data-dir", str(data_dir), *options]
    found = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert f"{flight_count:,} events" in found.stdout
    assert "SIGKILL" in found.stderr
    for title in ("Worst carriers", "Worst routes", "FlightCancelledError", "FlightDivertedError"):
        assert title in found.stdout
    database = data_dir / "flights.db"
    rows = _count(database, "SELECT count(*) FROM flight_performance")
    assert (rows, _count(database, OPEN)) == (arrived, unscored_count)
    list_command, redrive_command = (
        line.strip() for line in found.stdout.splitlines() if line.startswith("  ") and " dlq " in line
    )
    listed = json.loads(_paste(list_command + " --json", environment))
    assert {item["error_type"]: item["count"] for item in listed} == {
        "FlightCancelledError": cancelled,
        "FlightDivertedError": diverted,
    }
    _paste(redrive_command, environment)
    assert _count(database, OPEN) == 0
    for status, count in (("arrived", arrived), ("cancelled", cancelled), ("diverted", diverted)):
        where = f"SELECT count(*) FROM flight_performance WHERE status = '{status}'"
        assert _count(database, where) == count
    summary = _run_json(data_dir, *options, environment=environment)
    assert summary["published"] == summary["rows"] == flight_count
    assert (summary["dead_letters_open"], summary["dead_letters_total"]) == (0, unscored_count)
    assert summary["is_exact"] is True
    assert _processes_that_name(data_dir) == []


def _count(database: Path, statement: str) -> int:
    with closing(sqlite3.connect(database)) as connection:
        found: int = connection.execute(statement).fetchone()[0]
        return found


def _paste(command: str, environment: dict[str, str]) -> str:
    """Run a command as a shell does when it is pasted; returns its output."""
    found = subprocess.run(
        ["bash", "-c", command], env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.programs
@pytest.mark.repeats
def test_with_postgresql(tmp_path: Path, environment: dict[str, str], postgresql: PostgresqlServer) -> None:
    """The same job into PostgreSQL: exact after the crash, and the password is nowhere in the output."""
    url = postgresql.create_database()
    words = [*COMMAND, "--data-dir", str(tmp_path / "data"), "--database", url, *SUBSET]
    found = subprocess.run([*words, "--json"], env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    summary = json.loads(found.stdout)
    assert summary["crashes"] == 1
    assert summary["rows"] + summary["dead_letters_open"] == summary["published"] == 24_000
    assert "password" not in found.stdout + found.stderr
    with Database.open(url) as database, database.read() as connection:
        rows = connection.exec_driver_sql("SELECT count(*) FROM flight_performance").scalar_one()
    assert rows == summary["rows"]


@pytest.mark.programs
@pytest.mark.repeats
def test_an_interrupt_leaves_no_child_and_the_next_run_goes_on(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """Ctrl-C in mid-pipeline ends service and Spark; run again, it comes to the same figures."""
    data_dir = tmp_path / "data"
    words = [*COMMAND, "--data-dir", str(data_dir), *SUBSET]
    log_file = tmp_path / "stderr"
    with (
        log_file.open("wb") as log,
        subprocess.Popen(
            words, env=environment, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True
        ) as demo,
    ):
        deadline = time.monotonic() + 300
        while not (data_dir / "example-flights" / "driver-started").exists():
            assert demo.poll() is None, log_file.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(demo.pid, signal.SIGINT)
        assert demo.wait(60) == 130
    assert _processes_that_name(data_dir) == []
    # In one micro-batch, in whose middle no driver is killed: that is held above.
    summary = _run_json(data_dir, *SUBSET, "--events-per-trigger", "24000", environment=environment)
    assert summary["crashes"] == 0
    assert summary["rows"] + summary["dead_letters_open"] == summary["published"] == 24_000  # type: ignore[operator]
    assert summary["is_exact"] is True
