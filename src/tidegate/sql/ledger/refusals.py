"""Finds the rows of a micro-batch that the database refuses, and reports them by row and column."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa

from tidegate.columns.valid import python_rows
from tidegate.model.errors import DatabaseError
from tidegate.sql.core.halving import failures_of
from tidegate.sql.core.unit_of_work import RowsRefusedError
from tidegate.sql.ledger.rows import LedgerTable

VALUE_CHARACTERS_MAX = 60
"""Characters shown of each value of a refused row (our choice)."""

# PostgreSQL's context of a COPY, its messages about NULL, SQLite's about NOT NULL, and MariaDB's.
_COLUMN_PATTERNS = (
    re.compile(r"COPY [^,]{1,200}, line \d+, column (\w+)"),
    re.compile(r'column "(\w+)"'),
    re.compile(r"NOT NULL constraint failed: \w+\.(\w+)"),
    re.compile(r"[Cc]olumn '(\w+)'"),
    re.compile(r"column (?:`\w+`\.)*`(\w+)`"),
)


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that the database refuses."""

    values: Mapping[str, object]
    """Of the target's columns, and of those that say which event the row came from."""
    error: RowsRefusedError

    @property
    def reason(self) -> str:
        """The database's message, in one line."""
        return " ".join(str(self.error.reason).split())


def write_halving(
    write: Callable[[pa.Table], None], rows: pa.Table, *, refused_max: int | None = None
) -> list[RefusedRow]:
    """Write the rows that the database accepts, and return the others.

    write: raises RowsRefusedError, and then has written nothing. refused_max: stop after this many.
    """
    found = failures_of(
        lambda low, until: write(rows.slice(low, until - low)), 0, rows.num_rows, RowsRefusedError
    )
    return [
        RefusedRow(python_rows(rows.slice(index, 1))[0], error) for index, error in islice(found, refused_max)
    ]


def refusal_error(target: LedgerTable, row: RefusedRow) -> DatabaseError:
    """The error that names a refused row and, if the database reports it, its column."""
    column = _column_of(row, target)
    shown = ", ".join(
        f"{name}={_shortened(value)}" for name, value in row.values.items() if name in target.table.columns
    )
    return DatabaseError(
        f"The database refused a row for {target.table.name}"
        f"{'' if column is None else f', for its column {column!r}'}: {row.reason} The row: {shown}.",
        next_step="Nothing of the micro-batch was written. Correct the query or the table and start again; "
        "with on_refused_row=FailureAction.DEAD_LETTER the row's event would become a dead letter.",
    )


def _column_of(row: RefusedRow, target: LedgerTable) -> str | None:
    named = getattr(getattr(row.error.reason, "diag", None), "column_name", None)
    if named:
        return str(named)
    for pattern in _COLUMN_PATTERNS:
        found = pattern.search(str(row.error.reason))
        if found and found[1] in target.table.columns:
            return found[1]
    return None


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= VALUE_CHARACTERS_MAX else f"{text[: VALUE_CHARACTERS_MAX - 1]}…"
