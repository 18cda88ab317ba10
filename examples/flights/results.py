"""The demo's results in the database: whose they are, and clearing those of an earlier demo."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from sqlalchemy import delete, inspect

from examples.flights.scoring import flight_performance, pipeline
from tidegate import AlreadyExistsError
from tidegate.sql import (
    CheckpointReader,
    Database,
    DeadLetterFilter,
    DeadLetters,
    forget_consumer,
)


def prepare_results(database: Database, event_hub_created_at_ms: int) -> bool:
    """Make sure that what the database holds belongs to this event hub; returns whether something was
    cleared.

    Results of an earlier demo whose log was another one (a fresh data directory, the same database) are
    cleared: they would count as done what this log's pipeline has not seen. What was written for this very
    hub stays, and the pipeline goes on behind it.
    Raises AlreadyExistsError where the checkpoints are there and the demo's table is not: then they are
    not the demo's to clear.
    """
    earlier = CheckpointReader(database).read(pipeline.consumer).values()
    if all(item.event_hub_created_at_ms in (None, event_hub_created_at_ms) for item in earlier):
        return False
    if not inspect(database.engine()).has_table(flight_performance.name):
        raise AlreadyExistsError(
            f"The database {database.url} holds checkpoints of another {pipeline.consumer}, and no table "
            f"{flight_performance.name}: they are not this demo's.",
            next_step="Give another --database, or none for a SQLite file of its own.",
        )
    with database.writing() as connection, connection.begin():
        connection.execute(delete(flight_performance))
        forget_consumer(connection, pipeline.consumer)
    return True


def processed_events(database: Database) -> dict[str, int]:
    """Partition id → first event that the pipeline has not committed."""
    found = CheckpointReader(database).read(pipeline.consumer)
    return {partition_id: item.next_sequence_number or 0 for partition_id, item in found.items()}


def dead_letters_by_partition(database: Database) -> Mapping[tuple[str, str], int]:
    """(partition id, status) → number of dead letters."""
    consumer = pipeline.consumer
    ours = DeadLetterFilter(event_hub=consumer.event_hub, consumer_group=consumer.consumer_group, status=None)
    letters = DeadLetters(database).list(ours, limit=None)
    return Counter((letter.partition_id, str(letter.status)) for letter in letters)
