"""``LedgerSink``: micro-batches of any query into SQL tables, each once, on both databases."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from sqlalchemy import BigInteger, CheckConstraint, Column, Integer, MetaData, Table, Text, select, text
from tests.needs import PRODUCT
from tests.support.sqlserver import SQL_SERVERS

from tidegate.model.errors import InvalidArgumentError
from tidegate.spark import ArrowStep, LedgerSink, LedgerTable, Trigger, WriteMode, explain
from tidegate.sql import ConsumerKey, Database, DeadLetters

_TIMEOUT_S = 300
ONCE = Trigger(is_available_now=True)
CONSUMER = ConsumerKey("homes", "ledger")

counts = Table(
    "counts",
    MetaData(),
    Column("home", BigInteger, primary_key=True, autoincrement=False),
    Column("readings", Integer, nullable=False),
)
alarms = Table("alarms", MetaData(), Column("home", BigInteger), Column("reading", Integer))
"""Without a key on purpose: a row that is written twice must show, not be refused."""


class Readings:
    """A stream that is fed by writing files: one JSON object per line, one file per micro-batch."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._directory = directory
        self._files = 0
        directory.mkdir()

    def add(self, *readings: Mapping[str, object]) -> None:
        """One more file."""
        path = self._directory / f"{self._files:05}.json"
        temporary = self._directory.with_name("new.json")
        temporary.write_text("\n".join(json.dumps(reading) for reading in readings))
        os.utime(temporary, (1_700_000_000 + self._files,) * 2)
        temporary.rename(path)
        self._files += 1

    def stream(self, schema: str) -> DataFrame:
        """The rows, a file per micro-batch."""
        return (
            self._spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(self._directory))
        )


@pytest.fixture
def readings(spark: SparkSession, tmp_path: Path) -> Readings:
    """A stream without files yet."""
    return Readings(spark, tmp_path / "readings")


@pytest.fixture
def driver_bytes_max(request: pytest.FixtureRequest) -> int:
    """With rows through the driver, or with rows staged by tasks."""
    return 0 if request.param == "stages" else 1 << 24


_SOME_WAYS = {("sqlite", "driver"), *((kind, "stages") for kind in ("postgresql", "mariadb", *SQL_SERVERS))}
both_ways = pytest.mark.parametrize(
    ("database_url", "driver_bytes_max"),
    [
        pytest.param(*each, marks=() if each in _SOME_WAYS else PRODUCT)
        for each in product(("sqlite", "postgresql", "mariadb", *SQL_SERVERS), ("driver", "stages"))
    ],
    indirect=True,
)
"""By both ways into each database; what SQL the ways use is tried on all in ``tests/sql``."""


def finish(query: StreamingQuery) -> None:
    """Wait for the end of a query that processes what there is."""
    assert query.awaitTermination(_TIMEOUT_S)


def refusal(start: Callable[[], StreamingQuery]) -> str:
    """What a query ends with."""
    with pytest.raises(PySparkException) as caught:
        finish(start())
    return explain(caught.value)


def rows_of(database_url: str, table: Table) -> list[tuple[object, ...]]:
    """What a table holds, in order."""
    with Database.open(database_url) as database, database.read() as connection:
        return sorted(tuple(row) for row in connection.execute(select(table)))


def sink_of_both(database_url: str, driver_bytes_max: int, *, step: ArrowStep | None = None) -> LedgerSink:
    """Of both tables, with dead letters."""
    return LedgerSink(
        name="homes",
        database_url=database_url,
        tables={"counts": LedgerTable(counts), "alarms": LedgerTable(alarms, WriteMode.APPEND)},
        consumer=CONSUMER,
        driver_bytes_max=driver_bytes_max,
        step=step,
    )


def count_by_home(stream: DataFrame) -> DataFrame:
    """How many readings each home has sent so far."""
    return stream.groupBy("home").agg(F.count("*").cast("int").alias("readings"))


