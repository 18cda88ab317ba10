"""``LedgerSink``: micro-batches of any query into SQL tables, each once, on both databases."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from sqlalchemy import BigInteger, Column, Integer, MetaData, Table, select, text

from tidegate.spark import LedgerSink, Trigger, explain
from tidegate.sql import ConsumerKey, Database

_TIMEOUT_S = 60
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


@pytest.fixture(params=["driver", "stages"])
def driver_bytes_max(request: pytest.FixtureRequest) -> int:
    """Once with rows through the driver, once with rows staged by tasks."""
    return 0 if request.param == "stages" else 1 << 24


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


def count_by_home(stream: DataFrame) -> DataFrame:
    """How many readings each home has sent so far."""
    return stream.groupBy("home").agg(F.count("*").cast("int").alias("readings"))


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
