"""``INSERT … ON CONFLICT``, which PostgreSQL and SQLite share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Executable, Insert, Table

from tidegate.sql.core.dialects.base import Columns, Upsert, new_values


class OnConflict:
    """A part of their ``SqlDialect``."""

    def insert(self, table: Table) -> Any:
        """SQLAlchemy's insert of this database."""
        raise NotImplementedError

    def insert_or_lock(self, table: Table, values: Mapping[str, Any]) -> Executable:
        return self.insert_if_absent(table, values)

    def insert_if_absent(self, table: Table, values: Mapping[str, Any]) -> Insert:
        statement: Insert = self.insert(table).values(**values).on_conflict_do_nothing()
        return statement

    def upsert_values(
        self, table: Table, changes: Callable[[Columns], Mapping[str, ColumnElement[Any]]]
    ) -> Sequence[Executable]:
        insert = self.insert(table).values(new_values(table))
        return [
            insert.on_conflict_do_update(
                index_elements=list(table.primary_key), set_=changes(insert.excluded)
            )
        ]

    def upsert_statements(self, upsert: Upsert) -> Sequence[Executable]:
        table = upsert.table
        insert = self.insert(table).from_select([table.columns[key] for key in upsert.columns], upsert.rows)
        key_elements = [table.columns[key] for key in upsert.key]
        if not upsert.changed:
            return [insert.on_conflict_do_nothing(index_elements=key_elements)]
        changes = {key: insert.excluded[key] for key in upsert.changed}
        is_newer = None if upsert.is_newer is None else upsert.is_newer(insert.excluded)
        return [insert.on_conflict_do_update(index_elements=key_elements, set_=changes, where=is_newer)]
