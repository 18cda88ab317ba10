"""Home security, for real: service, generator, Spark with a SIGKILL in mid-batch; figures as the log says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from examples.home_security.check import (
    Found,
    failures_of,
    has_earlier_run,
    prepare_database,
    prepare_places,
    read_tables,
)
from examples.home_security.homes import BLOCKS_DEFAULT, EVENT_HUB, Alarm
from examples.home_security.latencies import QUANTILES, Latencies
from examples.home_security.page_files import MalformedPagesError
from examples.home_security.summaries import SummaryStore
from examples.home_security.tables import NAME, home_alarm, home_minute
from examples.home_security.verify import Expected
from sqlalchemy import delete, insert, select

from tidegate.model.errors import AlreadyExistsError
from tidegate.sql import Database
from tidegate.sql.core.schema import ledger_query

COMMAND = (sys.executable, "-m", "examples.home_security")


def _environment(tmp_path: Path) -> dict[str, str]:
    """Without the settings of whoever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    return kept | {"TIDEGATE_CONFIG_DIR": str(tmp_path / "config")}


@pytest.mark.programs
@pytest.mark.repeats
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_every_figure_holds_after_a_crash(tmp_path: Path) -> None:
    """500 homes for ten seconds, the driver killed once: minutes, alarms, dead letters and summaries are what
    the log says, events are accounted for one by one, and no process stays."""
    environment = _environment(tmp_path)
    data_dir = tmp_path / "data"
    words = [*COMMAND, "--data-dir", str(data_dir), "--homes", "500", "--speed", "60", "--duration", "10"]
    words += ["--malformed-share", "0.02", "--delayed-share", "0.05", "--duplicate-share", "0.05", "--json"]
    found = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    summary = json.loads(found.stdout)
    events = summary["events"]
    assert events > 10 * 500  # each home in each of its ten minutes
    assert summary["homes_heard"] == 500
    assert summary["is_exact"] is True
    assert summary["failures"] == []
    assert summary["readings"] > 1_000
    assert summary["duplicates"] > 0
    put_aside = sum(summary["dead_letters"].values())
    assert summary["readings"] + summary["duplicates"] + put_aside + summary["status_events"] == events
    assert 400 < summary["homes"] == len(SummaryStore(summary["summaries"]).read()) <= 500
    assert 0 < len(list((data_dir / "summaries").iterdir())) <= BLOCKS_DEFAULT
    assert "carbon monoxide" in found.stderr
    listed = subprocess.run(["ps", "-A", "-o", "args="], capture_output=True, text=True, check=True)
    assert not [line for line in listed.stdout.splitlines() if str(data_dir) in line]
    again = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "earlier run" in again.stderr


_PAGE = b'{"activity":[1]}'


def _expected() -> Expected:
    return Expected(
        event_count=2,
        status_count=0,
        homes_heard=1,
        minutes={("h1", 60_000): (2, 1, 0, None, 0)},
        alarms=frozenset({Alarm("h1", "door", 3, "door_open", 5, 0.0)}),
        dead_letters={},
        summaries={"h1": _PAGE},
        latest_sent_ms=0,
    )


def test_a_wrong_figure_is_noticed(sqlite_url: str, tmp_path: Path) -> None:
    """A missing row, a row too many, an alarm with another time, a page with other bytes: each is told. So is
    a page that is missing, one too many, and a file of pages that is none."""
    store = SummaryStore(str(tmp_path / "pages"))
    with Database.open(sqlite_url) as database:
        assert prepare_database(database) is False
        with database.writing() as connection, connection.begin():
            connection.execute(insert(home_minute).values(["h1", 60_000, 2, 1, 0, None, 0]))
            connection.execute(insert(home_alarm).values(["h1", "door", 3, "door_open", 5, 0.0]))
        store.write({"0-0": {"h1": _PAGE}})
        assert failures_of(_expected(), read_tables(database), store) == ()
        store.write({"0-0": {"h1": _PAGE.replace(b"1", b"2")}})
        with database.writing() as connection, connection.begin():
            connection.execute(insert(home_minute).values(["h1", 120_000, 1, 1, 0, None, 0]))
            connection.execute(delete(home_alarm))
        failures = failures_of(_expected(), read_tables(database), store)
    assert [failure.split(" are ")[0] for failure in failures] == [
        "1 rows of home_minute",
        "1 alarms",
        "1 summaries",
    ]


