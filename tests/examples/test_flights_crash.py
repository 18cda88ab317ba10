"""When the demo may say that it killed the driver in mid-batch: Spark's journal and SQL must both say so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest
from examples.flights.crash import find_mid_batch
from examples.flights.spark_stage import SparkStage
from examples.support.screen import Screen
from examples.support.service import ExampleService
from sqlalchemy import make_url

from tidegate.model.errors import DatabaseUnavailableError
from tidegate.sql import Database


def _journal(directory: Path, kind: str, batch_id: int, partitions: dict[str, int] | None = None) -> None:
    lines = ["v1", "{}"]
    if partitions is not None:
        lines.append(json.dumps({"version": 1, "eventHubCreatedAtMs": 1, "partitions": partitions}))
    (directory / kind).mkdir(exist_ok=True)
    (directory / kind / str(batch_id)).write_text("\n".join(lines))


@pytest.fixture
def running(tmp_path: Path) -> Path:
    """Micro-batch 0 is done, micro-batch 1 has begun: from (10, 10) to (20, 30)."""
    _journal(tmp_path, "offsets", 0, {"0": 10, "1": 10})
    _journal(tmp_path, "commits", 0)
    _journal(tmp_path, "offsets", 1, {"0": 20, "1": 30})
    return tmp_path


def test_a_part_of_the_running_batch_is_committed(running: Path) -> None:
    """One partition is through and the other is not: this is the middle, and the counts say how far."""
    found = find_mid_batch(running, {"0": 20, "1": 10})
    assert found is not None
    assert (found.batch_id, found.committed_count, found.event_count) == (1, 10, 30)
    assert "10 of its 30 events" in found.describe()


@pytest.mark.parametrize(
    "next_sequence_numbers",
    [{"0": 10, "1": 10}, {"0": 20, "1": 30}, {}, {"0": 5, "1": 2}],
    ids=["nothing of it", "all of it", "nothing at all", "not even the batch before"],
)
def test_nothing_or_all_of_it_is_not_the_middle(running: Path, next_sequence_numbers: dict[str, int]) -> None:
    """Before the first commit of a batch and after the last one a crash would prove less."""
    assert find_mid_batch(running, next_sequence_numbers) is None


def test_a_batch_that_spark_has_finished_is_not_the_middle(running: Path) -> None:
    """Once Spark has noted the end of the batch there is nothing to interrupt."""
    _journal(running, "commits", 1)
    assert find_mid_batch(running, {"0": 20, "1": 10}) is None


def test_the_first_batch_and_an_empty_journal_are_not_used(tmp_path: Path) -> None:
    """Without a finished batch before it the journal does not tell where a batch starts."""
    assert find_mid_batch(tmp_path, {"0": 5}) is None
    _journal(tmp_path, "offsets", 0, {"0": 10})
    assert find_mid_batch(tmp_path, {"0": 5}) is None


def test_a_driver_that_is_stopped_on_the_file_goes_on(
    running: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped while it holds SQLite's file, it keeps the demo out of it: that is no moment to crash."""

    def held(database: Database) -> dict[str, int]:
        raise DatabaseUnavailableError("The database was busy while reading: locking protocol.")

    service = ExampleService(tmp_path, tmp_path, cast(Database, None), make_url("sqlite://"), "")
    stage = SparkStage(service, 1, cast(Screen, None))
    monkeypatch.setattr("examples.flights.spark_stage.processed_events", lambda _: {"0": 20, "1": 10})
    assert stage._moment_to_crash(running, 1000) is not None
    assert stage._moment_to_crash(running, 50) is None  # the last batch
    monkeypatch.setattr("examples.flights.spark_stage.processed_events", held)
    assert stage._moment_to_crash(running, 1000) is None
