"""From an event's acceptance to its row's commit in PostgreSQL, by a pipeline on Spark that keeps running.

    python -m bench.spark_latency [--rates 1000,20000] [--seconds S] [--json FILE]

The hub has 16 partitions; a process of its own publishes at a steady rate. PostgreSQL syncs, and notes when
each transaction was committed (``track_commit_timestamp``), so nothing is polled. The beginning, in which
Spark's code is compiled, is left out. Floors are those of a hand-written probe of the same shape, on a quiet
machine of two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.table import Table

from bench.spark_stages import ARROW_HANDLER, TABLE
from bench.stages import PROPERTIES
from tidegate.client import EventHubProducer
from tidegate.model.events import EventData
from tidegate.spark import register, run_pipeline, spark_session
from tidegate.sql import Database, Pipeline
from tidegate.testing.hub import HubProcess
from tidegate.testing.postgresql import PostgresqlServer

RATES: Final = (1_000, 20_000)
FLOORS_MS: Final = {1_000: (95, 165), 20_000: (105, 198), 100_000: (145, 257)}
"""Rate → p50 and p99 of the probe."""
PARTITIONS: Final = 16
_BODY_BYTES = 100
_SECONDS = 20.0
_LEFT_OUT_S = 8.0
_DEADLINE_S = 300.0
_EVERY_S = 0.005
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


def measure_latencies(
    spark: SparkSession, server: PostgresqlServer, rates: Sequence[int], seconds: float = _SECONDS
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
        return [
            _measure(spark, hub, server.create_schema(), rate, seconds, Path(name) / f"checkpoint-{rate}")
            for rate in rates
        ]


def _measure(
    spark: SparkSession, service: HubProcess, database_url: str, rate: int, seconds: float, checkpoint: Path
) -> Latency:
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
    environment = os.environ | {_CONNECTION_STRING_VARIABLE: service.hub_connection_string(hub)}
    try:
        words = [
            sys.executable,
            "-m",
            "bench.spark_latency",
            "--publish",
            str(rate),
            "--seconds",
            str(seconds),
        ]
        subprocess.run(words, env=environment, check=True, timeout=_DEADLINE_S + seconds)
        with Database.open(database_url) as database:
            _wait_for(query, database, count)
            found = _percentiles(database)
        batches = sum(1 for progress in query.recentProgress if progress.numInputRows)
    finally:
        query.stop()
    return Latency(rate, *found, batches)


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
    """Events that count, p50 and p99 in milliseconds."""
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
    return int(count), float(p50), float(p99)


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
    for column in ("events/s", "events", "micro-batches", "p50 ms", "p99 ms", "of the probe's p50, p99"):
        table.add_column(column, justify="right")
    for found in latencies:
        floor = FLOORS_MS.get(found.rate)
        table.add_row(
            f"{found.rate:,}",
            f"{found.events:,}",
            f"{found.batches:,}",
            f"{found.p50_ms:,.0f}",
            f"{found.p99_ms:,.0f}",
            f"{found.p50_ms / floor[0]:.2f} × {floor[0]}, {found.p99_ms / floor[1]:.2f} × {floor[1]}"
            if floor
            else "–",
        )
    (console or Console(width=None if sys.stdout.isatty() else 130)).print(table)


def main() -> None:
    """Measure and print, or publish for a measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", default=",".join(map(str, RATES)), help="events per second, by commas")
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="of publishing, for each rate")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--publish", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.publish is not None:
        asyncio.run(publish(os.environ[_CONNECTION_STRING_VARIABLE], given.publish, given.seconds))
        return
    spark = spark_session("bench")
    try:
        with PostgresqlServer(is_fsync_used=True) as server:
            rates = [int(rate) for rate in given.rates.split(",")]
            latencies = measure_latencies(spark, server, rates, given.seconds)
    finally:
        spark.stop()
    print_latencies(latencies)
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(found) for found in latencies], indent=2))


if __name__ == "__main__":
    main()
