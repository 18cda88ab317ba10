"""Declared pipelines on a real Spark, over a real service: kinds of sink, policies, and the listener."""

from __future__ import annotations

import json
import os
import random
import signal
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from sqlalchemy import BigInteger, Column, MetaData, Table, select, text
from tests.spark.support import publish, readings

from tidegate.client import EventHubProducer
from tidegate.client.blocking.background import run_blocking
from tidegate.model.errors import InvalidArgumentError, PartitionStoppedError
from tidegate.model.events import EventData
from tidegate.model.pipeline_status import PipelineState, PipelineStatus, ProcessIdentity
from tidegate.processor.declared import load_declared
from tidegate.spark import (
    FileSink,
    HubSink,
    HubSource,
    OnFailure,
    SqlBatchSink,
    SqlSink,
    StreamPipeline,
    Trigger,
    start_stream_pipeline,
)
from tidegate.spark.pipelines.failures import error_of, may_pass
from tidegate.spark.progress.listener import listening
from tidegate.spark.progress.report import PipelineReporter
from tidegate.sql import Database, DeadLetters
from tidegate.testing.hub import HubService
from tidegate.transport.clock import SystemClock

EXAMPLE = Path(__file__).resolve().parent.parent.parent / "examples" / "flight_delays.py"
NOW = Trigger(is_available_now=True)


def publish_flights(service: HubService, hub: str, flights: Sequence[dict[str, object]]) -> None:
    """Send flights as the demo does: by carrier and number, so that those of one number stay in order."""

    async def send() -> None:
        async with EventHubProducer.from_connection_string(service.connection_string, hub) as producer:
            for flight in flights:
                key = f"{flight['carrier']}{flight['flight']}"
                await producer.enqueue(EventData(json.dumps(flight).encode()), partition_key=key)
            await producer.flush()

    run_blocking(send)


def some_flights(seed: int, count: int) -> list[dict[str, object]]:
    """Flights of a few carriers; one in ten did not arrive."""
    chance = random.Random(seed)
    flights: list[dict[str, object]] = []
    for number in range(count):
        delay = None if chance.random() < 0.1 else chance.randint(-20, 200)
        departure = None if delay is None and chance.random() < 0.5 else 517
        flights.append(
            {
                "carrier": chance.choice(["AA", "DL", "UA"]),
                "flight": number % 17,
                "origin": "EWR",
                "dest": "ORD",
                "dep_time": departure,
                "arr_delay": delay,
            }
        )
    return flights


@pytest.mark.programs
def test_the_example_runs(
    spark: SparkSession, hub_service: HubService, tmp_path: Path, sqlite_url: str
) -> None:
    """Rows, dead letters and means are those of a recomputation, also after a second start."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    hub = hub_service.create_hub(partition_count=3)
    sent: list[dict[str, object]] = []
    for part in range(2):
        flights = some_flights(seed + part, 300)
        publish_flights(hub_service, hub, flights)
        sent += flights
        for name in ("arrivals", "delays"):
            declared = load_declared(f"{EXAMPLE}:{name}", (StreamPipeline,), noun="pipeline")
            assert isinstance(declared, StreamPipeline)
            start_stream_pipeline(
                spark,
                replace(declared, source=replace(declared.source, event_hub=hub, max_events_per_trigger=200)),
                connection_string=hub_service.connection_string,
                database_url=sqlite_url,
                checkpoint_location=tmp_path / name,
                trigger=NOW,
            ).awaitTermination()

    delays: dict[str, list[object]] = defaultdict(list)
    for flight in sent:
        delays[str(flight["carrier"])].append(flight["arr_delay"])
    with Database.open(sqlite_url) as database:
        with database.read() as connection:
            rows = connection.execute(text("SELECT * FROM arrival")).all()
            averages = connection.execute(text("SELECT * FROM carrier_delay")).all()
        reasons = {item.reason: item.count for item in DeadLetters(database).counts_by_reason()}
    missing = [flight["dep_time"] for flight in sent if flight["arr_delay"] is None]
    assert len(rows) == len(sent) - len(missing)
    assert reasons == {"cancelled": missing.count(None), "diverted": missing.count(517)}
    for carrier, flight_count, not_arrived, mean in averages:
        known = [delay for delay in delays.pop(carrier) if isinstance(delay, int)]
        assert mean == pytest.approx(sum(known) / len(known))
        assert (flight_count - not_arrived) == len(known)
    assert not delays


def judged(events: DataFrame) -> DataFrame:
    """Every seventh event cannot be scored, as with the tests' handler."""
    value = F.get_json_object(F.col("body").cast("string"), "$.value").cast("int")
    return events.select(
        "partition",
        "sequenceNumber",
        "offset",
        "enqueuedTime",
        F.col("sequenceNumber").alias("number"),
        value.alias("value"),
        F.when(value % 7 == 3, F.concat(F.lit("seven: "), value)).alias("_error"),
    )


