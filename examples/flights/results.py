"""The demo's results in the database: whose they are, and deleting those of an earlier demo."""

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
    """Delete results of another event hub; returns whether there were any.

    With results of an earlier demo (a new data directory, the same database), events would count as processed
    that this pipeline has not seen. Results of this very hub stay, and the pipeline continues after them.
    Raises AlreadyExistsError if there are checkpoints but not the demo's table: they are not the demo's.
    """
    earlier = CheckpointReader(database).read(pipeline.consumer).values()
    if all(item.event_hub_created_at_ms in (None, event_hub_created_at_ms) for item in earlier):
        return False
    if not inspect(database.engine()).has_table(flight_performance.name):
        raise AlreadyExistsError(
            f"The database {database.url} holds checkpoints of another {pipeline.consumer}, but no table "
            f"{flight_performance.name}: they are not this demo's.",
            next_step="Use another --database, or none for a new SQLite file.",
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
