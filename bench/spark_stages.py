"""The Spark stages: reading to a no-op sink, and the exactly-once pipeline into SQLite and PostgreSQL."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute
import sqlalchemy as sa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.measure import Measurement, timed
from bench.stages import ingest
from bench.targets import READ
from tidegate.model.events import ReceivedEvent
from tidegate.spark import Trigger, register, run_pipeline
from tidegate.sql import ArrowHandler, Database, Handler, Pipeline
from tidegate.testing.hub import HubProcess

ROUNDS = 3
PARTITIONS = 4
READ_EVENTS = 1_800_000
"""Of a batch query: with a third of them, its start is a quarter of what is measured."""
WRITE_EVENTS = 600_000
SMALL_EVENTS, SMALL_EVENT_BYTES = 4_000_000, 100
"""Of pipelines into SQL, whose rows are small."""
SMALL_BATCH_EVENTS = 1_000_000
"""Of their micro-batches: as large as those of the hand-written probe whose rates are the floor."""
BULK_ROWS = 1_500_000
"""Of what they are compared with, which takes as long per row however many there are."""

TABLE = sa.Table(
    "bench_reading",
    sa.MetaData(),
    sa.Column("partition_id", sa.String(8), primary_key=True),
    sa.Column("sequence_number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("device", sa.String(16)),
    sa.Column("body_bytes", sa.Integer),
    sa.Column("enqueued_time_ms", sa.BigInteger),
)


def reading(event: ReceivedEvent) -> dict[str, object]:
    """A trivial handler: one row of five columns per event."""
    return {
        "partition_id": event.partition_id,
        "sequence_number": event.sequence_number,
        "device": event.properties.get("device"),
        "body_bytes": len(event.body),
        "enqueued_time_ms": event.enqueued_time_ms,
    }


def readings(batch: pa.RecordBatch) -> pa.Table:
    """The same rows from a batch of events."""
    compute: Any = pyarrow.compute
    times_us: Any = batch.column("enqueuedTime").cast(pa.int64())
    return pa.table(
        {
            "partition_id": batch.column("partition"),
            "sequence_number": batch.column("sequenceNumber"),
            "device": batch.column("properties.device"),
            "body_bytes": compute.binary_length(batch.column("body")),
            "enqueued_time_ms": compute.divide(times_us, 1000),
        }
    )


ARROW_HANDLER = ArrowHandler(
    readings, ("body", "partition", "sequenceNumber", "enqueuedTime", "properties.device")
)


DEVICES: Final = (1, 500, 20_000, READ_EVENTS)
"""Distinct properties of the events that are read: alike, of some devices, unique."""


def name_of_read(name: str, devices: int) -> str:
    """What a read of events of so many devices is called."""
    if devices == 1:
        return name
    return f"{name}, unique properties" if devices >= READ_EVENTS else f"{name}, {devices:,} devices"


def fill_hub(service: HubProcess, events: int, event_bytes: int, *, devices: int = 1) -> str:
    """A new hub of PARTITIONS partitions with that many events of one random body; its name."""
    hub = service.create_hub(partition_count=PARTITIONS)
    ingest(service, hub, [os.urandom(event_bytes)] * events, PARTITIONS, devices=devices)
    return hub


def rows_expected(events: int, event_bytes: int) -> list[tuple[object, ...]]:
    """What ``reading`` makes of such a hub, for the database's own bulk load."""
    return [
        (str(partition), number, "d-1", event_bytes, 1_700_000_000_000)
        for partition in range(PARTITIONS)
        for number in range(events // PARTITIONS)
    ]


def spark_reads(
    spark: SparkSession,
    service: HubProcess,
    hub: str,
    events: int,
    event_bytes: int,
    *,
    peer_read: Callable[[], Measurement] | None = None,
    rounds: int = ROUNDS,
    devices: int = 1,
) -> list[list[Measurement]]:
    """Batch reads of the whole hub, all columns, to Spark's ``noop`` sink, in turns with a peer's.

    Each round's, ours first (without a peer only ours), with a ratio to the other; Spark is warm.
    """
    register(spark)
    frame = (
        spark.read.format("eventhubs")
        .option("eventhubs.connectionString", service.hub_connection_string(hub))
        .option("eventhubs.startingPosition", "earliest")
        .load()
    )

    def read() -> Measurement:
        with timed(
            name_of_read(READ, devices),
            events=events,
            payload_bytes=events * event_bytes,
            service_pid=service.process_id,
            with_descendants=True,
        ) as measurement:
            frame.write.format("noop").mode("overwrite").save()
        return measurement

    _in_turns(read, peer_read, 1)
    return _in_turns(read, peer_read, rounds)


def _in_turns(
    ours: Callable[[], Measurement], peer: Callable[[], Measurement] | None, rounds: int
) -> list[list[Measurement]]:
    """Each round's measurements, ours first, with its ratio to the peer's."""
    found = []
    for _ in range(rounds):
        found.append([ours()] if peer is None else [ours(), peer()])
        for measurement in found[-1][1:]:
            found[-1][0].compare_with(measurement)
    return found


def median_round(rounds: Sequence[list[Measurement]]) -> list[Measurement]:
    """The round in the middle, by its ratio where there is a peer: that is of two that ran side by side."""

    def place(found: list[Measurement]) -> float:
        return found[0].events_per_s / (found[1].events_per_s if len(found) > 1 else 1.0)

    return sorted(rounds, key=place)[len(rounds) // 2]


def spark_write(spark: SparkSession, service: HubProcess, events: int, event_bytes: int) -> Measurement:
    """A batch query that publishes keyed events of one size to a hub of its own; Spark is warm.

    Rows are made by Spark itself, so its share is small: one repeated string as the body.
    """
    register(spark)
    hub = service.create_hub(partition_count=4)
    rows = spark.range(0, events).selectExpr(
        f"repeat('x', {event_bytes}) AS body", "cast(id % 1000 AS string) AS partitionKey"
    )

    def write(count: int) -> None:
        writer = rows.limit(count) if count < events else rows
        (
            writer.write.format("eventhubs")
            .mode("append")
            .option("eventhubs.connectionString", service.hub_connection_string(hub))
            .save()
        )

    write(1000)
    with timed(
        "Spark rows → hub, acknowledged",
        events=events,
        payload_bytes=events * event_bytes,
        service_pid=service.process_id,
        with_descendants=True,
    ) as measurement:
        write(events)
    return measurement


def exactly_once(
    spark: SparkSession,
    service: HubProcess,
    hub: str,
    events: int,
    event_bytes: int,
    directory: Path,
    *,
    name: str = "exactly-once → SQLite",
    handler: Handler | ArrowHandler = reading,
    make_url: Callable[[], str] | None = None,
    bulk_load: Callable[[], Measurement],
    batch_events: int = SMALL_BATCH_EVENTS,
    rounds: int = ROUNDS,
) -> list[Measurement]:
    """The pipeline with a Python handler: rows and checkpoint in one transaction per partition batch.

    Its micro-batches, planning and journal included, but for the first, which starts the query; after one
    whole run that warms Spark up, in turns with the database's own bulk load: the round in the middle, ours
    first. Rows are counted afterwards. make_url: gives empty databases; None: SQLite files.
    """
    assert events >= 2 * batch_events, "the first micro-batch is left out"
    directory = Path(tempfile.mkdtemp(dir=directory))
    attempts = itertools.count()

    def run() -> tuple[str, StreamingQuery]:
        attempt = f"attempt-{next(attempts)}"
        database_url = make_url() if make_url else f"sqlite:///{directory}/{attempt}.db"
        pipeline = Pipeline("bench", hub, TABLE, handler)
        place = directory / attempt
        query = _run_to_end(spark, service, pipeline, events, place, database_url, batch_events)
        return database_url, query

    def measured() -> Measurement:
        with timed(
            name,
            events=events,
            payload_bytes=events * event_bytes,
            service_pid=service.process_id,
            with_descendants=True,
        ) as measurement:
            database_url, query = run()
        _leave_first_out(measurement, query)
        rows = _count_and_drop(database_url)
        assert rows == events, f"{rows} rows of {events} events"
        return measurement

    database_url, _ = run()
    _count_and_drop(database_url)
    return median_round(_in_turns(measured, bulk_load, rounds))


def _count_and_drop(database_url: str) -> int:
    """Rows of the table, which is gone afterwards: its upkeep would go on while the next is measured."""
    with Database.open(database_url) as database, database.writing() as connection, connection.begin():
        rows: int = connection.execute(sa.select(sa.func.count()).select_from(TABLE)).scalar_one()
        TABLE.drop(connection)
    return rows


def _leave_first_out(measurement: Measurement, query: StreamingQuery) -> None:
    """Make it of the micro-batches behind the first; of CPU time, their share by events."""
    found = [json.loads(progress.json) for progress in query.recentProgress]
    batches = [progress for progress in found if progress["numInputRows"]][1:]
    share = sum(batch["numInputRows"] for batch in batches) / measurement.events
    measurement.events = round(measurement.events * share)
    measurement.payload_bytes = round(measurement.payload_bytes * share)
    measurement.client_cpu_s *= share
    measurement.service_cpu_s *= share
    measurement.wall_s = sum(batch["durationMs"]["triggerExecution"] for batch in batches) / 1000


def _run_to_end(
    spark: SparkSession,
    service: HubProcess,
    pipeline: Pipeline,
    events: int,
    checkpoint_location: Path,
    database_url: str,
    batch_events: int,
) -> StreamingQuery:
    query = run_pipeline(
        spark,
        pipeline,
        connection_string=service.hub_connection_string(pipeline.event_hub),
        database_url=database_url,
        checkpoint_location=checkpoint_location,
        trigger=Trigger(is_available_now=True),
        max_events_per_trigger=batch_events,
    )
    query.awaitTermination()
    return query
