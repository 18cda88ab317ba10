"""Delays by carrier, route and hour of departure: a second, declared pipeline over the flights.

    tidegate pipeline run examples/flights/delays.py:delays --database sqlite:///delays.db --available-now

It reads the hub that ``python -m examples.flights`` fills, independently of the first pipeline: its own
checkpoints, its own table. The rows are windows of the flights' own time, not of the events'; a window is
written again whenever a flight joins it, and each micro-batch is written once. Events that are not flights
are skipped: the first pipeline dead-letters them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import BigInteger, Column, DateTime, Float, Integer, MetaData, String, Table

from tidegate.spark import HubSource, SqlBatchSink, StreamPipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LATENESS: Final = "365 days"
"""How long a window waits for flights. The data set has the months in the order of their names (1, 10, 11,
12, 2, …), so a flight of February comes ten months after one of December; for a live stream, hours would be
enough."""

hourly_delay = Table(
    "hourly_delay",
    MetaData(),
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
    """The fields of each flight that the figures use."""
    from pyspark.sql import functions

    fields = functions.from_json(
        functions.col("body").cast("string"),
        "carrier STRING, origin STRING, dest STRING, time_hour TIMESTAMP, arr_delay INT",
    )
    return (
        events.select(fields.alias("flight"))
        .select("flight.*")
        .where("carrier IS NOT NULL AND origin IS NOT NULL AND dest IS NOT NULL AND time_hour IS NOT NULL")
    )


def by_hour(flights: DataFrame) -> DataFrame:
    """Windows of an hour of the flights' own time, by carrier and route."""
    from pyspark.sql import functions

    delay = functions.col("arr_delay")
    return (
        flights.withWatermark("time_hour", LATENESS)
        .groupBy("carrier", "origin", "dest", functions.window("time_hour", "1 hour"))
        .agg(
            functions.count(functions.lit(1)).alias("flights"),
            functions.count(functions.when(delay.isNull(), 1)).alias("not_arrived"),
            functions.sum(delay).alias("total_delay_minutes"),
            functions.max(delay).alias("worst_delay_minutes"),
            functions.avg(delay).alias("mean_delay_minutes"),
        )
        .withColumnRenamed("dest", "destination")
        .withColumn("hour", functions.col("window.start"))
        .drop("window")
    )


delays = StreamPipeline(
    "flight-delays",
    HubSource("flights", max_events_per_trigger=100_000),
    SqlBatchSink(hourly_delay),
    [parsed, by_hour],
)
