"""Scores flights with Arrow: one function call per batch, no Python object per flight, each flight once.

    python flights_by_batch.py                                                 # process all, then end
    tidegate dlq redrive flights_by_batch.py:corrected_pipeline --database sqlite:///flights.db

The events are those of `python -m examples.flights`: JSON objects with the columns of the data set. A flight
that never arrived becomes a dead letter, because `score` sets `_error`. So does a body that is not JSON:
`read_json` raises, and the batch is halved until only that event is left.
"""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.json
from pyspark.sql import SparkSession
from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table

from tidegate import Pipeline, Trigger, run_pipeline, spark_session
from tidegate.sql import ArrowHandler

pc: Any = pyarrow.compute

arrivals = Table(
    "arrivals",
    MetaData(),
    # The event's address is the key: the database would refuse a second row for an event.
    Column("partition_id", String(64), primary_key=True),
    Column("sequence_number", BigInteger, primary_key=True, autoincrement=False),
    Column("flight_date", String(10), nullable=False),
    Column("carrier", String(2), nullable=False),
    Column("flight_number", Integer, nullable=False),
    Column("arrival_delay_minutes", Integer),
)

_FIELDS: list[tuple[str, pa.DataType]] = [
    ("year", pa.int32()),
    ("month", pa.int32()),
    ("day", pa.int32()),
    ("carrier", pa.string()),
    ("flight", pa.int32()),
    ("dep_time", pa.int32()),
    ("arr_delay", pa.int32()),
]
LINE = pa.schema([("flight", pa.struct(_FIELDS))])


def parse(batch: pa.RecordBatch) -> Any:
    """The flights of a batch, in its order. Raises if a body is not a flight's JSON object.

    An empty body and one with two objects must not shift the flights between them to other events. So each
    body is wrapped: ``{"flight":BODY}``. Whatever it contains, the added ``}`` is outside strings, which
    have no raw line feed, and the next ``{``, without a comma, is valid outside objects alone. So each yields
    at least one object or an error, and where the total is right, each has yielded one.
    """
    bodies: list[Any] = batch.column("body").to_pylist()
    lines: Any = b'{"flight":' + b'}\n{"flight":'.join(bodies) + b"}"
    source: Any = pa.BufferReader(lines)
    objects = pyarrow.json.read_json(
        source,
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
        parse_options=pyarrow.json.ParseOptions(explicit_schema=LINE, unexpected_field_behavior="ignore"),
    )
    if len(objects) != len(batch):
        raise ValueError("a body is not one JSON object")
    flights: Any = pa.Table.from_struct_array(objects["flight"])
    return flights


def record(batch: pa.RecordBatch) -> pa.Table:
    """A row for every flight, in the order of the events, which is how rows are matched with events."""
    flights = parse(batch)
    parts = [flights[name].cast(pa.string()) for name in ("year", "month", "day")]
    return pa.table(
        {
            "partition_id": batch.column("partition"),
            "sequence_number": batch.column("sequenceNumber"),
            "flight_date": pc.binary_join_element_wise(*(pc.utf8_lpad(part, 2, "0") for part in parts), "-"),
            "carrier": flights["carrier"],
            "flight_number": flights["flight"],
            "arrival_delay_minutes": flights["arr_delay"],
        }
    )


def score(batch: pa.RecordBatch) -> pa.Table:
    """The same, but with a dead letter for a flight that never arrived."""
    flights = parse(batch)
    reasons = pc.if_else(
        pc.is_valid(flights["arr_delay"]),
        pa.scalar(None, pa.string()),
        pc.if_else(pc.is_valid(flights["dep_time"]), "The flight was diverted.", "The flight was cancelled."),
    )
    return record(batch).append_column("_error", reasons)


columns = ("body", "partition", "sequenceNumber")
pipeline = Pipeline("arrivals", "flights", arrivals, ArrowHandler(score, columns))
corrected_pipeline = Pipeline("arrivals", "flights", arrivals, ArrowHandler(record, columns))
"""The same name, since it is the next version of the same pipeline, for the same dead letters."""


def run(spark: SparkSession, connection_string: str, database_url: str) -> None:
    """Process the available events, and exit."""
    query = run_pipeline(
        spark,
        pipeline,
        connection_string=connection_string,
        database_url=database_url,
        checkpoint_location="checkpoints/arrivals",
        trigger=Trigger(is_available_now=True),
    )
    query.awaitTermination()


if __name__ == "__main__":
    run(spark_session("arrivals"), os.environ["TIDEGATE_CONNECTION_STRING"], "sqlite:///flights.db")
