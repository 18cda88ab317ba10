"""What the ledger knows of a query, for programs beside its driver."""

from __future__ import annotations

from sqlalchemy import Connection, delete, select

from tidegate.sql.core.database import Database
from tidegate.sql.core.schema import batch_ledger, ledger_query


def next_batch_id(database: Database, query_name: str) -> int | None:
    """The number of the micro-batch that the ledger expects next; those before it are committed.

    query_name: as ``LedgerSink`` was given it. None: the ledger knows no query of this name, because no
    driver of it has begun a micro-batch yet. Raises DatabaseUnavailableError.
    """
    with database.read() as connection:
        return connection.execute(
            select(ledger_query.c.next_batch_id).where(ledger_query.c.query_name == query_name)
        ).scalar_one_or_none()


def forget_query(connection: Connection, query_name: str) -> None:
    """Delete what the ledger knows of a query, so that one of this name can begin at micro-batch 0.

    For a query that starts again with a new checkpoint directory. Empty its target tables in the same
    transaction, which the caller commits. Stop its driver first.
    """
    for table in (batch_ledger, ledger_query):
        connection.execute(delete(table).where(table.c.query_name == query_name))
