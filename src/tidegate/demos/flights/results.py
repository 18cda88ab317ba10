"""The demo's results in the database: whose they are, and clearing those of an earlier demo."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import ColumnElement, Table, delete, func, inspect, select

from tidegate.demos.flights.scoring import flight_performance, pipeline
from tidegate.model.errors import AlreadyExistsError
from tidegate.sql import CheckpointReader, Database
from tidegate.sql.core.schema import checkpoint, dead_letter, dead_letter_audit


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
        for table in (checkpoint, dead_letter, dead_letter_audit):
            connection.execute(delete(table).where(_is_ours(table)))
    return True


def processed_events(database: Database) -> dict[str, int]:
    """Partition id → first event that the pipeline has not committed."""
    found = CheckpointReader(database).read(pipeline.consumer)
    return {partition_id: item.next_sequence_number or 0 for partition_id, item in found.items()}


def dead_letters_by_partition(database: Database) -> Mapping[tuple[str, str], int]:
    """(partition id, status) → number of dead letters."""
    row = dead_letter.c
    with database.read() as connection:
        found = connection.execute(
            select(row.partition_id, row.status, func.count())
            .where(_is_ours(dead_letter))
            .group_by(row.partition_id, row.status)
        )
        return {(partition_id, str(status)): count for partition_id, status, count in found}


def _is_ours(table: Table) -> ColumnElement[bool]:
    consumer = pipeline.consumer
    return (table.c.event_hub == consumer.event_hub) & (table.c.consumer_group == consumer.consumer_group)
