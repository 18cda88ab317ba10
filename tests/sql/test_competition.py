"""Zombies and crashes: whoever competes and whenever a process dies, each event has its effect once."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.sql.support import CONSUMER, dead_numbers, flights, rows_in
from tests.sql.workers import EVENT_COUNT, WINDOWS, work

from tidegate.model.errors import FencedError
from tidegate.sql import CheckpointReader, Database, UnitOfWork

pytestmark = pytest.mark.usefixtures("forked_python")

ROOT = Path(__file__).parents[2]


def run_workers(mode: str, url: str, seed: int) -> dict[str, object]:
    """Run the worker program to its end and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.sql.workers", mode, url, str(seed)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    return result


def check_exactly_once(database: Database) -> None:
    """Rows and dead letters are the events, none missing and none twice."""
    expected_dead = list(range(0, EVENT_COUNT, 7))
    assert dead_numbers(database) == expected_dead
    assert [row[0] for row in rows_in(database)] == [n for n in range(EVENT_COUNT) if n % 7]
    assert CheckpointReader(database).read(CONSUMER)["0"].next_sequence_number == EVENT_COUNT


@pytest.mark.slow
def test_a_crash_in_every_window_neither_loses_nor_doubles(database_url: str) -> None:
    """SIGKILL before and after each step of the transaction, and at random moments."""
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    result = run_workers("crash", database_url, seed)
    assert result["killed"] == 2 * len(WINDOWS)
    with Database.open(database_url) as database:
        check_exactly_once(database)


@pytest.mark.slow
def test_processes_that_compete_commit_each_range_once(database_url: str) -> None:
    """Four real processes on one partition: the rows they report add up to the rows there are."""
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    rows = run_workers("compete", database_url, seed)["rows"]
    assert isinstance(rows, list)
    assert min(rows) >= 0
    with Database.open(database_url) as database:
        check_exactly_once(database)
        assert sum(rows) == len(rows_in(database))


@pytest.mark.slow
def test_threads_that_compete_commit_each_range_once(database: Database) -> None:
    """The same with threads on one ``Database``."""
    counts: list[int] = []
    threads = [
        threading.Thread(target=lambda seed=seed: counts.append(work(database, random.Random(seed))))
        for seed in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(counts) == 4
    check_exactly_once(database)
    assert sum(counts) == len(rows_in(database))


def test_a_stale_owner_is_fenced_and_told_why(database: Database) -> None:
    """Compare-and-set: the text names who moved the checkpoint, from what to what; nothing of it stays."""
    with UnitOfWork(database, CONSUMER, owner="zombie") as unit:
        assert unit.lock("0") is None
        unit.advance("0", None, 10)
    with UnitOfWork(database, CONSUMER, owner="host-b") as unit:
        unit.advance("0", unit.lock("0"), 20)
    with pytest.raises(FencedError, match="could not move from 10 to 15: host-b moved it to 20"):
        commit_stale(database)
    assert rows_in(database) == []
    never = UnitOfWork(database, CONSUMER)
    with pytest.raises(FencedError, match="it does not exist"), never:
        never.advance("77", None, 15)


def commit_stale(database: Database) -> None:
    """A zombie's batch: it read the checkpoint long ago and writes now."""
    with UnitOfWork(database, CONSUMER, owner="zombie") as stale:
        stale.insert_rows(flights, [{"sequence_number": 1, "partition_id": "0", "delay": 1}])
        stale.advance("0", 10, 15)


def test_a_lower_lease_epoch_is_fenced(database: Database) -> None:
    """An owner whose lease was taken over cannot move the checkpoint, even from where it stands."""
    with UnitOfWork(database, CONSUMER, owner="new", lease_epoch=2) as unit:
        unit.advance("0", unit.lock("0"), 10)
    old = UnitOfWork(database, CONSUMER, owner="old", lease_epoch=1)
    with pytest.raises(FencedError, match="lease epoch 2"), old:
        old.advance("0", old.lock("0"), 20)
    with UnitOfWork(database, CONSUMER, owner="new", lease_epoch=2) as unit:
        unit.advance("0", unit.lock("0"), 20)


def test_partitions_do_not_wait_for_each_other_on_a_server(server_url: str) -> None:
    """Row locks: while one partition's transaction is open, another partition commits."""
    with Database.open(server_url, lock_wait_s=5) as database:
        with UnitOfWork(database, CONSUMER) as first:
            first.lock("0")
            with UnitOfWork(database, CONSUMER) as second:
                second.advance("1", second.lock("1"), 5)
        assert CheckpointReader(database).read(CONSUMER)["1"].next_sequence_number == 5