def test_a_page_too_many_or_too_few_is_noticed(tmp_path: Path) -> None:
    """Of all blocks; a file that cannot be read is told, too."""
    found = Found(_expected().minutes, tuple(_expected().alarms), {})
    store = SummaryStore(str(tmp_path / "pages"))
    (missing,) = failures_of(_expected(), found, store)
    assert "the first is h1: None instead of" in missing
    store.write({"0-0": {"h1": _PAGE}, "3-1": {"h2": _PAGE}})
    (unexpected,) = failures_of(_expected(), found, store)
    assert "the first is h2" in unexpected
    (tmp_path / "pages" / "3-1.json").write_bytes(b"{")
    (malformed,) = failures_of(_expected(), found, store)
    assert "3-1.json is not a complete file of homes' pages" in malformed


def _add_earlier_run(database: Database) -> None:
    """A row of a table, and the ledger's of the run that wrote it."""
    with database.writing() as connection, connection.begin():
        connection.execute(insert(home_minute).values(["h1", 60_000, 2, 1, 0, None, 0]))
        connection.execute(
            insert(ledger_query).values(
                query_name=NAME,
                query_id="q",
                next_batch_id=1,
                epoch=1,
                run_id="r",
                owner="",
                transaction_token="",
                updated_at=database.clock.now_utc(),
            )
        )


def test_only_results_of_this_demo_are_cleared(sqlite_url: str) -> None:
    """Tables that the ledger does not know as this demo's are somebody else's."""
    with Database.open(sqlite_url) as database:
        database.ensure_table(home_minute)
        with pytest.raises(AlreadyExistsError, match="home_minute"):
            prepare_database(database)
        _add_earlier_run(database)
        assert prepare_database(database) is True
        with database.read() as connection:
            assert connection.execute(select(home_minute)).all() == []
            assert connection.execute(select(ledger_query)).all() == []


@pytest.mark.spark
def test_pages_of_somebody_else_stay(tmp_path: Path) -> None:
    """As those of a driver at work: a fresh database does not know them. The demo ends before there is a hub,
    so the data directory serves another try."""
    store = SummaryStore(str(tmp_path / "pages"))
    store.write({"0-0": {"h1": _PAGE}})
    words = [*COMMAND, "--data-dir", str(tmp_path / "data"), "--summaries", store.url]
    environment = _environment(tmp_path)
    found = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert found.returncode == 1
    assert "has files of pages" in found.stderr
    assert "Use another --summaries" in found.stderr
    assert store.read() == {"h1": _PAGE}
    assert EVENT_HUB.encode() not in (tmp_path / "data" / "control.log").read_bytes()


def test_summaries_are_looked_at_before_the_database_is_cleared(sqlite_url: str, tmp_path: Path) -> None:
    """Somebody else's file among the earlier run's: nothing is deleted. Once it is gone, all is."""
    store = SummaryStore(str(tmp_path))
    with Database.open(sqlite_url) as database:
        assert has_earlier_run(database, store) is False
        database.ensure_table(home_minute)
        database.ensure_table(home_alarm)
        _add_earlier_run(database)
        store.write({"0-0": {"h1": _PAGE}})
        (tmp_path / "x.json").write_bytes(b"{}")
        with pytest.raises(MalformedPagesError, match=r"x\.json"):
            prepare_places(database, store)
        assert len(read_tables(database).minutes) == 1
        (tmp_path / "x.json").unlink()
        assert store.read() == {"h1": _PAGE}
        assert prepare_places(database, store) is True
        assert read_tables(database).minutes == {}
        assert store.has_files() is False


def test_latencies_are_those_of_events_not_of_micro_batches() -> None:
    """A micro-batch of a thousand events counts a thousand times as much as one of one event."""
    latencies = Latencies()
    assert latencies.percentile_ms(0.5) is None
    latencies.add([1_000] * len(QUANTILES), 1_000, 1_098)
    latencies.add([1_000] * len(QUANTILES), 1, 9_000)
    assert latencies.percentile_ms(0.5) == 100
    assert latencies.percentile_ms(0.99) == 100
    assert latencies.percentile_ms(1.0) == 8_005
