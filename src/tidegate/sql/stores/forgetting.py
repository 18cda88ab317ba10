"""Deletes a consumer's state from the database."""

from __future__ import annotations

from sqlalchemy import Connection, delete

from tidegate.sql.core.schema import checkpoint, dead_letter, dead_letter_audit, of_consumer
from tidegate.sql.core.values import ConsumerKey


def forget_consumer(connection: Connection, consumer: ConsumerKey) -> None:
    """Delete a consumer's checkpoints, its dead letters and their audit trail.

    For a consumer that starts over with another log, or has ended. Stop its hosts and queries first. Leases
    stay, so that epochs keep rising. Its pipelines' rows also stay: delete them in the same transaction.
    connection: in a transaction, which the caller commits.
    """
    for table in (checkpoint, dead_letter, dead_letter_audit):
        connection.execute(delete(table).where(of_consumer(table, consumer)))
