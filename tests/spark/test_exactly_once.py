"""Rows and dead letters together are the events sent, none twice: with retried tasks and lost checkpoints."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from sqlalchemy import update
from tests.needs import PRODUCT, ci_has
from tests.spark.support import (
    assert_exact,
    has_reached,
    make_pipeline,
    outcome_of,
    publish,
    readings,
    score,
)
from tests.support.sqlserver import SQL_SERVERS

from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import EventHubReplacedError, InvalidArgumentError
from tidegate.model.events import ReceivedEvent
from tidegate.processor.policies import FailurePolicy
from tidegate.server.app import TidegateServer
from tidegate.spark import Transformation, Trigger, explain, run_pipeline
from tidegate.spark.runtime.trigger import AS_SOON_AS_POSSIBLE
from tidegate.sql import Database, DeadLetterFilter, DeadLetters, Pipeline
from tidegate.sql.core import schema
from tidegate.testing.hub import HubService

_COUNT = 4000


sqlite_and_then_others = pytest.mark.parametrize(
    "database_url",
    ["sqlite", *(pytest.param(each, marks=PRODUCT) for each in ("postgresql", "mariadb"))],
    indirect=True,
)
"""Where tasks write as in ``test_a_retried_task_repeats_nothing``, which runs on all."""


class _Run:
    """One hub, one database, one checkpoint directory."""

    def __init__(self, spark: SparkSession, service: HubService, database_url: str, directory: Path) -> None:
        self.spark = spark
        self.service = service
        self.database_url = database_url
        self.hub = service.create_hub(partition_count=4)
        self.checkpoint = directory / "checkpoint"

    def publish(self, count: int, first_value: int = 0) -> None:
        publish(self.service.connection_string, self.hub, count, first_value=first_value)

    def drain(
        self,
        pipeline: Pipeline | None = None,
        *,
        transform: Transformation | None = None,
        max_events_per_trigger: int = 1500,
        transaction_rows_max: int = 200,
    ) -> None:
        """Run the pipeline over what is there now; several micro-batches, several transactions in each."""
        self.start(
            Trigger(is_available_now=True),
            pipeline,
            transform=transform,
            max_events_per_trigger=max_events_per_trigger,
            transaction_rows_max=transaction_rows_max,
        ).awaitTermination()

    def start(
        self,
        trigger: Trigger,
        pipeline: Pipeline | None = None,
        *,
        transform: Transformation | None = None,
        max_events_per_trigger: int = 1500,
        transaction_rows_max: int = 200,
    ) -> StreamingQuery:
        return run_pipeline(
            self.spark,
            pipeline or make_pipeline(self.hub),
            connection_string=self.service.connection_string,
            database_url=self.database_url,
            checkpoint_location=self.checkpoint,
            trigger=trigger,
            transform=transform,
            max_events_per_trigger=max_events_per_trigger,
            transaction_rows_max=transaction_rows_max,
        )


@pytest.fixture
def run(spark: SparkSession, hub_service: HubService, database_url: str, tmp_path: Path) -> _Run:
    """A run on each kind of database."""
    return _Run(spark, hub_service, database_url, tmp_path)


@pytest.fixture
def sqlite_run(spark: SparkSession, hub_service: HubService, sqlite_url: str, tmp_path: Path) -> _Run:
    """A run on SQLite, where the kind of database makes no difference."""
    return _Run(spark, hub_service, sqlite_url, tmp_path)


class _TaskError(KeyboardInterrupt):
    """Of the only kind that a handler can raise and that becomes no dead letter: an interruption."""


class _Unlucky:
    """The tests' handler, which fails the whole task at two events, once each."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self, event: ReceivedEvent) -> dict[str, object]:
        if event.partition_id == "1" and event.sequence_number == 450:
            self._fail_once("killed", is_process_killed=True)
        if event.partition_id == "2" and event.sequence_number == 777:
            self._fail_once("raised", is_process_killed=False)
        return score(event)

    def _fail_once(self, name: str, *, is_process_killed: bool) -> None:
        marker = self.directory / name
        if marker.exists():
            return
        marker.touch()
        if is_process_killed:
            os.kill(os.getpid(), signal.SIGKILL)
        raise _TaskError("on purpose: not the event's fault, so no dead letter")