@pytest.mark.programs
def test_policies_and_files(
    spark: SparkSession, hub_service: HubService, tmp_path: Path, sqlite_url: str
) -> None:
    """`stop` names the event and writes nothing of it; `skip` leaves it out; both also without a database."""
    hub = hub_service.create_hub(partition_count=1)
    publish(hub_service.connection_string, hub, 20)
    stopping = StreamPipeline(
        "policy", HubSource(hub), SqlSink(readings), [judged], on_failure=OnFailure.STOP
    )

    def run(pipeline: StreamPipeline, checkpoint: str) -> None:
        start_stream_pipeline(
            spark,
            pipeline,
            connection_string=hub_service.connection_string,
            database_url=sqlite_url if isinstance(pipeline.sink, SqlSink) else None,
            checkpoint_location=tmp_path / checkpoint,
            trigger=NOW,
        ).awaitTermination()

    with pytest.raises(Exception, match="STREAM_FAILED") as caught:
        run(stopping, "sql")
    error = error_of(caught.value)
    assert isinstance(error, PartitionStoppedError)
    assert "(partition 0 number 3): seven: 3." in str(error)
    assert _values(sqlite_url) == []

    run(replace(stopping, on_failure=OnFailure.SKIP), "sql")
    whole = [value for value in range(20) if value % 7 != 3]
    assert _values(sqlite_url) == whole

    to_files = replace(
        stopping, sink=FileSink(str(tmp_path / "out"), format="parquet"), on_failure=OnFailure.SKIP
    )
    with pytest.raises(InvalidArgumentError, match="belongs to a sink of the kind 'sql'"):
        run(to_files, "sql")
    run(to_files, "files")
    found = spark.read.parquet(str(tmp_path / "out")).select("value").collect()
    assert sorted(row.value for row in found) == whole


def _dies(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    os.kill(os.getpid(), signal.SIGKILL)
    yield from batches


def _raises(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        int("Python worker exited unexpectedly")
    yield from ()


@pytest.mark.programs
@pytest.mark.parametrize("is_batch", [True, False], ids=["foreachBatch", "tasks"])
def test_only_a_lost_worker_may_pass(
    spark: SparkSession, hub_service: HubService, tmp_path: Path, sqlite_url: str, is_batch: bool
) -> None:
    """In the words of this Spark; an event's that a step quotes are not taken for them."""
    hub = hub_service.create_hub(partition_count=1)
    publish(hub_service.connection_string, hub, 3)
    numbers = Table("numbers", MetaData(), Column("number", BigInteger, primary_key=True))
    sink = SqlBatchSink(numbers) if is_batch else FileSink(str(tmp_path / "files"))
    for function, is_passing in ((_dies, True), (_raises, False)):

        def step(events: DataFrame, function: Any = function) -> DataFrame:
            numbers = events.select(F.col("sequenceNumber").alias("number"))
            return numbers.mapInArrow(function, "number LONG")

        name = function.__name__.strip("_")
        pipeline = StreamPipeline(name, HubSource(hub), sink, [step], on_failure=OnFailure.SKIP)
        query = start_stream_pipeline(
            spark,
            pipeline,
            connection_string=hub_service.connection_string,
            database_url=sqlite_url,
            checkpoint_location=tmp_path / name,
            trigger=NOW,
        )
        with pytest.raises(StreamingQueryException) as caught:
            query.awaitTermination()
        assert may_pass(caught.value) is is_passing, str(caught.value)


def _values(database_url: str) -> list[int]:
    with Database.open(database_url) as database, database.read() as connection:
        return list(connection.execute(select(readings.c.value).order_by(readings.c.value)).scalars())


def test_the_listener_tells_and_harms_nothing(
    spark: SparkSession, hub_service: HubService, tmp_path: Path
) -> None:
    """It reports each micro-batch of its query, survives a report that fails, and is gone afterwards."""
    hub, target = hub_service.create_hub(partition_count=2), hub_service.create_hub(partition_count=2)
    publish(hub_service.connection_string, hub, 60)
    now = SystemClock().now_utc()
    status = PipelineStatus(
        name="copied",
        state=PipelineState.STARTING,
        process=ProcessIdentity("host", 1, ""),
        event_hub=hub,
        consumer_group="$Default",
        namespace="localhost",
        sink="hub",
        target=target,
        checkpoint=str(tmp_path),
        started_at=now,
        updated_at=now,
    )
    seen: list[PipelineStatus] = []

    def watch(status: PipelineStatus, is_batch: bool) -> None:
        if is_batch:
            seen.append(status)
            raise ValueError("of no interest to the query")

    reporter = PipelineReporter(status, clock=SystemClock(), write=lambda _: None, watch=watch)
    copied = StreamPipeline(
        "copied",
        HubSource(hub, max_events_per_trigger=25, options={"tasksMin": "1", "tasksMax": "3"}),
        HubSink(target),
        [lambda events: events.select("body", "partitionKey")],
    )
    streams = spark._jsparkSession.streams()  # type: ignore[attr-defined,unused-ignore]
    listeners_before = len(streams.listListeners())
    with reporter, listening(spark, "copied", reporter) as listener:
        query = start_stream_pipeline(
            spark,
            copied,
            connection_string=hub_service.connection_string,
            checkpoint_location=tmp_path / "checkpoint",
            trigger=NOW,
        )
        query.awaitTermination()
        assert listener.is_over.wait(30)
    assert len(streams.listListeners()) == listeners_before
    assert [item.events for item in seen] == [25, 25, 10]
    end = json.loads((tmp_path / "checkpoint/offsets/0").read_text().splitlines()[-1])
    assert end["tasks"]["max"] == 1, "the source's own options count, not this machine's cores"
    assert (reporter.status.events_total, reporter.status.lag_events) == (60, 0)
    copy = spark.read.format("eventhubs").option(
        "eventhubs.connectionString", hub_service.hub_connection_string(target)
    )
    bodies = [json.loads(bytes(row.body))["value"] for row in copy.load().select("body").collect()]
    assert sorted(bodies) == list(range(60))
