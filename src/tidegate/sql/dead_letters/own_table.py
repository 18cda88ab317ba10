"""Dead letters in a table of the user's own, instead of ``tidegate_dead_letter``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, Dialect, Table, insert, select
from sqlalchemy.types import TypeEngine

from tidegate.model.errors import InvalidArgumentError
from tidegate.processor.dead_letters import FailedEvent
from tidegate.sql.core.database import Database
from tidegate.sql.core.dead_letter_rows import IN_LIST_MAX
from tidegate.sql.core.values import storable_text

RowOf = Callable[[FailedEvent], Mapping[str, object]]
"""A failed event as a row of the user's table, the same columns each time."""


class DeadLetterTable:
    """A ``DeadLetterManager`` on a table that the user has declared; it has one row per ``FailedEvent.id``.

    A transactional host whose checkpoints are in this database inserts the rows in the transaction that moves
    the checkpoint. Otherwise they are committed before the checkpoint moves.
    """

    def __init__(self, database: Database, table: Table, row_of: RowOf | None = None) -> None:
        """table: exists, and has a column ``id`` of 32 characters, best its primary key.

        row_of: the other columns. None: those that the table has of event_hub, consumer_group, partition_id,
        sequence_number, offset, enqueued_time, failed_at, error_type, error (text) and body (bytes, empty for
        an AMQP value or sequence), cut to what their columns hold. What ``row_of`` returns must fit: a row
        that the database refuses stops its partition. Raises InvalidArgumentError.
        """
        if "id" not in table.c:
            raise InvalidArgumentError(f"The table {table.name} of dead letters has no column id.")
        self.database: Database = database
        """Where the table is."""
        self._table = table
        self._row_of = row_of

    async def add_failed_events(self, failed: Sequence[FailedEvent]) -> None:
        """See ``DeadLetterManager``; in a transaction of its own, in a thread."""
        await asyncio.to_thread(self._add, failed)

    def insert(self, connection: Connection, failed: Sequence[FailedEvent]) -> None:
        """Insert the rows that are not there yet, in a transaction of the caller's."""
        column, known = self._table.c.id, set[str]()
        ids = [each.id for each in failed]
        for start in range(0, len(ids), IN_LIST_MAX):
            page = select(column).where(column.in_(ids[start : start + IN_LIST_MAX]))
            known.update(connection.execute(page).scalars())
        row_of = self._row_of or partial(self._known_columns, connection.dialect)
        rows = [{"id": each.id, **row_of(each)} for each in failed if each.id not in known]
        if rows:
            connection.execute(insert(self._table), rows)

    def _add(self, failed: Sequence[FailedEvent]) -> None:
        with self.database.writing() as connection, connection.begin():
            self.insert(connection, failed)

    def _known_columns(self, dialect: Dialect, failed: FailedEvent) -> dict[str, object]:
        event, group, columns = failed.event, failed.group, self._table.c
        values: dict[str, object] = {
            "event_hub": group.event_hub,
            "consumer_group": group.consumer_group,
            "partition_id": event.partition_id,
            "sequence_number": event.sequence_number,
            "offset": event.offset,
            "enqueued_time": event.enqueued_time,
            "failed_at": failed.failed_at,
            "error_type": failed.error_type,
            "error": failed.reason,
            "body": failed.contents.body,
        }
        return {
            name: self._cut(value, columns[name].type, dialect)
            for name, value in values.items()
            if name in columns
        }

    def _cut(self, value: object, column_type: TypeEngine[Any], dialect: Dialect) -> object:
        """``value`` as its column holds it: a row that the database refuses would stop the partition."""
        length: int | None = getattr(column_type, "length", None)
        bytes_max = self.database.dialect.bytes_max(column_type, dialect)
        if isinstance(value, str):
            return storable_text(value, length, bytes_max=bytes_max)
        if self.database.dialect.has_binary_lengths and isinstance(value, bytes):
            return value[: length or bytes_max]
        return value
