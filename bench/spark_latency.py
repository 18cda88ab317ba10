"""From an event's acceptance to its row's commit in PostgreSQL, by a pipeline on Spark that keeps running.

    python -m bench.spark_latency [--rates 1000,20000] [--seconds S] [--warm-up S] [--json FILE]

The hub has 16 partitions; a process of its own publishes at a steady rate. PostgreSQL syncs, and notes when
each transaction was committed (``track_commit_timestamp``), so nothing is polled. What is measured is a
pipeline that keeps running: until the JVM has compiled what it runs often, its compiler takes one of two
cores, and micro-batches take twice as long, so a pipeline of its own runs first. The floor is what a
micro-batch takes whose source and sink do nothing, in the same run and as warm; beside it stand the latencies
of a pipeline by hand (``bench.latency_probe``), before ours at each rate. That one makes its events itself
and reads no hub; the same publisher publishes beside it, so that both pipelines have as much of the cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType
from rich.console import Console
from rich.table import Table
from tests.support.postgresql import PostgresqlServer

from bench.latency_probe import start_by_hand
from bench.spark_stages import ARROW_HANDLER, TABLE
from bench.stages import PROPERTIES
from tidegate.client import EventHubProducer
from tidegate.model.events import EventData
from tidegate.spark import register, run_pipeline, spark_session
from tidegate.spark.runtime.workers import end_quietly_if_planning, freeze_loaded_modules
from tidegate.sql import Database, Pipeline
from tidegate.testing.hub import HubProcess

RATES: Final = (1_000, 20_000)
PARTITIONS: Final = 16
_BODY_BYTES = 100
_SECONDS = 20.0
_WARM_UP_S = 45.0
_LEFT_OUT_S = 8.0
"""Of each rate: the beginning of its query."""
_DEADLINE_S = 300.0
_EVERY_S = 0.005
_BATCHES_COUNTED = 50
_CONNECTION_STRING_VARIABLE = "TIDEGATE_BENCH_CONNECTION_STRING"
_progress = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Latency:
    """What a rate came to."""

    rate: int
    """Asked for, in events per second."""
    events: int
    """Those that count."""
    p50_ms: float
    p99_ms: float
    batches: int
    """Micro-batches of the whole run."""
    batch_ms: float
    """What a micro-batch takes, at the end of the run; the median."""
    floor_ms: float
    """The same where nothing is read and nothing is written."""
    by_hand_p50_ms: float
    by_hand_p99_ms: float
    """Of the pipeline by hand, right before."""


def measure_latencies(
    spark: SparkSession,
    server: PostgresqlServer,
    rates: Sequence[int],
    seconds: float = _SECONDS,
    warm_up_s: float = _WARM_UP_S,
) -> list[Latency]:
    """Each rate in turn, into a hub and a schema of its own. server: restarted, to note commit times."""
    server.execute("ALTER SYSTEM SET track_commit_timestamp = on")
    server.stop()
    server.start()
    register(spark)
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name,
        HubProcess(Path(name) / "data") as hub,
    ):

        def run(rate: int, run_s: float, floor_ms: float = 0.0) -> Latency:
            hand, ours = (Path(tempfile.mkdtemp(dir=name)) for _ in range(2))
            by_hand_ms = _by_hand_ms(spark, hub, server.create_schema(), rate, run_s, hand)
            found = _measure(spark, hub, server.create_schema(), rate, run_s, ours)
            return Latency(rate, *found, floor_ms, *by_hand_ms)

        if warm_up_s:
            _progress.print(f"warming up: {warm_up_s:.0f} s")
            run(min(rates), warm_up_s)
        floor_ms = _floor_ms(spark, seconds, Path(name) / "checkpoint")
        found = [run(rate, seconds, floor_ms) for rate in rates]
    for one in found:
        if math.isnan(one.p50_ms + one.by_hand_p50_ms):
            raise RuntimeError(
                f"{one.rate:,} events/s: no row came in time; publish for longer than {seconds} s"
            )
    return found


def _floor_ms(spark: SparkSession, seconds: float, checkpoint: Path) -> float:
    """What a micro-batch takes whose tasks do nothing: a source in Python, and no sink."""
    _progress.print("measuring: micro-batches of nothing")
    spark.dataSource.register(_source_of_nothing())
    rows = spark.readStream.format("nothing").option("tasks", spark.sparkContext.defaultParallelism).load()
    query = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    try:
        query.awaitTermination(round(seconds))
        return _batch_ms(query)
    finally:
        query.stop()


def _source_of_nothing() -> type[DataSource]:
    """Every micro-batch has as many tasks as the options say, with a row each."""

    # Inside a function, for Spark's workers do not find this module by its name.
    class Reader(DataSourceStreamReader):
        def __init__(self, tasks: int) -> None:
            self._tasks = tasks

        def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
            return {"batch": 0}

        def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
            return {"batch": start["batch"] + 1}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return [InputPartition(task) for task in range(self._tasks)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            freeze_loaded_modules()
            yield (partition.value,)

    class Source(DataSource):
        def __init__(self, options: dict[str, str]) -> None:
            super().__init__(options)
            end_quietly_if_planning()

        @classmethod
        def name(cls) -> str:
            return "nothing"

        def schema(self) -> str:
            return "task int"

        def streamReader(self, schema: StructType) -> Reader:  # noqa: N802 - Spark's name
            end_quietly_if_planning()
            return Reader(int(self.options["tasks"]))

    return Source


def _batch_ms(query: StreamingQuery) -> float:
    """The median of the last micro-batches that had something to read."""
    found = [progress.batchDuration for progress in query.recentProgress if progress.numInputRows]
    return statistics.median(found[-_BATCHES_COUNTED:])


def _measure(
    spark: SparkSession,
    service: HubProcess,
    database_url: str,
    rate: int,
    seconds: float,
    checkpoint: Path,
) -> tuple[int, float, float, int, float]:
    """Events that count, p50, p99, micro-batches, and what one takes, in milliseconds."""
    _progress.print(f"measuring: latency at {rate:,} events/s")
    hub = service.create_hub(partition_count=PARTITIONS)
    query = run_pipeline(
        spark,
        Pipeline("bench", hub, TABLE, ARROW_HANDLER),
        connection_string=service.connection_string,
        database_url=database_url,
        checkpoint_location=checkpoint,
    )
    count = round(rate * seconds)
    try:
        _publish(service, hub, rate, seconds)
        with Database.open(database_url) as database:
            _wait_for(query, database, count)
            found = _percentiles(database)
        last = query.lastProgress
        assert last is not None
        batches = last.batchId + 1
        batch_ms = _batch_ms(query)
    finally:
        query.stop()
    return *found, batches, batch_ms


def _by_hand_ms(
    spark: SparkSession,
    service: HubProcess,
    database_url: str,
    rate: int,
    seconds: float,
    checkpoint: Path,
) -> tuple[float, float]:
    """p50 and p99 of the pipeline by hand, with as much published beside it."""
    _progress.print(f"measuring: latency at {rate:,} events/s, by hand")
    hub = service.create_hub(partition_count=PARTITIONS)
    query = start_by_hand(spark, database_url, rate, checkpoint)
    try:
        _publish(service, hub, rate, seconds)
        if not query.isActive:
            query.awaitTermination()  # raises what it ended with
    finally:
        query.stop()
    with Database.open(database_url) as database:
        _, p50, p99 = _percentiles(database)
    return p50, p99


def _publish(service: HubProcess, hub: str, rate: int, seconds: float) -> None:
    """Publish at that rate, by a process of its own, and wait for its end."""
    environment = os.environ | {_CONNECTION_STRING_VARIABLE: service.hub_connection_string(hub)}
    words = [sys.executable, "-m", "bench.spark_latency", "--publish", str(rate), "--seconds", str(seconds)]
    subprocess.run(words, env=environment, check=True, timeout=_DEADLINE_S + seconds)


def _wait_for(query: StreamingQuery, database: Database, count: int) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        with database.read() as connection:
            rows = connection.execute(sa.select(sa.func.count()).select_from(TABLE)).scalar_one()
        if rows >= count:
            assert rows == count, f"{rows} rows of {count} events"
            return
        if not query.isActive:
            query.awaitTermination()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{rows} of {count} rows after {_DEADLINE_S:.0f} s")
        time.sleep(0.2)


def _percentiles(database: Database) -> tuple[int, float, float]:
    """Events that count, p50 and p99 in milliseconds (NaN: none counts)."""
    statement = sa.text(
        "WITH found AS (SELECT enqueued_time_ms, "
        "extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1000 - enqueued_time_ms AS ms "
        "FROM bench_reading) "
        "SELECT count(*), percentile_cont(0.5) WITHIN GROUP (ORDER BY ms), "
        "percentile_cont(0.99) WITHIN GROUP (ORDER BY ms) FROM found "
        "WHERE enqueued_time_ms > (SELECT min(enqueued_time_ms) FROM found) + :left_out"
    )
    with database.read() as connection:
        count, p50, p99 = connection.execute(statement, {"left_out": _LEFT_OUT_S * 1000}).one()
    return (int(count), float(p50), float(p99)) if count else (0, math.nan, math.nan)


async def publish(connection_string: str, rate: int, seconds: float) -> None:
    """Publish ``rate × seconds`` events at that rate, to the partitions in turn."""
    count, sent, turn = round(rate * seconds), 0, 0
    async with EventHubProducer.from_connection_string(connection_string) as producer:
        await producer.start()
        started = time.monotonic()
        while sent < count:
            due = min(count, int((time.monotonic() - started) * rate))
            while sent < due:
                some = min(due - sent, 1 + rate // 1_000)
                events = [EventData(os.urandom(_BODY_BYTES), PROPERTIES) for _ in range(some)]
                await producer.enqueue_many(events, partition_id=str(turn % PARTITIONS))
                sent, turn = sent + some, turn + 1
            await asyncio.sleep(_EVERY_S)
        await producer.flush()


def print_latencies(latencies: Sequence[Latency], console: Console | None = None) -> None:
    """A table. console: None: standard output."""
    table = Table(title="Event to PostgreSQL by Spark, 16 partitions", title_justify="left")
    columns = (
        "events/s",
        "events",
        "p50 ms",
        "p99 ms",
        "by hand",
        "of it",
        "micro-batches",
        "one takes ms",
        "floor ms",
    )
    for column in columns:
        table.add_column(column, justify="right")
    for found in latencies:
        table.add_row(
            f"{found.rate:,}",
            f"{found.events:,}",
            f"{found.p50_ms:,.0f}",
            f"{found.p99_ms:,.0f}",
            f"{found.by_hand_p50_ms:,.0f}, {found.by_hand_p99_ms:,.0f}",
            f"{found.p50_ms / found.by_hand_p50_ms:.2f}, {found.p99_ms / found.by_hand_p99_ms:.2f}",
            f"{found.batches:,}",
            f"{found.batch_ms:,.0f}",
            f"{found.floor_ms:,.0f}",
        )
    (console or Console(width=None if sys.stdout.isatty() else 130)).print(table)


def main() -> None:
    """Measure and print, or publish for a measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", default=",".join(map(str, RATES)), help="events per second, by commas")
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="of publishing, for each rate")
    parser.add_argument("--warm-up", type=float, default=_WARM_UP_S, help="seconds before that; 0: none")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--publish", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.publish is None and (given.seconds <= _LEFT_OUT_S or 0 < given.warm_up <= _LEFT_OUT_S):
        parser.error(f"--seconds and --warm-up: more than {_LEFT_OUT_S:g}, for so many are left out")
    if given.publish is not None:
        asyncio.run(publish(os.environ[_CONNECTION_STRING_VARIABLE], given.publish, given.seconds))
        return
    spark = spark_session("bench")
    try:
        with PostgresqlServer(is_fsync_used=True) as server:
            rates = [int(rate) for rate in given.rates.split(",")]
            latencies = measure_latencies(spark, server, rates, given.seconds, given.warm_up)
    finally:
        spark.stop()
    print_latencies(latencies)
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(found) for found in latencies], indent=2))


if __name__ == "__main__":
    main()
