"""What a user of Tidegate writes: a table, and a function from an event to a row.

``pipeline`` scores each flight's arrival and raises for a flight that never arrived, so the event becomes a
dead letter with that reason. ``corrected_pipeline`` is the second version, which records such flights as
well; ``tidegate dlq redrive`` runs it over the dead letters.
"""

from __future__ import annotations

import orjson
from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table

from tidegate import Fault, ReceivedEvent, TidegateError
from tidegate.sql import Pipeline

EVENT_HUB = "flights"

flight_performance = Table(
    "flight_performance",
    MetaData(),
    # The event's address is the key: the database would refuse a second row for an event.
    Column("partition_id", String(64), primary_key=True),
    Column("sequence_number", BigInteger, primary_key=True, autoincrement=False),
    Column("flight_date", String(10), nullable=False),
    Column("carrier", String(2), nullable=False),
    Column("flight_number", Integer, nullable=False),
    Column("origin", String(3), nullable=False),
    Column("destination", String(3), nullable=False),
    Column("status", String(9), nullable=False),
    Column("departure_delay_minutes", Integer),
    Column("arrival_delay_minutes", Integer),
)
"""One row per flight. Delays in minutes, negative when early; null without a departure or arrival."""


class FlightNotScoredError(TidegateError):
    """A flight that has no arrival delay, so its arrival cannot be scored."""

    fault = Fault.CALLER


class FlightCancelledError(FlightNotScoredError):
    """The flight never departed."""


class FlightDivertedError(FlightNotScoredError):
    """The flight departed, but did not arrive at its destination."""


def score_arrival(event: ReceivedEvent) -> dict[str, object]:
    """The row of a flight that arrived; raises FlightCancelledError or FlightDivertedError for others."""
    flight = orjson.loads(event.body)
    if flight["arr_delay"] is None:
        if flight["dep_time"] is None:
            raise FlightCancelledError("The flight was cancelled: it has no departure to score.")
        raise FlightDivertedError("The flight was diverted: it has no arrival at its destination to score.")
    return _row(event, flight, "arrived")


def record_flight(event: ReceivedEvent) -> dict[str, object]:
    """The row of any flight: ``status`` is arrived, cancelled or diverted."""
    flight = orjson.loads(event.body)
    if flight["arr_delay"] is not None:
        return _row(event, flight, "arrived")
    return _row(event, flight, "cancelled" if flight["dep_time"] is None else "diverted")


def _row(event: ReceivedEvent, flight: dict[str, object], status: str) -> dict[str, object]:
    return {
        "partition_id": event.partition_id,
        "sequence_number": event.sequence_number,
        "flight_date": f"{flight['year']}-{flight['month']:02}-{flight['day']:02}",
        "carrier": flight["carrier"],
        "flight_number": flight["flight"],
        "origin": flight["origin"],
        "destination": flight["dest"],
        "status": status,
        "departure_delay_minutes": flight["dep_delay"],
        "arrival_delay_minutes": flight["arr_delay"],
    }


pipeline = Pipeline(
    name="flights",
    event_hub=EVENT_HUB,
    table=flight_performance,
    handler=score_arrival,
)

corrected_pipeline = Pipeline(
    # The same name, since it is the next version of the same pipeline, for the same dead letters.
    name="flights",
    event_hub=EVENT_HUB,
    table=flight_performance,
    handler=record_flight,
)