@both_ways
def test_complete_rows_are_upserted(
    readings: Readings, database_url: str, tmp_path: Path, driver_bytes_max: int
) -> None:
    """Aggregates in update mode: a home's row is replaced by its next one, by both ways to the database."""
    sink = LedgerSink(
        name="counts", database_url=database_url, table=counts, driver_bytes_max=driver_bytes_max
    )
    for batch in ([1, 2, 2], [2, 3], [1]):
        readings.add(*({"home": home} for home in batch))
        finish(
            sink.start(
                count_by_home(readings.stream("home LONG")),
                checkpoint_location=tmp_path / "checkpoint",
                trigger=ONCE,
            )
        )
    assert rows_of(database_url, counts) == [(1, 2), (2, 3), (3, 1)]
    with Database.open(database_url) as database, database.read() as connection:
        written = connection.execute(
            text("SELECT batch_id, row_count FROM tidegate_batch_ledger WHERE query_name = 'counts'")
        ).all()
        assert [tuple(row) for row in sorted(written)] == [(0, 2), (1, 2), (2, 1)]
        assert connection.execute(text("SELECT count(*) FROM tidegate_ledger_stage")).scalar_one() == 0


@both_ways
def test_one_stream_feeds_two_tables_and_the_dead_letters(
    readings: Readings, database_url: str, tmp_path: Path, driver_bytes_max: int
) -> None:
    """The column _table sends a row to its table; a row with _error puts its event aside, all in one."""
    sink = sink_of_both(database_url, driver_bytes_max)
    origin = {"partition": "3", "offset": "77", "enqueuedTime": "2026-01-01T00:00:00.123Z"}
    readings.add(
        {"_table": "counts", "home": 1, "readings": 5, "sequenceNumber": 7, **origin},
        {"_table": "alarms", "home": 1, "reading": 99, "sequenceNumber": 7, **origin},
        {"_table": "alarms", "home": 2, "reading": 98, "sequenceNumber": 8, **origin},
        {"home": 2, "_error": "not a number", "sequenceNumber": 8, **origin},
    )
    schema = (
        "_table STRING, home LONG, readings INT, reading INT, _error STRING, "
        "partition STRING, sequenceNumber LONG, offset STRING, enqueuedTime TIMESTAMP"
    )
    finish(sink.start(readings.stream(schema), checkpoint_location=tmp_path / "checkpoint", trigger=ONCE))
    assert rows_of(database_url, counts) == [(1, 5)]
    assert rows_of(database_url, alarms) == [(1, 99)]
    with Database.open(database_url) as database:
        (letter,) = DeadLetters(database).list()
    assert (letter.partition_id, letter.sequence_number, letter.reason) == ("3", 8, "not a number")
    assert (letter.offset, letter.enqueued_time_ms) == ("77", 1_767_225_600_123)
    assert (letter.event_hub, letter.pipeline) == ("homes", "homes")


STEP_SCHEMA = (
    "_table STRING, home LONG, readings INT, reading INT, _error STRING, "
    "partition STRING, sequenceNumber LONG, offset STRING, enqueuedTime TIMESTAMP"
)
ROW_COLUMNS = [column.split()[0] for column in STEP_SCHEMA.split(", ")]


def rows_by_line(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each row's text holds rows as JSON; types of their own, such as Arrow finds them."""
    for batch in batches:
        texts: list[Any] = batch.column("rows").to_pylist()
        for rows in texts:
            yield pa.RecordBatch.from_pylist([dict.fromkeys(ROW_COLUMNS) | row for row in json.loads(rows)])


@both_ways
def test_a_step_makes_rows_in_the_tasks_that_write_them(
    readings: Readings, database_url: str, tmp_path: Path, driver_bytes_max: int
) -> None:
    """Two rows of the query become rows of two tables and a dead letter, typed as the step's schema says."""
    sink = sink_of_both(database_url, driver_bytes_max, step=ArrowStep(rows_by_line, STEP_SCHEMA))
    origin = {"partition": "3", "offset": "77", "enqueuedTime": None, "sequenceNumber": 8}
    first = [{"_table": "counts", "home": home, "readings": 5} for home in range(4)]
    second = [{"_table": "counts", "home": 9, "readings": 1}, {"_table": "alarms", "home": 9, "reading": 99}]
    readings.add({"rows": json.dumps(first)}, {"rows": json.dumps(second)})
    checkpoint = tmp_path / "checkpoint"
    finish(sink.start(readings.stream("rows STRING"), checkpoint_location=checkpoint, trigger=ONCE))
    assert rows_of(database_url, counts) == [(0, 5), (1, 5), (2, 5), (3, 5), (9, 1)]
    assert rows_of(database_url, alarms) == [(9, 99)]

    readings.add({"rows": json.dumps([{"_error": "bad", **origin}])})
    words = refusal(
        lambda: sink.start(readings.stream("rows STRING"), checkpoint_location=checkpoint, trigger=ONCE)
    )
    assert "has no enqueuedTime" in words


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ("home LONG, readings LONG", "yielded rows without the column 'readings'"),
        ("home INT", "do not match its schema"),
    ],
)
def test_a_step_is_held_to_its_schema(
    readings: Readings, sqlite_url: str, tmp_path: Path, schema: str, expected: str
) -> None:
    """A missing column, or a value that does not fit, ends the query with the reason; nothing is written."""

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.select(["home"])

    table = Table("held", MetaData(), Column("home", BigInteger), Column("readings", BigInteger))
    sink = LedgerSink(
        name="held",
        database_url=sqlite_url,
        table=table,
        mode=WriteMode.APPEND,
        step=ArrowStep(step, schema),
    )
    readings.add({"home": 5_000_000_000})
    assert expected in refusal(
        lambda: sink.start(
            readings.stream("home LONG"),
            checkpoint_location=tmp_path / "checkpoint",
            output_mode="append",
            trigger=ONCE,
        )
    )
    assert rows_of(sqlite_url, table) == []


