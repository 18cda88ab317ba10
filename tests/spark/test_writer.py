"""What a writing task makes of rows in any order, without a Spark around it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import wait
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from tests.spark.support import make_pipeline, outcome_of, readings
from tests.support.postgresql import PostgresqlServer

from tidegate.columns.valid import with_valid_text
from tidegate.model.errors import (
    CheckpointGapError,
    DatabaseError,
    FencedError,
    InvalidArgumentError,
)
from tidegate.spark.pipelines.pipeline import sink_options
from tidegate.spark.source.options import SourceOptions
from tidegate.spark.source.ownership import claim_checkpoints
from tidegate.spark.source.processing import ENDS_KEY
from tidegate.spark.sql_sink import commits
from tidegate.spark.sql_sink.accounting import Gap
from tidegate.spark.sql_sink.commits import to_batch
from tidegate.spark.sql_sink.plan import SinkPlan, load_plan
from tidegate.spark.sql_sink.writer import (
    TaskWriter,
    WriterWait,
    check_lost,
    check_partitions_whole,
)
from tidegate.sql import BatchResult, CheckpointReader, Database, DeadLetters
from tidegate.sql.commit.batch import commit_batches
from tidegate.sql.commit.partition_batch import PartitionBatch
from tidegate.sql.core.writer_lock import WriterLock
from tidegate.testing.hub import HubService

_CONNECTION_STRING = "Endpoint=sb://h;SharedAccessKeyName=n;SharedAccessKey=k;EntityPath=readings"


@pytest.fixture
def plan(database_url: str) -> SinkPlan:
    """Of a transformed pipeline that has claimed its partitions; ten rows in a transaction."""
    return _plan(database_url)


@pytest.fixture
def sqlite_plan(sqlite_url: str) -> SinkPlan:
    """The same in SQLite."""
    return _plan(sqlite_url)


def _plan(database_url: str) -> SinkPlan:
    database = Database.shared(database_url)
    database.ensure_table(readings)
    pipeline = make_pipeline("readings")
    claim = claim_checkpoints(
        database,
        pipeline.consumer,
        event_hub_created_at_ms=1,
        start_sequence_numbers=dict.fromkeys("0123", 0),
        begin_sequence_numbers=dict.fromkeys("0123", 0),
    )
    source = SourceOptions.parse({"connectionString": _CONNECTION_STRING})
    return SinkPlan(pipeline, database_url, source, claim, True, 10, 2**20)


def _rows(start: int, until: int, partition_id: str = "0") -> pa.RecordBatch:
    numbers = list(range(start, until))
    columns: dict[str, list[object]] = {
        "partition": [partition_id] * len(numbers),
        "sequenceNumber": [*numbers],
        "offset": [*map(str, numbers)],
        "enqueuedTime": [datetime(2026, 1, 1, tzinfo=UTC)] * len(numbers),
        "number": [*numbers],
        "value": [*numbers],
    }
    return pa.RecordBatch.from_pydict(columns)


def test_each_checkpoint_has_the_history_of_its_partition(plan: SinkPlan) -> None:
    """Also where partitions share a transaction; a checkpoint before the end of its range has none."""
    ends = {ENDS_KEY: json.dumps({"0": (5, "history-0"), "1": (9, "history-1"), "2": (9, "history-2")})}
    batches = [
        _rows(0, until, partition).replace_schema_metadata(ends)
        for partition, until in (("0", 5), ("1", 9), ("2", 8))
    ]
    TaskWriter(plan).write(iter(batches))
    found = CheckpointReader(Database.shared(plan.database_url)).read(plan.pipeline.consumer)
    assert {key: each.history_id for key, each in found.items()} == {
        "0": "history-0",
        "1": "history-1",
        "2": None,
        "3": None,
    }


def test_an_error_that_quotes_a_body_that_is_no_text(plan: SinkPlan) -> None:
    """Spark casts any bytes to a string; so may a partition key that a step made of them."""
    texts = {
        "_error": pa.array([None, b"not \xff", b"not a reading"]),
        "partitionKey": pa.array([b"a", b"k\xff", b"c"]),
    }
    rows = _rows(0, 3)
    for name, values in texts.items():
        rows = rows.append_column(name, values.view(pa.string()))
    TaskWriter(plan).write(iter([rows]))
    found = DeadLetters(Database.shared(plan.database_url)).list()
    assert [(letter.sequence_number, letter.reason, letter.partition_key) for letter in found] == [
        (1, "not \ufffd", "k\ufffd"),
        (2, "not a reading", "c"),
    ]
    assert plan.checkpoints()["0"] == 3


def test_a_dead_letters_place_is_read_from_its_columns_alone(
    sqlite_plan: SinkPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow validates a column's maps as a whole for each dead letter, not only those of the slice."""
    seen: list[list[str]] = []

    def valid(rows: pa.Table) -> pa.Table:
        seen.append(rows.column_names)
        return with_valid_text(rows)

    monkeypatch.setattr(commits, "with_valid_text", valid)
    rows = _rows(0, 2).append_column("_error", pa.array(["bad", None]))
    TaskWriter(sqlite_plan).write(iter([rows.append_column("partitionKey", pa.array(["a", "b"]))]))
    assert seen
    assert all(names == ["offset", "enqueuedTime", "partitionKey"] for names in seen)
    (letter,) = DeadLetters(Database.shared(sqlite_plan.database_url)).list()
    assert (letter.sequence_number, letter.partition_key) == (0, "a")


