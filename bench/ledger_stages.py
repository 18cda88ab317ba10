"""The ledger sink at work: 1-minute windows of 100,000 keys, upserted into PostgreSQL, beside a no-op.

Runs by itself with ``python -m bench.ledger_stages``: both sinks in turn, at two sizes of a micro-batch.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from bench.measure import Measurement
from tidegate.spark import LedgerSink, spark_session
from tidegate.testing.postgresql import PostgresqlServer

KEYS = 100_000
BATCH_ROWS = (100_000, 400_000)
BATCHES_WARM = 3
BATCHES_MEASURED = 6

TABLE = sa.Table(
    "bench_minute",
    sa.MetaData(),
    sa.Column("minute", sa.DateTime(timezone=True), primary_key=True),
    sa.Column("home", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("readings", sa.BigInteger),
    sa.Column("total", sa.BigInteger),
    postgresql_with={"fillfactor": 50},  # as the sink's page has it for current windows of aggregates
)


def windowed(spark: SparkSession, rows_per_batch: int) -> DataFrame:
    """Counts and sums by home and minute; a micro-batch is 6 seconds of time."""
    readings = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rows_per_batch)
        .option("advanceMillisPerBatch", 6_000)
        .load()
    )
    return (
        readings.withWatermark("timestamp", "2 minutes")
        .groupBy(F.window("timestamp", "1 minute").alias("window"), (F.col("value") % KEYS).alias("home"))
        .agg(F.count("*").alias("readings"), F.sum("value").alias("total"))
        .select(F.col("window.start").alias("minute"), "home", "readings", "total")
    )


def measure_ledger(
    spark: SparkSession, database_url: str, directory: Path, rows_per_batch: int
) -> tuple[Measurement, Measurement]:
    """The sink, and the same query without one: input rows per second, by the median micro-batch."""
    stream = windowed(spark, rows_per_batch)
    noop = _run(
        stream.writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(directory / "noop"))
        .start(),
        f"windows → no-op, {rows_per_batch // 1000} k per batch",
        rows_per_batch,
    )
    sink = LedgerSink(name=f"bench-{directory.name}", database_url=database_url, table=TABLE)
    ledger = _run(
        sink.start(stream, checkpoint_location=directory / "ledger"),
        f"windows → PostgreSQL upsert, {rows_per_batch // 1000} k per batch",
        rows_per_batch,
    )
    ledger.compare_with(noop)
    return ledger, noop


def _run(query: StreamingQuery, name: str, rows_per_batch: int) -> Measurement:
    wanted = BATCHES_WARM + BATCHES_MEASURED
    progresses: dict[int, StreamingQueryProgress] = {}
    try:
        while len(progresses) < wanted:
            if not query.isActive:
                query.awaitTermination()
            for progress in query.recentProgress:
                if progress.numInputRows == rows_per_batch:
                    progresses[progress.batchId] = progress
            query.awaitTermination(1)
    finally:
        query.stop()
    measured = [progresses[number] for number in sorted(progresses)][BATCHES_WARM:wanted]
    median_s = statistics.median(progress.batchDuration for progress in measured) / 1000
    return Measurement(name, events=rows_per_batch, wall_s=median_s)


def main() -> int:
    """Measure both sizes and print them."""
    spark = spark_session("tidegate-bench-ledger")
    try:
        with PostgresqlServer(is_fsync_used=True) as server, tempfile.TemporaryDirectory() as directory:
            for rows_per_batch in BATCH_ROWS:
                folder = Path(directory) / str(rows_per_batch)
                folder.mkdir()
                for found in measure_ledger(spark, server.create_schema(), folder, rows_per_batch):
                    ratios = "".join(f", {ratio:.2f} of {base}" for base, ratio in found.baselines.items())
                    print(f"{found.name}: {found.events_per_s:,.0f} rows/s{ratios}", flush=True)
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
