"""Drivers of a ledger sink that are killed, against a recomputation from what was read."""

from __future__ import annotations

import functools
import json
import os
import random
import time
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Table, select
from tests.spark.driver_process import driver_process
from tests.spark.ledger_driver import UPSERTS, final_minutes, minutes

from tidegate.sql import Database
from tidegate.sql.core.schema import ledger_query

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.repeats, pytest.mark.timeout(1200)]

_FILES = 18
_READINGS_PER_FILE = 200
_KILLS = 3
_START = datetime(2026, 1, 1, tzinfo=UTC)

Minutes = dict[tuple[datetime, int], tuple[int, int]]
"""(minute, home) → (readings, their sum)."""


def write_readings(directory: Path, rng: random.Random) -> Minutes:
    """Half a minute of readings per file, up to a minute out of order; what they come to, recomputed."""
    directory.mkdir()
    expected: dict[tuple[datetime, int], list[int]] = defaultdict(lambda: [0, 0])
    for number in range(_FILES):
        lines = []
        for _ in range(_READINGS_PER_FILE):
            at = _START + timedelta(seconds=30 * number + rng.randrange(-60, 30))
            home, value = rng.randrange(20), rng.randrange(100)
            lines.append(json.dumps({"time": at.isoformat(), "home": home, "value": value}))
            entry = expected[(at.replace(second=0), home)]
            entry[0] += 1
            entry[1] += value
        path = directory / f"{number:05}.json"
        path.write_text("\n".join(lines))
        os.utime(path, (1_700_000_000 + number,) * 2)
    return {key: (entry[0], entry[1]) for key, entry in expected.items()}


def stored(database_url: str, table: Table) -> Minutes:
    """What the table holds; a row that is there twice fails."""
    with Database.open(database_url) as database:
        database.ensure_table(table)
        with database.read() as connection:
            rows = connection.execute(select(table)).all()
    found = {(row.minute.replace(tzinfo=UTC), row.home): (row.readings, row.total) for row in rows}
    assert len(found) == len(rows)
    return found


def next_batch(database_url: str) -> int:
    """How many batches are committed."""
    row = ledger_query.c
    with Database.open(database_url) as database, database.read() as connection:
        found = connection.execute(select(row.next_batch_id).where(row.query_name == UPSERTS))
        return found.scalar_one_or_none() or 0


def has_done(database_url: str, batches: int) -> bool:
    """Whether so many batches are committed."""
    return next_batch(database_url) >= batches


@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
def test_killed_drivers_leave_the_aggregates_exact(
    request: pytest.FixtureRequest, sqlite_url: str, tmp_path: Path, database: str
) -> None:
    """SIGKILL at random moments: windows with a watermark are what the readings come to, each row once.

    Upserts in update mode go to a server, staged by tasks; closed windows in append mode to SQLite, into a
    table without a key, where a batch that is written twice shows.
    """
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    expected = write_readings(tmp_path / "readings", rng)
    update_url: str = request.getfixturevalue(f"{database}_url")
    arguments = {
        "readings": str(tmp_path / "readings"),
        "checkpoints": str(tmp_path),
        "update_url": update_url,
        "append_url": sqlite_url,
    }
    driver_words = ("-m", "tests.spark.ledger_driver", json.dumps(arguments))
    log = tmp_path / "driver.log"
    done = 0
    for _ in range(_KILLS):
        wanted = done + 1 + rng.randrange(_FILES // 3 - 2)
        with driver_process(log, *driver_words) as driver:
            driver.wait_until(functools.partial(has_done, update_url, wanted), poll_s=0.2)
            time.sleep(rng.random() * 0.2)
            driver.check_running()
        done = next_batch(update_url)
    assert done < _FILES
    with driver_process(log, *driver_words) as driver:
        driver.wait_done()
    assert stored(update_url, minutes) == expected
    # Windows within the watermark of the last reading are still open.
    last = max(minute for minute, _ in expected)
    found = stored(sqlite_url, final_minutes)
    closed = {key: value for key, value in expected.items() if key[0] < last - timedelta(minutes=3)}
    assert closed.items() <= found.items() <= expected.items()
