"""Finds what differs between a shadow and its live pipeline: rows by primary key, dead letters by event."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Table, and_, inspect, not_, select, true

from tidegate.model.errors import InvalidArgumentError
from tidegate.sql.core.dialects import dialect_of
from tidegate.sql.core.schema import dead_letter, letters_of_handlers
from tidegate.sql.core.values import ConsumerKey, DeadLetterStatus
from tidegate.sql.shadows.comparing import Comparison, Page, RowValues, compare_rows
from tidegate.sql.shadows.shadow import Shadow, ShadowPosition, check_positions, read_positions

_LETTER_KEY = ("partition_id", "sequence_number")
_LETTER_COLUMNS = (*_LETTER_KEY, "error_type", "reason")


@dataclass(frozen=True, slots=True)
class ShadowDifference:
    """The result of a comparison, at one position in each partition."""

    positions: Sequence[ShadowPosition]
    key: tuple[str, ...]
    """Names of the columns of the rows' keys."""
    columns: tuple[str, ...]
    """Of the other columns that were compared."""
    only_live: tuple[str, ...]
    """Columns that only the live table has; they are not compared."""
    only_shadow: tuple[str, ...]
    rows: Comparison
    dead_letters: Comparison
    """Open ones, without those added over HTTP. Key: partition and sequence number; values: error type and
    reason."""

    @property
    def is_equal(self) -> bool:
        """Whether rows and dead letters are the same."""
        return self.rows.is_equal and self.dead_letters.is_equal


def compare_shadow(
    shadow: Shadow, live: Connection, own: Connection, *, limit: int, ignored: Collection[str] = ()
) -> ShadowDifference:
    """Compare a shadow with its live pipeline.

    live, own: what each sees, in a snapshot of its own or the same one; the live one may be older, if the
    shadow has been replayed up to it since. limit: differing rows to list. ignored: columns not to compare.
    Raises ShadowError unless both have processed the same events, and InvalidArgumentError for an unknown
    column in ``ignored``.
    """
    positions = read_positions(live, own, shadow)
    check_positions(shadow, positions)
    table, copy = shadow.table, shadow.shadow_table()
    key = tuple(str(column.name) for column in table.primary_key.columns)
    declared = table.columns.keys()
    unknown = [name for name in ignored if name not in declared or name in key]
    if unknown:
        raise InvalidArgumentError(
            f"The table {table.name} has no column {unknown[0]!r} beside its key.",
            next_step=f"It has {', '.join(name for name in declared if name not in key)}.",
        )
    old, new = _columns_in(live, table), _columns_in(own, copy)
    columns = tuple(name for name in old if name in new and name not in key and name not in ignored)
    return ShadowDifference(
        positions,
        key,
        columns,
        tuple(name for name in old if name not in new),
        tuple(name for name in new if name not in old),
        compare_rows(
            _pages(live, table, key, columns), _pages(own, copy, key, columns), key_size=len(key), limit=limit
        ),
        compare_rows(
            _letters(live, shadow.live),
            _letters(own, shadow.consumer),
            key_size=len(_LETTER_KEY),
            limit=limit,
        ),
    )


def _columns_in(connection: Connection, table: Table) -> list[str]:
    """The columns that a table has in the database and, unless the declaration lacks them, in its order."""
    found = [str(column["name"]) for column in inspect(connection).get_columns(table.name, table.schema)]
    declared = [str(name) for name in table.columns.keys()]  # noqa: SIM118 - these are columns
    return [
        *(name for name in declared if name in found),
        *(name for name in found if name not in declared),
    ]


def _pages(connection: Connection, table: Table, key: Sequence[str], columns: Sequence[str]) -> Page:
    return _page_of(connection, [table.c[name] for name in (*key, *columns)], len(key), true())


def _letters(connection: Connection, consumer: ConsumerKey) -> Page:
    row = dead_letter.c
    mine = and_(letters_of_handlers(consumer), row.status == DeadLetterStatus.OPEN.value)
    return _page_of(connection, [row[name] for name in _LETTER_COLUMNS], len(_LETTER_KEY), mine)


def _page_of(
    connection: Connection, columns: Sequence[Column[Any]], key_size: int, mine: ColumnElement[bool]
) -> Page:
    dialect, key = dialect_of(connection), columns[:key_size]

    def page(after: RowValues | None, until: RowValues | None, limit: int) -> list[RowValues]:
        statement = select(*columns).where(mine).order_by(*key).limit(limit)
        if after is not None:
            statement = statement.where(dialect.is_beyond(key, after))
        if until is not None:
            statement = statement.where(not_(dialect.is_beyond(key, until)))
        return [tuple(row) for row in connection.execute(statement)]

    return page