def commits(checkpoint: Path) -> list[int]:
    """Batches that Spark has noted as done."""
    return sorted(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())


def test_a_repeated_micro_batch_writes_nothing(readings: Readings, sqlite_url: str, tmp_path: Path) -> None:
    """Spark was stopped between the database's commit and its own: it runs the batch again, we do not write.

    The query has state, whose next version it gets from the repeated batch: each change is appended once.
    """
    checkpoint = tmp_path / "checkpoint"
    changes = Table("changes", MetaData(), Column("home", Integer), Column("readings", Integer))
    sink = LedgerSink(name="changes", database_url=sqlite_url, table=changes, mode=WriteMode.APPEND)
    stream = count_by_home(readings.stream("home LONG"))
    for home in (1, 2, 1):
        readings.add({"home": home})
    finish(sink.start(stream, checkpoint_location=checkpoint, trigger=ONCE))
    (checkpoint / "commits" / str(commits(checkpoint)[-1])).unlink()
    readings.add({"home": 1})
    finish(sink.start(stream, checkpoint_location=checkpoint, trigger=ONCE))
    assert rows_of(sqlite_url, changes) == [(1, 1), (1, 2), (1, 3), (2, 1)]


def test_a_checkpoint_directory_that_does_not_fit_is_refused(
    readings: Readings, sqlite_url: str, tmp_path: Path
) -> None:
    """A new one, and one that was restored from a backup; the token that the refusal names lets it pass."""
    checkpoint, backup = tmp_path / "checkpoint", tmp_path / "backup"
    stream = readings.stream("home LONG, reading INT")

    def start(directory: Path, adopt: str | None = None) -> StreamingQuery:
        sink = LedgerSink(
            name="alarms", database_url=sqlite_url, table=alarms, mode=WriteMode.APPEND, adopt=adopt
        )
        return sink.start(stream, checkpoint_location=directory, output_mode="append", trigger=ONCE)

    for home in range(3):
        readings.add({"home": home, "reading": home})
        finish(start(checkpoint))
        if home == 0:
            shutil.copytree(checkpoint, backup)
    before = rows_of(sqlite_url, alarms)
    assert "has other events than it was committed with" in refusal(lambda: start(backup))
    words = refusal(lambda: start(tmp_path / "new"))
    assert "by another checkpoint directory" in words
    assert rows_of(sqlite_url, alarms) == before
    token = words.partition("adopt='")[2].partition("'")[0]
    finish(start(tmp_path / "new", token))
    assert rows_of(sqlite_url, alarms) == sorted(before * 2)


