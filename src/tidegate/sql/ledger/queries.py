"""The ledger's record of a query, for programs other than its driver."""

from __future__ import annotations

from sqlalchemy import Connection, delete, select

from tidegate.sql.core.database import Database
from tidegate.sql.core.schema import batch_ledger, ledger_query


def next_batch_id(database: Database, query_name: str) -> int | None:
    """The number of the micro-batch that the ledger expects next; earlier ones are committed.

    query_name: as given to ``LedgerSink``. Returns None if no driver of this query has begun a micro-batch
    yet. Raises DatabaseUnavailableError.
    """
    with database.read() as connection:
        return connection.execute(
            select(ledger_query.c.next_batch_id).where(ledger_query.c.query_name == query_name)
        ).scalar_one_or_none()


def forget_query(connection: Connection, query_name: str) -> None:
    """Delete the ledger's record of a query, so that one of this name can begin at micro-batch 0.

    For a query that restarts with a new checkpoint directory. Stop its driver first, and empty its target
    tables in the same transaction, which the caller commits.
    """
    for table in (batch_ledger, ledger_query):
        connection.execute(delete(table).where(table.c.query_name == query_name))