def test_rows_of_events_that_are_committed_are_an_error(plan: SinkPlan) -> None:
    """A second row of an event that comes too late is not taken for one that was written before."""
    with pytest.raises(InvalidArgumentError, match="after those of later events"):
        TaskWriter(plan).write(iter([_rows(0, 30), _rows(0, 30)]))


def test_an_attempt_after_a_lost_one_goes_on_in_order(plan: SinkPlan) -> None:
    """A retried task is given everything again: what is committed is skipped, whatever the batches are."""
    TaskWriter(plan).write(iter([_rows(0, 15)]))
    assert TaskWriter(plan).write(iter([_rows(0, 12), _rows(12, 14), _rows(14, 40)])) == {"0": 15}
    assert plan.checkpoints()["0"] == 40
    assert outcome_of(plan.database_url).distinct_rows == outcome_of(plan.database_url).rows == 40


def test_few_rows_of_several_partitions_share_a_transaction(
    plan: SinkPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as fit; what is more than fits goes by itself, and before."""
    sizes: list[list[int]] = []

    def noted(database: Database, batches: list[PartitionBatch]) -> list[BatchResult]:
        sizes.append([batch.scope.until - batch.scope.start for batch in batches])
        return commit_batches(database, batches)

    monkeypatch.setattr("tidegate.spark.sql_sink.writer.commit_batches", noted)
    batches = [_rows(0, 4, "0"), _rows(0, 15, "1"), _rows(0, 5, "2"), _rows(0, 7, "3")]
    TaskWriter(plan).write(iter(batches))
    # Of 15 rows the last event's stay behind, for more of them may come.
    assert sizes == [[14], [4, 1, 5], [7]]
    assert plan.checkpoints() == {"0": 4, "1": 15, "2": 5, "3": 7}
    assert outcome_of(plan.database_url).rows == 31


def test_lost_events_of_one_partition_hold_up_no_other(plan: SinkPlan) -> None:
    """Those before it are committed by themselves, so that the error is about one partition only."""
    with pytest.raises(CheckpointGapError, match=r"^Partition 1 of .* sequence numbers 0 to 2"):
        TaskWriter(plan).write(iter([_rows(0, 4, "0"), _rows(3, 5, "1")]))
    assert outcome_of(plan.database_url).rows == 4


def test_a_transaction_is_prepared_while_the_one_before_is_written(
    plan: SinkPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none is begun before that is committed; with SQLite all comes one after the other."""
    steps: list[str] = []
    is_second_prepared = threading.Event()

    def prepared(
        plan: SinkPlan, partition_id: str, rows: pa.Table, is_gap_allowed: bool, history_id: str | None
    ) -> PartitionBatch:
        batch = to_batch(plan, partition_id, rows, is_gap_allowed, history_id)
        steps.append(f"prepared {batch.scope.start}")
        if batch.scope.start:
            is_second_prepared.set()
        return batch

    def committed(database: Database, batches: list[PartitionBatch]) -> list[BatchResult]:
        if not batches[0].scope.start and not database.is_sqlite:
            assert is_second_prepared.wait(30)
        results = commit_batches(database, batches)
        steps.append(f"committed {batches[0].scope.start}")
        return results

    monkeypatch.setattr("tidegate.spark.sql_sink.writer.to_batch", prepared)
    monkeypatch.setattr("tidegate.spark.sql_sink.writer.commit_batches", committed)
    TaskWriter(plan).write(iter([_rows(0, 11), _rows(11, 19)]))
    first, second = ["prepared 0", "committed 0"], ["prepared 10", "committed 10"]
    together = ["prepared 0", "prepared 10", "committed 0", "committed 10"]
    assert steps == ([*first, *second] if Database.shared(plan.database_url).is_sqlite else together)
    assert outcome_of(plan.database_url).rows == 19


@pytest.mark.parametrize("is_reading_failing", [False, True])
def test_a_commit_that_fails_ends_the_task(
    postgresql: PostgresqlServer, monkeypatch: pytest.MonkeyPatch, is_reading_failing: bool
) -> None:
    """With its own reason, whatever else fails meanwhile; what was prepared after it is not tried."""
    plan = _plan(postgresql.create_schema())
    is_fenced = threading.Event()
    tried: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        yield _rows(0, 11)
        yield _rows(11, 19)
        claim_checkpoints(
            Database.shared(plan.database_url),
            plan.pipeline.consumer,
            event_hub_created_at_ms=1,
            start_sequence_numbers=dict.fromkeys("0123", 0),
            begin_sequence_numbers=dict.fromkeys("0123", 0),
        )
        is_fenced.set()
        if is_reading_failing:
            raise ConnectionError("the hub is gone")

    def committed(database: Database, batches: list[PartitionBatch]) -> list[BatchResult]:
        tried.append(batches[0].scope.start)
        assert is_fenced.wait(30)
        return commit_batches(database, batches)

    monkeypatch.setattr("tidegate.spark.sql_sink.writer.commit_batches", committed)
    with pytest.raises(FencedError, match="Another driver took over"):
        TaskWriter(plan).write(batches())
    assert tried == [0]
    assert outcome_of(plan.database_url).rows == 0


def test_nothing_more_is_handled_once_a_commit_has_failed(
    postgresql: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next batch finds it out, not the next transaction."""
    plan = _plan(postgresql.create_schema())
    handled: list[int] = []

    def prepared(
        plan: SinkPlan, partition_id: str, rows: pa.Table, is_gap_allowed: bool, history_id: str | None
    ) -> PartitionBatch:
        batch = to_batch(plan, partition_id, rows, is_gap_allowed, history_id)
        handled.append(batch.scope.start)
        return batch

    def refused(database: Database, batches: list[PartitionBatch]) -> list[BatchResult]:
        raise DatabaseError("no such table")

    def batches() -> Iterator[pa.RecordBatch]:
        yield _rows(0, 11)
        assert writer._committing is not None
        wait([writer._committing.outcome])
        yield _rows(11, 31)

    monkeypatch.setattr("tidegate.spark.sql_sink.writer.to_batch", prepared)
    monkeypatch.setattr("tidegate.spark.sql_sink.writer.commit_batches", refused)
    writer = TaskWriter(plan)
    with pytest.raises(DatabaseError, match="no such table"):
        writer.write(batches())
    assert handled == [0]


@pytest.mark.parametrize("is_gap_lost", [False, True])
def test_a_gap_before_a_transaction_that_another_follows(
    plan: SinkPlan, monkeypatch: pytest.MonkeyPatch, is_gap_lost: bool
) -> None:
    """Where the events are gone for good both are written, in order; else neither is."""
    found: list[Gap] = []

    def check(plan: SinkPlan, partition_id: str, gap: Gap) -> None:
        found.append(gap)
        if not is_gap_lost:
            check_lost(plan, partition_id, gap)

    monkeypatch.setattr("tidegate.spark.sql_sink.writer.check_lost", check)
    batches = [_rows(3, 14), _rows(14, 22)]
    if is_gap_lost:
        TaskWriter(plan).write(iter(batches))
        assert plan.checkpoints()["0"] == 22
    else:
        with pytest.raises(CheckpointGapError, match=r"^Partition 0 of .* sequence numbers 0 to 2"):
            TaskWriter(plan).write(iter(batches))
    assert found == [Gap(0, 3)]
    assert outcome_of(plan.database_url).rows == (19 if is_gap_lost else 0)


def test_what_is_being_committed_is_done_when_reading_fails(
    postgresql: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task's next attempt must not meet a transaction of the one before."""
    plan = _plan(postgresql.create_schema())
    is_failing = threading.Event()

    def batches() -> Iterator[pa.RecordBatch]:
        yield _rows(0, 11)
        is_failing.set()
        raise ConnectionError("the hub is gone")

    def committed(database: Database, batches: list[PartitionBatch]) -> list[BatchResult]:
        assert is_failing.wait(30)
        return commit_batches(database, batches)

    with monkeypatch.context() as patch:
        patch.setattr("tidegate.spark.sql_sink.writer.commit_batches", committed)
        with pytest.raises(ConnectionError):
            TaskWriter(plan).write(batches())
    assert outcome_of(plan.database_url).rows == 10
    assert TaskWriter(plan).write(iter([_rows(0, 20)])) == {"0": 10}
    assert outcome_of(plan.database_url).rows == 20


def test_tasks_that_share_a_partition_are_told_apart_from_retries() -> None:
    """Only where one of them left events out is anything missing."""
    with pytest.raises(InvalidArgumentError, match=r"Partition 0.*in more than one task"):
        check_partitions_whole([{"0": 0, "1": 3}, {"0": 40}])
    check_partitions_whole([{"0": 0}, {"0": 0, "1": 3}])


def test_a_database_url_never_shows(plan: SinkPlan) -> None:
    """It may hold a password, and values are printed in tracebacks and logs."""
    secret = "postgresql://user:hunter2@host/name"
    source = SourceOptions.parse(
        {"connectionString": _CONNECTION_STRING, "startingPosition": f"checkpoint:{secret}"}
    )
    assert "hunter2" not in repr(replace(plan, database_url=secret, source=source))


def test_workers_are_sent_an_absolute_database_path(
    hub_service: HubService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run where Spark was started, which need not be where the driver is by now."""
    monkeypatch.chdir(tmp_path)
    hub = hub_service.create_hub(partition_count=1)
    source = {"connectionString": hub_service.hub_connection_string(hub)}
    options = sink_options(make_pipeline(hub), source, "sqlite:///relative.db", is_transformed=False)
    assert load_plan(options["plan"]).database_url == f"sqlite:///{tmp_path}/relative.db"


def test_waiting_for_sqlite_is_told_where_it_is_the_limit(
    sqlite_plan: SinkPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that finds another writer at work says for how long it waited, and the driver adds it up."""
    plan = sqlite_plan
    database = Database.shared(plan.database_url)
    is_held, is_waited_for = threading.Event(), threading.Event()
    sleep = time.sleep

    def tell_and_sleep(seconds: float) -> None:
        is_waited_for.set()
        sleep(seconds)

    def hold() -> None:
        with WriterLock(Path(plan.database_url.removeprefix("sqlite:///")), wait_s=10):
            is_held.set()
            assert is_waited_for.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    assert is_held.wait(10)
    before = database.writer_wait_s
    monkeypatch.setattr(time, "sleep", tell_and_sleep)
    writer = TaskWriter(plan)
    writer.write(iter([_rows(0, 5)]))
    holder.join()
    assert 0 < writer.wait.waited_s == database.writer_wait_s - before
    assert writer.wait.waited_s <= writer.wait.of_s
    told = WriterWait(1.5, 4).plus(WriterWait(1.5, 4)).warning()
    assert told is not None
    assert told.startswith("Tasks waited 3.0 s of 8.0 s to be SQLite's one writer")
    assert WriterWait(3, 20).warning() is None


def test_a_source_that_splits_partitions_is_refused(sqlite_url: str) -> None:
    """Their events would come to several tasks, each of which would take the others' for missing."""
    source = {"connectionString": _CONNECTION_STRING, "splitPartitions": "true"}
    with pytest.raises(InvalidArgumentError, match="in one task"):
        sink_options(make_pipeline("readings"), source, sqlite_url, is_transformed=False)
