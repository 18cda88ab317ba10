"""``mapped_events``: a function's rows instead of events, and what Spark knows of the events all the same."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.spark.support import publish

from tidegate.model.errors import InvalidArgumentError
from tidegate.spark import ArrowStep, explain, mapped_events, register
from tidegate.spark.formats import ProcessedDataSource
from tidegate.spark.progress.batches import BatchProgress
from tidegate.testing.hub import HubService

_COUNT = 600
_SUMS = "partition string, values long, sum long"


def _sums(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A row for each batch."""
    for batch in batches:
        assert batch.schema.names == ["body", "partition"]
        (partition,) = set(batch.column("partition").to_pylist())
        bodies: list[Any] = batch.column("body").to_pylist()
        values = [json.loads(body)["value"] for body in bodies]
        yield pa.RecordBatch.from_pydict(
            {"partition": [partition], "values": [len(values)], "sum": [sum(values)]}
        )


def _twice(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each sequence number two times."""
    for batch in batches:
        yield batch
        yield batch


@pytest.fixture
def hub(hub_service: HubService) -> str:
    """The connection string of a hub of four partitions that has the events."""
    name = hub_service.create_hub(partition_count=4)
    publish(hub_service.connection_string, name, _COUNT)
    return hub_service.hub_connection_string(name)


def _options(connection_string: str, **more: str) -> dict[str, str]:
    options = {"connectionString": connection_string, "startingPosition": "earliest", **more}
    return {f"eventhubs.{name}": value for name, value in options.items()}


def _run(rows: DataFrame, folder: Path) -> tuple[list[dict[str, Any]], StreamingQuery]:
    """What a query gives that reads what is there now, and the query, which has ended."""
    query = (
        rows.writeStream.format("json")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .option("path", str(folder / "rows"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    files = sorted((folder / "rows").glob("*.json"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()], query


def test_what_the_function_makes_and_events_counted(
    spark: SparkSession, hub_service: HubService, hub: str, tmp_path: Path
) -> None:
    """Each event comes to the function once, also over a restart; progress and its reader count events,
    though there are fewer rows."""
    options: dict[str, str | int | bool] = {**_options(hub), "eventhubs.maxEventsPerTrigger": 250}
    rows = mapped_events(spark, options, ArrowStep(_sums, _SUMS), columns=["body", "partition"])
    assert rows.schema.simpleString() == "struct<partition:string,values:bigint,sum:bigint>"
    found, query = _run(rows, tmp_path)
    assert sum(row["sum"] for row in found) == sum(range(_COUNT))
    counts: Counter[str] = Counter()
    for row in found:
        counts[row["partition"]] += row["values"]
    assert counts == dict.fromkeys("0123", _COUNT // 4)
    progress = [item for item in query.recentProgress if item.numInputRows]
    assert [item.numInputRows for item in progress] == [250, 250, 100]
    assert [BatchProgress.parse(item.json).events for item in progress] == [250, 250, 100]
    assert len(found) < _COUNT / 4
    publish(hub_service.connection_string, hub.rpartition("EntityPath=")[2], 100, first_value=_COUNT)
    found, query = _run(rows, tmp_path)
    assert sum(row["values"] for row in found) == _COUNT + 100
    assert sum(row["sum"] for row in found) == sum(range(_COUNT + 100))
    assert sum(item.numInputRows for item in query.recentProgress) == 100


def test_a_function_may_make_more_rows_than_there_are_events(
    spark: SparkSession, hub: str, tmp_path: Path
) -> None:
    """Spark then counts them."""
    step = ArrowStep(_twice, "sequenceNumber long")
    rows = mapped_events(spark, _options(hub), step, columns=["sequenceNumber"])
    found, query = _run(rows, tmp_path)
    numbers = Counter(row["sequenceNumber"] for row in found)
    assert numbers == dict.fromkeys(range(_COUNT // 4), 2 * 4)
    assert sum(item.numInputRows for item in query.recentProgress) == 2 * _COUNT


def test_what_is_wrong_is_said_before_the_query_starts(spark: SparkSession, hub: str) -> None:
    """Columns and options that are none, and a function that no worker can be sent."""
    step = ArrowStep(_sums, _SUMS)
    with pytest.raises(InvalidArgumentError, match="Events have no column 'bdy'"):
        mapped_events(spark, _options(hub), step, columns=["bdy"])
    with pytest.raises(InvalidArgumentError, match="got the string 'body'"):
        mapped_events(spark, _options(hub), step, columns="body")
    with pytest.raises(InvalidArgumentError, match="endingPosition is for batch queries"):
        mapped_events(spark, _options(hub, endingPosition="latest"), step, columns=["body"])
    with pytest.raises(InvalidArgumentError, match="maxEventPerTrigger"):
        mapped_events(spark, _options(hub, maxEventPerTrigger="5"), step, columns=["body"])
    lock = threading.Lock()

    def locked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with lock:
            yield from batches

    with pytest.raises(InvalidArgumentError, match="function that is to map events cannot be sent to Spark"):
        mapped_events(spark, _options(hub), ArrowStep(locked, "body binary"), columns=["body"])


@pytest.mark.programs
def test_what_the_function_yields_and_raises_is_said(spark: SparkSession, hub: str, tmp_path: Path) -> None:
    """Rows that are not what was declared end the query with one sentence, as does an error of its own."""

    def broken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise ValueError("no sensor of that name")

    for number, (step, words) in enumerate(
        (
            (ArrowStep(_sums, "partition string, mean double"), "yielded rows without the column 'mean'"),
            (ArrowStep(_letters, "partition long"), "yielded rows that do not match its schema"),
            (ArrowStep(_tables, "partition string"), "must yield a pyarrow.RecordBatch, got a Table"),
            (ArrowStep(broken, _SUMS), "no sensor of that name"),
        )
    ):
        rows = mapped_events(spark, _options(hub), step, columns=["body", "partition"])
        with pytest.raises(PySparkException) as caught:
            _run(rows, tmp_path / str(number))
        assert words in explain(caught.value)


def _letters(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"partition": ["a"] * batch.num_rows})


def _tables(batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
    for batch in batches:
        yield pa.Table.from_batches([batch])


def test_the_format_is_not_for_others(spark: SparkSession, hub: str, tmp_path: Path) -> None:
    """It needs the plan of ``run_pipeline`` or ``mapped_events``, with or without a schema, and says so."""
    register(spark)
    reader = spark.readStream.format(ProcessedDataSource.name()).options(**_options(hub))
    with pytest.raises(PySparkException) as caught:
        reader.load()
    assert "cannot be used directly" in explain(caught.value)
    writer = reader.schema(_SUMS).load().writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(PySparkException) as caught:
        query.awaitTermination(60)
    assert "Use tidegate.spark.run_pipeline or tidegate.spark.mapped_events" in explain(caught.value)
