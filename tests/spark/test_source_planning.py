"""What Spark makes of the source: pruned columns, pushed filters, split partitions, and each trigger."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.spark.support import publish

from tidegate.client import EventHubProducer
from tidegate.model.events import EventData
from tidegate.spark import explain, register
from tidegate.spark.progress.lag import partition_lags, partition_losses
from tidegate.spark.runtime.session import task_options
from tidegate.spark.source.offsets import StreamOffset
from tidegate.spark.source.options import SourceOptions
from tidegate.spark.source.reader import EventHubsBatchReader, EventHubsStreamReader
from tidegate.testing.hub import HubService

pytestmark = pytest.mark.spark

_COUNT = 120


@pytest.fixture(scope="module")
def filled_hub(hub_service: HubService) -> str:
    """A connection string with EntityPath of a hub with three partitions of 40 events each."""
    hub = hub_service.create_hub(partition_count=3)
    publish(hub_service.connection_string, hub, _COUNT)
    return hub_service.hub_connection_string(hub)


def _read(spark: SparkSession, connection_string: str, schema: str = "", **options: str) -> DataFrame:
    reader = spark.read.format("eventhubs").option("eventhubs.connectionString", connection_string)
    if schema:
        reader = reader.schema(schema)
    return reader.options(**{f"eventhubs.{name}": value for name, value in options.items()}).load()


def test_columns_are_those_that_the_schema_names(spark: SparkSession, filled_hub: str) -> None:
    """In its order, in batch and in stream; a misspelt one is refused by name."""
    rows = _read(spark, filled_hub, "sequenceNumber LONG, body BINARY, partition STRING")
    assert rows.columns == ["sequenceNumber", "body", "partition"]
    found = {(row.partition, row.sequenceNumber, json.loads(row.body)["value"]) for row in rows.collect()}
    assert found == {(str(value % 3), value // 3, value) for value in range(_COUNT)}
    rows = _read(spark, filled_hub, "`properties.parity` STRING, body BINARY, `properties.none` STRING")
    assert {(row[0], json.loads(row[1])["value"], row[2]) for row in rows.collect()} == {
        ("odd" if value % 2 else "even", value, None) for value in range(_COUNT)
    }
    with pytest.raises(PySparkException) as caught:
        _read(spark, filled_hub, "partition STRING, sequencenumber LONG").count()
    assert explain(caught.value).startswith("The source has no column 'sequencenumber'.")
    with pytest.raises(PySparkException) as caught:
        _read(spark, filled_hub, "sequenceNumber INT").count()
    assert "sequenceNumber is of type bigint, not int" in explain(caught.value)


def test_an_option_without_effect_is_a_warning_once_per_query(
    filled_hub: str, caplog: pytest.LogCaptureFixture
) -> None:
    """From where it is planned, at a level that is seen: not in every process that reads the options."""
    options = SourceOptions.parse({"connectionString": filled_hub, "eventhubs.prefetchCount": "500"})
    line = "The option eventhubs.prefetchCount has no effect: a task reads its whole range"
    assert not caplog.records
    EventHubsBatchReader(options).partitions()
    assert [record.levelname for record in caplog.records if line in record.message] == ["WARNING"]
    caplog.clear()
    reader = EventHubsStreamReader(options)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    reader.partitions(start, end)
    reader.latestOffset(end, ReadAllAvailable())
    assert caplog.text.count(line) == 1
    caplog.clear()
    EventHubsStreamReader(options).partitions(start, end)  # a restart, which repeats a micro-batch
    assert caplog.text.count(line) == 1


_TAKEN_WHOLE = [
    "partition = '1'",
    "partition IN ('0', '2') AND sequenceNumber >= 10 AND sequenceNumber < 13",
    "sequenceNumber > 37",
    "partition = '7'",
]
_LEFT_TO_SPARK = [
    "sequenceNumber IN (1, 5)",
    "enqueuedTime >= timestamp '2020-01-01' AND enqueuedTime < current_timestamp()",
    "enqueuedTime < timestamp '2020-01-01'",
    "sequenceNumber <= 3 OR partition = '1'",
    "partitionKey IS NULL AND partition <> '0'",
]


def test_a_filtered_read_is_the_whole_read_filtered(spark: SparkSession, filled_hub: str) -> None:
    """Filters that are taken leave the plan, and the rows are those of the same filter after reading."""
    columns = "partition STRING, sequenceNumber LONG, enqueuedTime TIMESTAMP, partitionKey STRING"
    whole = spark.createDataFrame(_read(spark, filled_hub, columns).collect(), columns)
    for condition in [*_TAKEN_WHOLE, *_LEFT_TO_SPARK]:
        filtered = _read(spark, filled_hub, columns, pushFilters="true").where(condition)
        assert sorted(filtered.collect()) == sorted(whole.where(condition).collect()), condition
        plan = filtered._jdf.queryExecution().executedPlan().toString()  # type: ignore[operator,unused-ignore]
        assert (") Filter " not in plan) == (condition in _TAKEN_WHOLE), plan


def test_a_query_after_a_filtered_one_has_all_rows(spark: SparkSession, filled_hub: str) -> None:
    """Spark keeps a plan that a source has filtered for later queries of the same DataFrame."""
    rows = _read(spark, filled_hub)
    assert rows.where("partition = '1' AND sequenceNumber < 3").count() == 3
    assert rows.count() == _COUNT


def test_a_plain_session_needs_nothing_else(spark: SparkSession, filled_hub: str) -> None:
    """Spark refuses a reader that takes filters unless they are on; by default, they are not."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert _read(spark, filled_hub).where("partition = '1'").count() == _COUNT // 3
        register(spark)
        rows = _read(spark, filled_hub, pushFilters="true")
        assert rows.where("partition = '1'").count() == _COUNT // 3
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_spark_that_gives_no_limit_is_given_one_from_the_second_micro_batch_on(
    hub_service: HubService, caplog: pytest.LogCaptureFixture
) -> None:
    """Before 4.2, an end is asked for without its start, which only planned micro-batches then say."""
    hub = hub_service.create_hub(partition_count=2)
    publish(hub_service.connection_string, hub, 40)
    options = SourceOptions.parse(
        {"connectionString": hub_service.hub_connection_string(hub), "maxEventsPerTrigger": "10"}
    )
    reader = EventHubsStreamReader(options)
    ends = [reader.latestOffset()]
    assert "does not limit the first micro-batch" in caplog.text
    reader.partitions(reader.initialOffset(), ends[0])
    publish(hub_service.connection_string, hub, 30)
    for _ in range(2):
        ends.append(reader.latestOffset())
        reader.partitions(ends[-2], ends[-1])
    restarted = EventHubsStreamReader(options)
    restarted.partitions(ends[-2], ends[-1])  # the last micro-batch, repeated
    ends += [restarted.latestOffset(), restarted.latestOffset()]
    assert [StreamOffset.from_json(end).partitions for end in ends] == [
        {"0": read, "1": read} for read in (20, 25, 30, 35, 35)
    ]