def test_what_does_not_fit_the_table_is_refused_at_the_start(
    spark: SparkSession, readings: Readings, sqlite_url: str, tmp_path: Path
) -> None:
    """By name, before Spark plans a batch."""

    def words(schema: str, sink: LedgerSink) -> str:
        with pytest.raises(InvalidArgumentError) as caught:
            sink.start(readings.stream(schema), checkpoint_location=tmp_path / "checkpoint")
        return str(caught.value)

    sink = LedgerSink(name="counts", database_url=sqlite_url, table=counts)
    assert "a column 'hoem', and counts have none" in words("hoem LONG, readings INT", sink)
    assert "no column 'readings', which the table counts needs" in words("home LONG", sink)
    assert "'readings' is array<int>" in words("home LONG, readings ARRAY<INT>", sink)
    assert "whose dead letters" in words("home LONG, readings INT, _error STRING", sink)
    step = ArrowStep(iter, "hoem LONG")
    stepping = LedgerSink(name="counts", database_url=sqlite_url, table=counts, step=step)
    assert "a column 'hoem', and counts have none" in words("home LONG, readings INT", stepping)
    no_columns = LedgerSink(
        name="counts", database_url=sqlite_url, table=counts, step=ArrowStep(iter, "LONG")
    )
    assert "which has no columns" in words("home LONG, readings INT", no_columns)
    sink = LedgerSink(name="counts", database_url=sqlite_url, table=counts, consumer=CONSUMER)
    assert "no column 'partition'" in words("home LONG, readings INT, _error STRING", sink)
    made = Table(
        "made",
        MetaData(),
        Column("home", BigInteger, primary_key=True, autoincrement=False),
        Column("name", Text, default=lambda: "a"),
    )
    sink = LedgerSink(name="made", database_url=sqlite_url, table=made)
    assert "'name', and its default in the table made is a function" in words("home LONG", sink)
    both = {"counts": LedgerTable(counts), "alarms": LedgerTable(alarms, WriteMode.APPEND)}
    sink = LedgerSink(name="counts", database_url=sqlite_url, tables=both)
    assert "do not say which they are for" in words("home LONG, readings INT", sink)
    with pytest.raises(InvalidArgumentError, match="no primary key to upsert by"):
        LedgerSink(name="alarms", database_url=sqlite_url, table=alarms)
    with pytest.raises(InvalidArgumentError, match="this call is not one"):
        LedgerSink(name="counts", database_url=sqlite_url, table=counts).write(spark.range(1), 0)


def test_a_function_of_ones_own_gives_a_frame_for_each_table_once(
    readings: Readings, sqlite_url: str, tmp_path: Path
) -> None:
    """Both tables in one transaction; a second call for the same batch would lose its rows, so it fails."""
    sink = LedgerSink(
        name="homes",
        database_url=sqlite_url,
        tables={"counts": LedgerTable(counts), "alarms": LedgerTable(alarms, WriteMode.APPEND)},
    )
    readings.add({"home": 1, "reading": 5}, {"home": 1, "reading": 95})

    def write(rows: DataFrame, batch_id: int) -> None:
        loud = rows.where("reading > 90")
        assert sink.write({"counts": count_by_home(rows), "alarms": loud}, batch_id).rows == 2
        with pytest.raises(InvalidArgumentError, match="twice in one run"):
            sink.write({"alarms": loud}, batch_id)

    stream = readings.stream("home LONG, reading INT")
    finish(
        stream.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert rows_of(sqlite_url, counts) == [(1, 2)]
    assert rows_of(sqlite_url, alarms) == [(1, 95)]


def test_a_function_of_ones_own_may_leave_batches_out(
    readings: Readings, sqlite_url: str, tmp_path: Path
) -> None:
    """Within a run; a batch that follows some that another run left out could also follow a lost database."""
    sink = LedgerSink(name="alarms", database_url=sqlite_url, table=alarms, mode=WriteMode.APPEND)

    def write(rows: DataFrame, batch_id: int) -> None:
        if not rows.isEmpty():
            sink.write(rows, batch_id)

    def run(*loudness: int) -> StreamingQuery:
        for reading in loudness:
            readings.add({"home": 1, "reading": reading})
        stream = readings.stream("home LONG, reading INT").where("reading > 90")
        writer = stream.writeStream.foreachBatch(write)
        return (
            writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    finish(run(91, 1, 2, 92, 3))
    assert rows_of(sqlite_url, alarms) == [(1, 91), (1, 92)]
    assert "let it call write for each micro-batch" in refusal(lambda: run(93))


@both_ways
def test_a_row_that_a_staging_task_cannot_write_is_named(
    readings: Readings, database_url: str, tmp_path: Path, driver_bytes_max: int
) -> None:
    """The error comes through Spark with the row and its column in it, and nothing is written."""
    narrow = Table("narrow", MetaData(), Column("home", Integer, CheckConstraint("home < 100")))
    readings.add({"home": 5}, {"home": 5_000_000_000}, {"home": 6})
    sink = LedgerSink(
        name="narrow",
        database_url=database_url,
        table=narrow,
        mode=WriteMode.APPEND,
        driver_bytes_max=driver_bytes_max,
    )
    stream = readings.stream("home LONG")
    words = refusal(
        lambda: sink.start(stream, checkpoint_location=tmp_path / "c", output_mode="append", trigger=ONCE)
    )
    assert "The database refused a row for narrow" in words
    assert "The row: home=5000000000." in words
    assert rows_of(database_url, narrow) == []
