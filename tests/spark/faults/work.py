"""What Spark does with the numbered events of the fault tests: rows per event, or aggregates over all.

The events, what is to become of each, and the table for rows are those of the hosts' fault tests.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from sqlalchemy import BigInteger, Column, MetaData, Table
from tests.processor.faults.work import (
    PUT_ASIDE_ONE_IN,
    RAISED_ONE_IN,
    Fate,
    PoisonError,
    fate_of,
    sink,
)

from tidegate.model.events import ReceivedEvent
from tidegate.sql import Pipeline

KEY_COUNT: Final = 499
"""Keys of the aggregates; a prime, so that each key has events of all partitions."""

aggregates = Table(
    "chaos_aggregates",
    MetaData(),
    Column("key", BigInteger, primary_key=True, autoincrement=False),
    Column("events", BigInteger, nullable=False),
    Column("total", BigInteger, nullable=False),
    Column("lowest", BigInteger, nullable=False),
    Column("highest", BigInteger, nullable=False),
)
"""One row for each key, over the events that become rows: how many, their numbers' sum, ends."""


class PutAsideError(Exception):
    """What the handler raises for an event that is to be put aside."""


def make_row(event: ReceivedEvent) -> dict[str, object]:
    """The handler of the narrow pipeline."""
    number = int(event.body)
    fate = fate_of(number)
    if fate is Fate.RAISED:
        raise PoisonError(f"Event {number} is raised for.")
    if fate is Fate.PUT_ASIDE:
        raise PutAsideError(f"Event {number} is put aside.")
    return {
        "partition_id": event.partition_id,
        "sequence_number": event.sequence_number,
        "event_number": number,
    }


def make_pipeline(event_hub: str) -> Pipeline:
    """The narrow pipeline: each hub partition by itself."""
    return Pipeline("chaos", event_hub, sink, make_row)


def aggregate(events: DataFrame) -> DataFrame:
    """The rows of ``aggregates``, and a dead letter for each event that must not become part of one.

    Dead letters come through the same shuffle: each is a group of its own.
    """
    number = F.col("body").cast("string").cast("long")
    poison = (number % RAISED_ONE_IN == 0) | (number % PUT_ASIDE_ONE_IN == 0)
    bad = {name: F.when(poison, F.col(name)).alias(name) for name in _PLACE}
    rows = events.select(
        F.when(~poison, number % KEY_COUNT).alias("key"),
        F.when(~poison, number).alias("number"),
        F.when(poison, F.concat(F.lit("event "), number.cast("string"))).alias("_error"),
        *bad.values(),
    )
    return rows.groupBy("key", "_error", *_PLACE).agg(
        F.count("number").alias("events"),
        F.sum("number").alias("total"),
        F.min("number").alias("lowest"),
        F.max("number").alias("highest"),
    )


_PLACE: Final = ("partition", "sequenceNumber", "offset", "enqueuedTime")
