"""Groups of rows with the same columns, each row with its event: as tuples, or as Arrow columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from sqlalchemy import Column, Connection, Table

from tidegate.sql.core.bulk import insert_values
from tidegate.sql.core.values import PartitionRows

if TYPE_CHECKING:
    from tidegate.sql.core.arrow_rows import ArrowRows

    RowGroup: TypeAlias = PartitionRows | ArrowRows


def insert_group(connection: Connection, table: Table, rows: RowGroup) -> None:
    """Insert rows of either form. Raises as ``bulk.insert_values``."""
    if isinstance(rows, PartitionRows):
        insert_values(connection, table, rows.columns, rows.values)
        return
    from tidegate.sql.core.arrow_rows import insert_arrow  # such rows need pyarrow anyway

    insert_arrow(connection, table, rows)


def joined(groups: Sequence[RowGroup]) -> list[RowGroup]:
    """Join groups of the same form and columns, for an insert that need not distinguish events."""
    if len(groups) < 2:
        return list(groups)
    by_columns: dict[tuple[str, ...], list[PartitionRows]] = {}
    arrow: list[ArrowRows] = []
    for group in groups:
        if isinstance(group, PartitionRows):
            by_columns.setdefault(group.columns, []).append(group)
        else:
            arrow.append(group)
    whole: list[RowGroup] = [
        PartitionRows(
            columns,
            list(chain.from_iterable(part.values for part in parts)),
            list(chain.from_iterable(part.sequence_numbers for part in parts)),
        )
        for columns, parts in by_columns.items()
    ]
    if arrow:
        from tidegate.sql.core.arrow_rows import joined_arrow  # as above

        whole += joined_arrow(arrow)
    return whole


def required_columns(table: Table) -> list[str]:
    """The columns that every row must have."""
    return [column.key for column in table.columns if not column.nullable and not _is_filled(column)]


def _is_filled(column: Column[object]) -> bool:
    return (
        column.default is not None
        or column.server_default is not None
        or column.identity is not None
        or column.computed is not None
        or column is column.table.autoincrement_column
    )
