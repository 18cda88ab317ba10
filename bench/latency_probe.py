"""A pipeline into PostgreSQL by hand, with PySpark's data source API and psycopg alone: a floor for latency.

Its events are made where they are read, by the clock, so nothing is fetched. Two tasks read 16 partitions in
the same columns as our pipeline, run the same function over them, and commit each partition in a transaction
that compares and sets its checkpoint. What is left out is all that makes a pipeline safe: claims, dead
letters, refused rows, lost commits.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from bench import spark_stages
from bench.spark_stages import readings
from tidegate.spark.runtime.workers import end_quietly_if_planning, freeze_loaded_modules
from tidegate.transport.clock import SystemClock

PARTITIONS: Final = 16
_BODY: Final = bytes(100)
_TABLES: Final = (
    "CREATE TABLE bench_reading (partition_id text, sequence_number bigint, device text, body_bytes int, "
    "enqueued_time_ms bigint, PRIMARY KEY (partition_id, sequence_number))",
    "CREATE TABLE by_hand_checkpoint (partition_id text PRIMARY KEY, next_number bigint)",
)
_SCHEMA: Final = (
    "partition string, sequenceNumber long, enqueuedTime timestamp, body binary, `properties.device` string"
)


def start_by_hand(spark: SparkSession, database_url: str, rate: int, checkpoint: Path) -> StreamingQuery:
    """Start it at so many events per second, from now on. Spark has to run on this machine."""
    with psycopg.connect(database_url) as connection:
        for statement in _TABLES:
            connection.execute(statement)
        connection.cursor().executemany(
            "INSERT INTO by_hand_checkpoint VALUES (%s, 0)", [(str(n),) for n in range(PARTITIONS)]
        )
    # Spark's workers find neither this module nor that of the function by their names.
    for module in (spark_stages, sys.modules[__name__]):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    spark.dataSource.register(_source())
    rows = spark.readStream.format("by-hand").options(rate=rate, began=_now_s()).load()
    writer = rows.writeStream.format("by-hand").option("database", database_url)
    return writer.option("checkpointLocation", str(checkpoint)).start()


def _now_s() -> float:
    return SystemClock().now_utc().timestamp()


def _source() -> type[DataSource]:
    class Reader(DataSourceStreamReader):
        def __init__(self, rate: int, began: float) -> None:
            self._rate, self._began = rate, began

        def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
            return {"until": 0}

        def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
            return {"until": int((_now_s() - self._began) * self._rate)}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return [InputPartition((task, start["until"], end["until"])) for task in range(2)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            freeze_loaded_modules()
            task, start, until = partition.value
            for number in range(task, PARTITIONS, 2):
                events = np.arange(start + (number - start) % PARTITIONS, until, PARTITIONS)
                times_us = (self._began + events / self._rate) * 1e6
                columns: list[Any] = [
                    pa.repeat(str(number), len(events)),
                    pa.array(events // PARTITIONS),
                    pa.array(times_us.astype(np.int64)).cast(pa.timestamp("us", tz="UTC")),
                    pa.repeat(pa.scalar(_BODY), len(events)),
                    pa.repeat("d-1", len(events)),
                ]
                names = ["partition", "sequenceNumber", "enqueuedTime", "body", "properties.device"]
                if len(events):
                    yield pa.RecordBatch.from_arrays(columns, names)

    class Writer(DataSourceStreamArrowWriter):
        def __init__(self, database_url: str) -> None:
            self._url = database_url

        def write(self, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
            freeze_loaded_modules()
            kept = vars(psycopg).setdefault("by_hand", {})  # a connection for each worker and database
            if self._url not in kept:
                kept[self._url] = psycopg.connect(self._url)
            table = pa.Table.from_batches(batches)
            names: list[Any] = table.column("partition").unique().to_pylist()
            for name in names:
                rows = table.filter(pa.compute.equal(table.column("partition"), name))
                with kept[self._url].transaction():
                    self._commit(kept[self._url].cursor(), name, rows.combine_chunks().to_batches()[0])
            return WriterCommitMessage()

        def _commit(self, cursor: psycopg.Cursor[Any], name: str, events: pa.RecordBatch) -> None:
            numbers: Any = events.column("sequenceNumber").to_pylist()
            lock = "SELECT next_number FROM by_hand_checkpoint WHERE partition_id = %s FOR UPDATE"
            (expected,) = cursor.execute(lock, (name,)).fetchone() or (None,)
            assert expected == numbers[0], f"{expected} was expected, and {numbers[0]} came"
            text = pa.BufferOutputStream()
            pa.csv.write_csv(readings(events), text, pa.csv.WriteOptions(include_header=False))
            with cursor.copy("COPY bench_reading FROM STDIN (FORMAT csv)") as copy:
                copy.write(text.getvalue().to_pybytes())
            move = (
                "UPDATE by_hand_checkpoint SET next_number = %s WHERE partition_id = %s AND next_number = %s"
            )
            cursor.execute(move, (numbers[-1] + 1, name, expected))
            assert cursor.rowcount == 1

    class Source(DataSource):
        def __init__(self, options: dict[str, str]) -> None:
            super().__init__(options)
            end_quietly_if_planning()

        @classmethod
        def name(cls) -> str:
            return "by-hand"

        def schema(self) -> str:
            return _SCHEMA

        def streamReader(self, schema: StructType) -> Reader:  # noqa: N802 - Spark's name
            end_quietly_if_planning()
            return Reader(int(self.options["rate"]), float(self.options["began"]))

        def streamWriter(self, schema: StructType, overwrite: bool) -> Writer:  # noqa: N802 - Spark's name
            end_quietly_if_planning()
            return Writer(self.options["database"])

    return Source
