"""Deletes what the database knows of a consumer."""

from __future__ import annotations

from sqlalchemy import Connection, delete

from tidegate.sql.core.schema import checkpoint, dead_letter, dead_letter_audit
from tidegate.sql.core.values import ConsumerKey


def forget_consumer(connection: Connection, consumer: ConsumerKey) -> None:
    """Delete a consumer's checkpoints, its dead letters and their audit trail.

    For a consumer that starts again over another log, or has ended. Rows of its pipelines stay: delete them
    in the same transaction. connection: in a transaction, which the caller commits. Leases stay, so that
    epochs keep rising. Stop its hosts and queries first.
    """
    for table in (checkpoint, dead_letter, dead_letter_audit):
        connection.execute(
            delete(table).where(
                table.c.event_hub == consumer.event_hub, table.c.consumer_group == consumer.consumer_group
            )
        )