def test_a_skewed_partition_is_read_by_several_tasks(spark: SparkSession, hub_service: HubService) -> None:
    """A batch query shares it out by itself, a stream only where told; each event comes once."""
    hub = hub_service.create_hub(partition_count=2)

    async def send() -> None:
        async with EventHubProducer.from_connection_string(hub_service.connection_string, hub) as producer:
            await producer.enqueue_many([EventData(b"x")] * 40_000, partition_id="0")
            await producer.enqueue_many([EventData(b"x")] * 10, partition_id="1")
            await producer.flush()

    asyncio.run(send())
    connection_string = hub_service.hub_connection_string(hub)
    columns = "partition STRING, sequenceNumber LONG"
    rows = _read(spark, connection_string, columns, tasksMax="6")
    assert rows.rdd.getNumPartitions() == 5
    found = rows.groupBy("partition").agg({"sequenceNumber": "sum", "*": "count"}).collect()
    sums = {row["partition"]: (row["count(1)"], row["sum(sequenceNumber)"]) for row in found}
    assert sums == {"0": (40_000, 40_000 * 39_999 // 2), "1": (10, 45)}
    whole = _read(spark, connection_string, columns, tasksMax="6", splitPartitions="false")
    assert whole.rdd.getNumPartitions() == 2


def test_cores_at_the_start_are_no_limit_on_a_cluster(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors may join there; but tasksMin is never above tasksMax, however many cores there are."""
    assert task_options(spark) == {"eventhubs.tasksMax": "2"}
    monkeypatch.setattr("tidegate.spark.runtime.session.is_on_cluster", lambda: True)
    assert task_options(spark) == {"eventhubs.tasksMin": "2", "eventhubs.tasksMax": "1024"}
    monkeypatch.setattr("tidegate.spark.runtime.session.CLUSTER_TASKS_MAX", 1)
    assert task_options(spark) == {"eventhubs.tasksMin": "2", "eventhubs.tasksMax": "2"}


@pytest.mark.parametrize(
    ("trigger", "batches"),
    [
        ({}, [50, 50, 20]),
        ({"processingTime": "10 milliseconds"}, [50, 50, 20]),
        ({"availableNow": True}, [50, 50, 20]),
        ({"once": True}, [120]),  # Spark's: the whole backlog at once, whatever the limit
    ],
)
def test_each_trigger(
    spark: SparkSession, filled_hub: str, tmp_path: Path, trigger: dict[str, Any], batches: list[int]
) -> None:
    """Micro-batches within the limit until all is read; the progress tells what each partition is behind."""
    writer = (
        spark.readStream.format("eventhubs")
        .options(**{"eventhubs.connectionString": filled_hub, "maxEventsPerTrigger": "50"})
        .schema("partition STRING, sequenceNumber LONG")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
    )
    query = (writer.trigger(**trigger) if trigger else writer).start()
    try:
        if trigger.keys() & {"availableNow", "once"}:
            assert query.awaitTermination(60)
        else:
            query.processAllAvailable()
        progress = [item for item in query.recentProgress if item.numInputRows]
    finally:
        query.stop()
    assert [item.numInputRows for item in progress] == batches
    lags = [sum(partition_lags(item.json).values()) for item in progress]
    assert lags == [_COUNT - sum(batches[: index + 1]) for index in range(len(batches))]
    assert partition_losses(progress[-1].json) == {}


def test_continuous_processing_is_refused_by_spark(
    spark: SparkSession, filled_hub: str, tmp_path: Path
) -> None:
    """The engine has it for JVM sources only, and says so when the query is started."""
    stream = spark.readStream.format("eventhubs").option("eventhubs.connectionString", filled_hub).load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(PySparkException, match="does not support continuous processing"):
        writer.trigger(continuous="1 second").start()
