"""Two declared pipelines over one event hub: every flight that arrived, and the mean delay by carrier.

    tidegate pipeline run flight_delays.py:arrivals --database sqlite:///flights.db
    tidegate pipeline run flight_delays.py:delays --database sqlite:///delays.db
    tidegate pipeline status

The hub ``flights`` holds JSON objects, as ``python -m examples.flights`` publishes them: carrier, flight,
origin, dest, dep_time, arr_delay. A flight without an arrival delay was cancelled or diverted: ``arrivals``
dead-letters it, ``delays`` counts it.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from sqlalchemy import BigInteger, Column, Float, Integer, MetaData, String, Table

from tidegate.spark import HubSource, SqlBatchSink, SqlSink, StreamPipeline

metadata = MetaData()

arrival = Table(
    "arrival",
    metadata,
    # The event's address is the key: the database would refuse a second row for an event.
    Column("partition", String(16), primary_key=True),
    Column("sequenceNumber", BigInteger, primary_key=True, autoincrement=False),
    Column("carrier", String(2), nullable=False),
    Column("origin", String(3), nullable=False),
    Column("destination", String(3), nullable=False),
    Column("delay_minutes", Integer, nullable=False),
)

carrier_delay = Table(
    "carrier_delay",
    metadata,
    Column("carrier", String(2), primary_key=True),
    Column("flights", BigInteger, nullable=False),
    Column("not_arrived", BigInteger, nullable=False),
    Column("mean_delay_minutes", Float),
)


def parsed(events: DataFrame) -> DataFrame:
    """The fields of each flight, and the columns that identify its event."""
    flight = F.from_json(
        F.col("body").cast("string"),
        "carrier STRING, origin STRING, dest STRING, dep_time INT, arr_delay INT",
    )
    return events.select("partition", "sequenceNumber", "offset", "enqueuedTime", flight.alias("flight"))


def arrived(flights: DataFrame) -> DataFrame:
    """The table's columns; ``_error`` is the reason for a dead letter."""
    reason = (
        F.when(F.col("flight.carrier").isNull(), "no flight")
        .when(F.col("flight.arr_delay").isNotNull(), None)
        .when(F.col("flight.dep_time").isNull(), "cancelled")
        .otherwise("diverted")
    )
    return flights.select(
        "partition",
        "sequenceNumber",
        "offset",
        "enqueuedTime",
        F.col("flight.carrier").alias("carrier"),
        F.col("flight.origin").alias("origin"),
        F.col("flight.dest").alias("destination"),
        F.col("flight.arr_delay").alias("delay_minutes"),
        reason.alias("_error"),
    )


def by_carrier(flights: DataFrame) -> DataFrame:
    """The mean of all delays so far; a row is written again whenever it changes."""
    delay = F.col("flight.arr_delay")
    return flights.groupBy(F.col("flight.carrier").alias("carrier")).agg(
        F.count(F.lit(1)).alias("flights"),
        F.count(F.when(delay.isNull(), 1)).alias("not_arrived"),
        F.avg(delay).alias("mean_delay_minutes"),
    )


source = HubSource("flights", max_events_per_trigger=50_000)

arrivals = StreamPipeline("arrivals", source, SqlSink(arrival), [parsed, arrived])

delays = StreamPipeline("delays", source, SqlBatchSink(carrier_delay), [parsed, by_carrier])
