"""What an engineer writes by hand in an afternoon, with Spark and psycopg alone: a floor for ours.

One-minute windows of 100,000 homes are upserted into PostgreSQL: as many rows as there are readings, nearly
all of them there already. (Home security writes two thirds of a row for a reading, most of them new.) The
readings come from a counter of Spark's, so no hub is read, no body parsed, no door or alarm kept. It runs in
turns with what it is compared with, for rates of a shared machine say nothing by themselves: in the same
Spark as the ledger sink, and beside home security in one of its own (``probe_process``), for home security's
JVM is set up for work in Python, and here Java does the counting.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import psycopg
import pyarrow as pa
import pyarrow.csv
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from bench.micro_batches import ALL_PROGRESS, Run, measure_query
from tidegate.spark import spark_session

NAME: Final = "windows by hand"
KEYS: Final = 100_000
_TABLE: Final = (
    "CREATE TABLE by_hand (minute timestamptz, home bigint, readings bigint, total bigint, "
    "PRIMARY KEY (minute, home)) WITH (fillfactor = 50)"
)
_MERGE: Final = (
    "INSERT INTO by_hand SELECT * FROM fresh ON CONFLICT (minute, home) "
    "DO UPDATE SET readings = excluded.readings, total = excluded.total"
)


@contextmanager
def probe_process() -> Iterator[ProcessPoolExecutor]:
    """A process that ``measure_windows`` can be submitted to, with one Spark for all calls."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            yield pool
        finally:
            pool.submit(_stop_spark).result()


def measure_windows(
    database_url: str, rows_per_batch: int, checkpoint: Path, rows: int, server_pid: int
) -> Run:
    """Measure so many rows in this process, whose Spark is kept for the next call.

    server_pid: PostgreSQL's.
    """
    spark = spark_session("bench-by-hand", configuration=ALL_PROGRESS)
    start = partial(start_windows, spark, database_url, rows_per_batch, checkpoint)
    return measure_query(NAME, start, events=rows, server_pid=server_pid)


def _stop_spark() -> None:
    session = SparkSession.getActiveSession()
    if session is not None:
        session.stop()


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


def start_windows(
    spark: SparkSession, database_url: str, rows_per_batch: int, checkpoint: Path
) -> StreamingQuery:
    """Start one-minute windows of 100,000 homes: counted by Spark with the state store that it comes with,
    collected, copied into a temporary table and merged."""
    with psycopg.connect(database_url) as connection:
        connection.execute(_TABLE)
    writer = windowed(spark, rows_per_batch).writeStream.outputMode("update")
    return (
        writer.option("checkpointLocation", str(checkpoint))
        .foreachBatch(partial(_upsert, database_url))
        .start()
    )


def _upsert(database_url: str, rows: DataFrame, batch_id: int) -> None:
    fresh = pa.BufferOutputStream()
    pa.csv.write_csv(rows.toArrow(), fresh, pa.csv.WriteOptions(include_header=False))
    with psycopg.connect(database_url) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE fresh (LIKE by_hand) ON COMMIT DROP")
        with cursor.copy("COPY fresh FROM STDIN (FORMAT csv)") as copy:
            copy.write(fresh.getvalue().to_pybytes())
        cursor.execute(_MERGE)
