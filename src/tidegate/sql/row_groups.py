"""Rows with the same columns, each with its event: as tuples, or as Arrow columns where pyarrow made them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from sqlalchemy import Connection, Table

from tidegate.sql.bulk import insert_values
from tidegate.sql.values import PartitionRows

if TYPE_CHECKING:
    from tidegate.sql.arrow_rows import ArrowRows

    RowGroup: TypeAlias = PartitionRows | ArrowRows


def insert_group(connection: Connection, table: Table, rows: RowGroup) -> None:
    """Insert rows in whatever form they are. Raises as ``bulk.insert_values``."""
    if isinstance(rows, PartitionRows):
        insert_values(connection, table, rows.columns, rows.values)
        return
    from tidegate.sql.arrow_rows import insert_arrow  # who has such rows has loaded pyarrow already

    insert_arrow(connection, table, rows)