def test_a_retried_task_repeats_nothing(run: _Run, tmp_path: Path) -> None:
    """A worker is killed and a task fails in the middle of their transactions; Spark runs both again."""
    run.publish(_COUNT)
    run.drain(Pipeline("readings", run.hub, readings, _Unlucky(tmp_path)))
    assert {path.name for path in tmp_path.iterdir()} >= {"killed", "raised"}
    assert_exact(run.database_url, _COUNT)


@pytest.mark.programs
@ci_has("database_url", "sqlite", "postgresql", "mariadb", *SQL_SERVERS)
def test_a_lost_checkpoint_directory_loses_nothing(run: _Run) -> None:
    """The SQL checkpoint says where to go on; the same holds for a directory that lags behind."""
    run.publish(_COUNT // 2)
    run.drain()
    assert_exact(run.database_url, _COUNT // 2)
    lagging = run.checkpoint.with_name("lagging")
    shutil.copytree(run.checkpoint, lagging)
    shutil.rmtree(run.checkpoint)
    run.publish(_COUNT // 4, first_value=_COUNT // 2)
    run.drain()
    run.publish(_COUNT // 4, first_value=3 * _COUNT // 4)
    run.checkpoint = lagging
    run.drain()
    assert_exact(run.database_url, _COUNT)


def test_a_directory_ahead_of_the_database_is_an_error(sqlite_run: _Run) -> None:
    """A database restored from a backup: going on where Spark is would leave events out."""
    sqlite_run.publish(1000)
    sqlite_run.drain()
    path = Path(sqlite_run.database_url.removeprefix("sqlite:///"))
    for file in path.parent.glob(path.name + "*"):
        file.unlink()
    sqlite_run.publish(100, first_value=1000)
    with pytest.raises(PySparkException) as caught:
        sqlite_run.drain()
    assert "checkpoint directory is ahead of the database" in explain(caught.value)
    shutil.rmtree(sqlite_run.checkpoint)
    sqlite_run.drain()
    assert_exact(sqlite_run.database_url, 1100)


def _put_back(run: _Run, partition_id: str) -> None:
    """Let SQL say of a partition what a replica that lags behind says of it."""
    row = schema.checkpoint.c
    with Database.open(run.database_url) as database, database.writing() as connection, connection.begin():
        earlier = update(schema.checkpoint).values(next_sequence_number=row.next_sequence_number - 100)
        connection.execute(earlier.where(row.partition_id == partition_id))


def test_a_repeated_micro_batch_does_not_hide_that_the_directory_is_ahead(sqlite_run: _Run) -> None:
    """The last micro-batch was not finished and holds nothing of the partition that is behind."""
    sqlite_run.publish(1000)
    sqlite_run.drain()
    sqlite_run.publish(1, first_value=1000)
    sqlite_run.drain()
    _put_back(sqlite_run, "1")
    commits = sqlite_run.checkpoint / "commits"
    last = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    last.unlink()
    with pytest.raises(PySparkException) as caught:
        sqlite_run.drain()
    assert "checkpoint directory is ahead of the database" in explain(caught.value)


def test_a_database_that_falls_behind_while_a_query_runs_is_an_error(sqlite_run: _Run) -> None:
    """Told with the next micro-batch, also where that has no event of the partition that is behind."""
    sqlite_run.publish(1000)
    query = sqlite_run.start(AS_SOON_AS_POSSIBLE)
    try:
        deadline = time.monotonic() + 120
        while not has_reached(sqlite_run.database_url, 1000):
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        _put_back(sqlite_run, "1")
        sqlite_run.publish(1, first_value=1000)
        with pytest.raises(PySparkException) as caught:
            query.awaitTermination(120)
    finally:
        query.stop()
    assert "checkpoint directory is ahead of the database" in explain(caught.value)


@sqlite_and_then_others
def test_partitions_are_added_to_a_hub(run: _Run) -> None:
    """While the pipeline runs, and before its restart: each of their events is a row once."""
    run.publish(400)
    query = run.start(AS_SOON_AS_POSSIBLE)

    def grow(count: int) -> None:
        run.service.call(lambda server: server.broker.update_event_hub(run.hub, partition_count=count))

    try:
        grow(6)
        run.publish(600, first_value=400)
        deadline = time.monotonic() + 120
        while not has_reached(run.database_url, 1000):
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        query.stop()
    grow(7)
    run.publish(700, first_value=1000)
    run.drain()
    assert_exact(run.database_url, 1700)


def _parsed(rows: DataFrame) -> DataFrame:
    """The tests' handler as a DataFrame transformation."""
    value = F.get_json_object(F.col("body").cast("string"), "$.value").cast("int")
    return rows.select(
        "partition",
        "sequenceNumber",
        "offset",
        "enqueuedTime",
        F.col("sequenceNumber").cast("int").alias("number"),
        value.alias("value"),
        F.when(value % 7 == 3, F.concat(F.lit("value "), value % 10, F.lit(" cannot be scored"))).alias(
            "_error"
        ),
    )


@sqlite_and_then_others
def test_a_dataframe_transformation_writes_rows_and_dead_letters(run: _Run) -> None:
    """`_error` makes the dead letter that the handler's exception would have made."""
    run.publish(_COUNT)
    run.drain(transform=_parsed)
    assert_exact(run.database_url, _COUNT)
    with Database.open(run.database_url) as database:
        letters = DeadLetters(database).list(DeadLetterFilter(), limit=1)
        assert letters[0].reason.endswith("cannot be scored")
        assert letters[0].offset == str(letters[0].sequence_number)


def test_a_transformation_may_shuffle_skip_and_drop_bookkeeping(sqlite_run: _Run) -> None:
    """Rows in any order, skipped events, several rows per event, and no offset column: all accounted for."""

    def transform(rows: DataFrame) -> DataFrame:
        value = F.get_json_object(F.col("body").cast("string"), "$.value").cast("int")
        return (
            rows.select(
                "partition",
                "sequenceNumber",
                F.explode(F.array(F.lit(0), F.lit(1))).alias("copy"),
                value.alias("value"),
                (value % 2 == 1).alias("_skip"),
                F.when(value == 10, F.lit("ten")).alias("_error"),
            )
            .withColumn("number", (F.col("sequenceNumber") * 2 + F.col("copy")).cast("int"))
            .drop("copy")
            .repartition(2, "partition")
        )

    sqlite_run.publish(400)
    sqlite_run.drain(transform=transform)
    outcome = outcome_of(sqlite_run.database_url)
    assert (outcome.rows, outcome.distinct_rows) == (398, 398)
    assert (outcome.dead_letters, outcome.position) == (1, 400)


_KEPT = "sequenceNumber != 5 AND sequenceNumber < 95 AND partition != '2'"


def test_a_filtered_event_has_no_row(sqlite_run: _Run) -> None:
    """In the middle, at the end, or a whole partition: the checkpoints pass it, and later events follow."""
    sqlite_run.publish(400)
    sqlite_run.drain(transform=lambda rows: _parsed(rows.where(_KEPT)), max_events_per_trigger=150)
    outcome = outcome_of(sqlite_run.database_url)
    assert (outcome.rows + outcome.dead_letters, outcome.distinct_rows) == (3 * 94, outcome.rows)
    assert outcome.position == 400
    sqlite_run.publish(40)
    sqlite_run.drain(transform=lambda rows: _parsed(rows.where("partition = '0'")))
    after = outcome_of(sqlite_run.database_url)
    assert after.rows + after.dead_letters - outcome.rows - outcome.dead_letters == 10
    assert after.position == 440


def test_an_event_that_is_filtered_before_a_shuffle_is_an_error(sqlite_run: _Run) -> None:
    """It may as well have come to another task: nothing behind it is committed as done."""
    sqlite_run.publish(400)
    with pytest.raises(PySparkException) as caught:
        sqlite_run.drain(
            transform=lambda rows: _parsed(rows.where("sequenceNumber != 5")).repartition(2, "partition")
        )
    sentence = explain(caught.value)
    assert "did not come out of the query" in sentence
    assert "`_skip`" in sentence
    assert outcome_of(sqlite_run.database_url).position < 400
    shutil.rmtree(sqlite_run.checkpoint)
    sqlite_run.drain(transform=_parsed)
    assert_exact(sqlite_run.database_url, 400)


def test_a_policy_beside_a_transformation_is_refused(sqlite_run: _Run) -> None:
    """It would decide about a handler that is not called."""
    pipeline = replace(make_pipeline(sqlite_run.hub), policy=FailurePolicy())
    with pytest.raises(InvalidArgumentError, match="which a transformation replaces"):
        sqlite_run.drain(pipeline, transform=_parsed)


def test_wrong_columns_are_refused_before_the_start(sqlite_run: _Run) -> None:
    """A typo in a column shows at once, with the names that there are."""
    sqlite_run.publish(1)
    with pytest.raises(InvalidArgumentError, match=r"'valeu'.*The table has partition, number, value"):
        sqlite_run.drain(transform=lambda rows: _parsed(rows).withColumnRenamed("value", "valeu"))
    with pytest.raises(InvalidArgumentError, match="dropped the column 'sequenceNumber'"):
        sqlite_run.drain(transform=lambda rows: _parsed(rows).drop("sequenceNumber"))
    with pytest.raises(InvalidArgumentError, match="no column 'value', which the table"):
        sqlite_run.drain(transform=lambda rows: _parsed(rows).drop("value"))


def test_a_hub_made_anew_is_refused(sqlite_run: _Run) -> None:
    """The checkpoints count in the old hub; starting from them would leave out the new one's events."""
    sqlite_run.publish(10)
    sqlite_run.drain()

    async def replace(server: TidegateServer) -> None:
        await server.broker.delete_event_hub(sqlite_run.hub)
        await server.broker.create_event_hub(sqlite_run.hub, partition_count=4)

    sqlite_run.service.call(replace)
    with pytest.raises(EventHubReplacedError, match="was deleted and created again"):
        sqlite_run.drain()


def test_a_union_of_the_stream_with_itself_is_refused(sqlite_run: _Run) -> None:
    """Two tasks would have rows of the same events, and the second would take its own for done."""
    sqlite_run.publish(40)
    with pytest.raises(InvalidArgumentError, match="reads the stream more than once"):
        sqlite_run.drain(transform=lambda rows: _parsed(rows).union(_parsed(rows)))
    assert outcome_of(sqlite_run.database_url).rows == 0


def test_rows_that_a_shuffle_tore_apart_are_an_error(sqlite_run: _Run) -> None:
    """Each task has some of the four rows of every event: no event is missing, and rows would be."""

    def transform(rows: DataFrame) -> DataFrame:
        copies = F.explode(F.array(*map(F.lit, range(4))))
        return _parsed(rows).drop("_error").withColumn("copy", copies).repartition(3, "copy").drop("copy")

    sqlite_run.publish(40)
    with pytest.raises(PySparkException) as caught:
        sqlite_run.drain(transform=transform)
    assert "in more than one task" in explain(caught.value)
    assert 'repartition("partition")' in explain(caught.value)


def test_no_secret_is_shown_in_a_query_plan(sqlite_run: _Run) -> None:
    """Spark shows options in plans and in its web UI; and what it hides by default stays hidden."""
    pattern = sqlite_run.spark.conf.get("spark.sql.redaction.options.regex")
    assert pattern is not None
    for name in ("eventhubs.connectionString", "eventhubs.startingPosition", "url"):
        assert re.search(pattern, name)
    rows = sqlite_run.spark.readStream.format("eventhubs").option(
        "eventhubs.connectionString", sqlite_run.service.hub_connection_string(sqlite_run.hub)
    )
    shown = rows.load()._jdf.queryExecution().toString()
    key = ConnectionString.parse(sqlite_run.service.connection_string).shared_access_key
    assert key is not None
    assert key not in shown
