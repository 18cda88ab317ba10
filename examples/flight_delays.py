"""Declared pipelines over one event hub: flights that arrived, delays by carrier, delays by route and hour.

    tidegate pipeline run flight_delays.py:arrivals --database sqlite:///flights.db
    tidegate pipeline run flight_delays.py:delays --database sqlite:///delays.db
    tidegate pipeline run flight_delays.py:hourly --database sqlite:///hourly.db
    tidegate pipeline status

The hub ``flights`` holds JSON objects, as ``python -m examples.flights`` publishes them: carrier, flight,
origin, dest, dep_time, time_hour, arr_delay. A flight without an arrival delay was cancelled or diverted:
``arrivals`` dead-letters it, the others count it.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from sqlalchemy import BigInteger, Column, DateTime, Float, Integer, MetaData, String, Table

from tidegate.spark import HubSource, SqlBatchSink, SqlSink, StreamPipeline

LATENESS: Final = "365 days"
"""How long a window waits for flights. The data set has the months in the order of their names (1, 10, 11,
12, 2, …), so a flight of February comes ten months after one of December; for a live stream, hours would be
enough."""

CARRIER: Final = r"\A[A-Z0-9]{2}\z"
AIRPORT: Final = r"\A[A-Z]{3}\z"

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

hourly_delay = Table(
    "hourly_delay",
    metadata,
    Column("carrier", String(2), primary_key=True),
    Column("origin", String(3), primary_key=True),
    Column("destination", String(3), primary_key=True),
    Column("hour", DateTime(timezone=True), primary_key=True),
    Column("flights", BigInteger, nullable=False),
    Column("not_arrived", BigInteger, nullable=False),
    Column("total_delay_minutes", BigInteger),
    Column("worst_delay_minutes", Integer),
    Column("mean_delay_minutes", Float),
)
"""One row per carrier, route and hour of scheduled departure (UTC). Delays are on arrival, in minutes; null
if no flight arrived."""


def parsed(events: DataFrame) -> DataFrame:
    """The fields of each flight, and the columns that identify its event."""
    flight = F.from_json(
        F.col("body").cast("string"),
        "carrier STRING, origin STRING, dest STRING, dep_time INT, time_hour TIMESTAMP, arr_delay INT",
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
    """The mean of all delays so far; a row is written again whenever it changes.

    Events that are not flights are left out: a sender can add them, and the database would refuse a
    row with a null or long key, and with it the whole micro-batch, at each start of the query.
    """
    delay = F.col("flight.arr_delay")
    return (
        flights.where(F.col("flight.carrier").rlike(CARRIER))
        .groupBy(F.col("flight.carrier").alias("carrier"))
        .agg(
            F.count(F.lit(1)).alias("flights"),
            F.count(F.when(delay.isNull(), 1)).alias("not_arrived"),
            F.avg(delay).alias("mean_delay_minutes"),
        )
    )


def by_hour(flights: DataFrame) -> DataFrame:
    """Windows of an hour of the flights' own time, not of the events'; a window is written again whenever a
    flight joins it.

    Leaves out what ``by_carrier`` does, and departures more than a year after they were sent, which would
    move the watermark to a far future. Of flights of past years alone: one of today, from a user with Send,
    makes those that are a year older too late.
    """
    delay = F.col("arr_delay")
    return (
        flights.where(F.col("flight.carrier").rlike(CARRIER))
        .where(F.col("flight.origin").rlike(AIRPORT) & F.col("flight.dest").rlike(AIRPORT))
        .where("flight.time_hour BETWEEN TIMESTAMP '2000-01-01' AND enqueuedTime + INTERVAL 1 YEAR")
        .select("flight.*")
        .withWatermark("time_hour", LATENESS)
        .groupBy("carrier", "origin", "dest", F.window("time_hour", "1 hour"))
        .agg(
            F.count(F.lit(1)).alias("flights"),
            F.count(F.when(delay.isNull(), 1)).alias("not_arrived"),
            F.sum(delay).alias("total_delay_minutes"),
            F.max(delay).alias("worst_delay_minutes"),
            F.avg(delay).alias("mean_delay_minutes"),
        )
        .withColumnRenamed("dest", "destination")
        .withColumn("hour", F.col("window.start"))
        .drop("window")
    )


source = HubSource("flights", max_events_per_trigger=50_000)

arrivals = StreamPipeline("arrivals", source, SqlSink(arrival), [parsed, arrived])

delays = StreamPipeline("delays", source, SqlBatchSink(carrier_delay), [parsed, by_carrier])

hourly = StreamPipeline("flight-delays", source, SqlBatchSink(hourly_delay), [parsed, by_hour])
