"""The demo's handlers: what is a row, and what is a dead letter and why."""

from __future__ import annotations

import orjson
import pytest
from examples.flights import corrected_pipeline, pipeline
from examples.flights.scoring import (
    FlightCancelledError,
    FlightDivertedError,
    flight_performance,
    record_flight,
    score_arrival,
)

from tidegate.model.events import EventContents, ReceivedEvent

FLIGHT: dict[str, object] = {
    "year": 2013,
    "month": 2,
    "day": 3,
    "dep_time": 517,
    "dep_delay": 2,
    "arr_delay": 11,
    "carrier": "UA",
    "flight": 1545,
    "origin": "EWR",
    "dest": "IAH",
}


def _event(**changes: object) -> ReceivedEvent:
    body = orjson.dumps(FLIGHT | changes)
    return ReceivedEvent(
        partition_id="1",
        sequence_number=7,
        offset="7",
        enqueued_time_ms=0,
        contents=EventContents(body, partition_key="1545"),
    )


def test_a_flight_that_arrived_is_a_row() -> None:
    """A scored flight fills every column of the table; its key is the event's address."""
    row = score_arrival(_event())
    assert set(row) == {column.name for column in flight_performance.columns}
    assert (row["partition_id"], row["sequence_number"]) == ("1", 7)
    assert (row["flight_date"], row["arrival_delay_minutes"], row["status"]) == ("2013-02-03", 11, "arrived")


def test_cancelled_and_diverted_flights_are_refused_with_different_reasons() -> None:
    """A flight without departure is cancelled, one with is diverted; the dead letters tell them apart."""
    with pytest.raises(FlightCancelledError, match="cancelled"):
        score_arrival(_event(arr_delay=None, dep_time=None, dep_delay=None))
    with pytest.raises(FlightDivertedError, match="diverted"):
        score_arrival(_event(arr_delay=None))


@pytest.mark.parametrize(("dep_time", "status"), [(None, "cancelled"), (517, "diverted")])
def test_the_corrected_handler_records_them(dep_time: int | None, status: str) -> None:
    """After the redrive such a flight is a row that says what happened, without an arrival delay."""
    row = record_flight(_event(arr_delay=None, dep_time=dep_time))
    assert row["status"] == status
    assert row["arrival_delay_minutes"] is None


def test_the_corrected_handler_agrees_on_flights_that_arrived() -> None:
    """The new version changes nothing for events that the old one could score."""
    assert record_flight(_event()) == score_arrival(_event())


def test_the_corrected_pipeline_owns_the_same_dead_letters() -> None:
    """Redrive looks for dead letters by consumer and pipeline name: both versions must have the same."""
    assert (pipeline.name, pipeline.consumer) == (corrected_pipeline.name, corrected_pipeline.consumer)
