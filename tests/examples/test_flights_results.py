"""Results of an earlier demo in the same database: kept where they belong to this log, else cleared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from examples.flights import pipeline
from examples.flights.results import dead_letters_by_partition, prepare_results, processed_events
from examples.flights.scoring import flight_performance

from tidegate.model.errors import AlreadyExistsError
from tidegate.model.events import EventContents, ReceivedEvent
from tidegate.sql import Database, process_partition_batch

ARRIVED = b"""{"year": 2013, "month": 1, "day": 1, "dep_time": 5, "dep_delay": 1, "arr_delay": 2,
 "carrier": "UA", "flight": 1, "origin": "EWR", "dest": "IAH"}"""
CANCELLED = b'{"arr_delay": null, "dep_time": null}'
THIS_HUB, ANOTHER_HUB = 1_000, 2_000


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """A row and a dead letter, from a hub that was made at THIS_HUB."""
    with Database.open(f"sqlite:///{tmp_path / 'flights.db'}") as opened:
        opened.ensure_table(flight_performance)
        events = [
            ReceivedEvent(
                partition_id="0",
                sequence_number=number,
                offset=str(number),
                enqueued_time_ms=0,
                contents=EventContents(body),
            )
            for number, body in enumerate((ARRIVED, CANCELLED))
        ]
        process_partition_batch(
            opened,
            pipeline,
            "0",
            events,
            start_sequence_number=0,
            until_sequence_number=2,
            event_hub_created_at_ms=THIS_HUB,
        )
        yield opened


def test_results_of_this_hub_stay(database: Database) -> None:
    """A second demo over the same log and database goes on where the first one was."""
    assert not prepare_results(database, THIS_HUB)
    assert processed_events(database) == {"0": 2}
    assert dead_letters_by_partition(database) == {("0", "open"): 1}


def test_results_of_another_hub_are_cleared(database: Database) -> None:
    """A fresh log with an old database starts from nothing: rows, dead letters and checkpoint go together."""
    assert prepare_results(database, ANOTHER_HUB)
    assert processed_events(database) == {}
    assert dead_letters_by_partition(database) == {}
    with database.read() as connection:
        assert connection.execute(flight_performance.select()).all() == []


def test_checkpoints_that_are_not_the_demos_are_left_alone(database: Database) -> None:
    """Somebody's own hub named flights: without the demo's table nothing of it is touched."""
    with database.writing() as connection, connection.begin():
        flight_performance.drop(connection)
    with pytest.raises(AlreadyExistsError, match="not this demo's"):
        prepare_results(database, ANOTHER_HUB)
    assert processed_events(database) == {"0": 2}
