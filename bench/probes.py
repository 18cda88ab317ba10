"""What an engineer writes by hand in an afternoon, with Spark and psycopg alone: a floor for ours.

One-minute windows of 100,000 homes are upserted into PostgreSQL: as many rows as there are readings, nearly
all of them there already. (Home security writes two thirds of a row for a reading, most of them new.) The
readings come from a counter of Spark's, so no hub is read, no body parsed, no door or alarm kept. It runs in
the same Spark as what it is compared with, in turns with it, for rates of a shared machine say nothing by
themselves.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

import psycopg
import pyarrow as pa
import pyarrow.csv
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.ledger_stages import windowed

_STORE: Final = "spark.sql.streaming.stateStore.providerClass"
_PACKAGE: Final = "org.apache.spark.sql.execution.streaming.state"

_TABLE: Final = (
    "CREATE TABLE by_hand (minute timestamptz, home bigint, readings bigint, total bigint, "
    "PRIMARY KEY (minute, home)) WITH (fillfactor = 50)"
)
_MERGE: Final = (
    "INSERT INTO by_hand SELECT * FROM fresh ON CONFLICT (minute, home) "
    "DO UPDATE SET readings = excluded.readings, total = excluded.total"
)


def start_windows(
    spark: SparkSession, database_url: str, rows_per_batch: int, checkpoint: Path
) -> StreamingQuery:
    """Start one-minute windows of 100,000 homes: counted by Spark with the state store that it comes with,
    collected, copied into a temporary table and merged."""
    with psycopg.connect(database_url) as connection:
        connection.execute(_TABLE)
    store = spark.conf.get(_STORE)
    spark.conf.set(_STORE, f"{_PACKAGE}.HDFSBackedStateStoreProvider")
    try:
        writer = windowed(spark, rows_per_batch).writeStream.outputMode("update")
        return (
            writer.option("checkpointLocation", str(checkpoint))
            .foreachBatch(partial(_upsert, database_url))
            .start()
        )
    finally:
        spark.conf.set(_STORE, str(store))


def _upsert(database_url: str, rows: DataFrame, batch_id: int) -> None:
    fresh = pa.BufferOutputStream()
    pa.csv.write_csv(rows.toArrow(), fresh, pa.csv.WriteOptions(include_header=False))
    with psycopg.connect(database_url) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE fresh (LIKE by_hand) ON COMMIT DROP")
        with cursor.copy("COPY fresh FROM STDIN (FORMAT csv)") as copy:
            copy.write(fresh.getvalue().to_pybytes())
        cursor.execute(_MERGE)
