"""The ledger sink at work: 1-minute windows of 100,000 keys, upserted into PostgreSQL, in turns with the same
by hand, beside a no-op.

Runs by itself with ``python -m bench.ledger_stages``, at two sizes of a micro-batch.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

import sqlalchemy as sa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from tests.support.postgresql import PostgresqlServer

from bench.measure import Measurement
from bench.probes import start_windows, windowed
from bench.targets import WINDOWS_BY_HAND
from tidegate.spark import LedgerSink, spark_session

BATCH_ROWS = (100_000, 400_000)
ROUNDS = 3
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


def measure_ledger(
    spark: SparkSession, server: PostgresqlServer, directory: Path, rows_per_batch: int
) -> tuple[Measurement, Measurement, Measurement]:
    """The sink, windows by hand, and the same query without a sink: input rows per second, by the median
    micro-batch. The first two in turns, after a round of both that warms Spark up: the round in the middle.
    """
    stream, size = windowed(spark, rows_per_batch), f"{rows_per_batch // 1000} k per batch"
    noop = _run(
        stream.writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(directory / "noop"))
        .start(),
        f"windows → no-op, {size}",
        rows_per_batch,
    )

    def round_of_both(number: int) -> tuple[Measurement, Measurement]:
        name = f"bench-{directory.name}-{number}"
        sink = LedgerSink(name=name, database_url=server.create_database(), table=TABLE)
        ledger = _run(
            sink.start(stream, checkpoint_location=directory / f"ledger-{number}"),
            f"windows → PostgreSQL upsert, {size}",
            rows_per_batch,
        )
        hand = _run(
            start_windows(spark, server.create_database(), rows_per_batch, directory / f"hand-{number}"),
            f"{WINDOWS_BY_HAND}, {size}",
            rows_per_batch,
        )
        ledger.compare_with(hand)
        return ledger, hand

    found = [round_of_both(number) for number in range(1 + ROUNDS)][1:]
    found.sort(key=lambda both: both[0].events_per_s / both[1].events_per_s)
    ledger, hand = found[ROUNDS // 2]
    ledger.compare_with(noop)
    return ledger, hand, noop


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
                for found in measure_ledger(spark, server, folder, rows_per_batch):
                    ratios = "".join(f", {ratio:.2f} of {base}" for base, ratio in found.baselines.items())
                    print(f"{found.name}: {found.events_per_s:,.0f} rows/s{ratios}", flush=True)
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
