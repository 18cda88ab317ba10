"""Inserts rows in bulk: by COPY, by prepared statements, or by their text in one statement.

All bypass SQLAlchemy's per-row work but keep its column types: ``column_values`` first gives a value the
same meaning on all databases, then it passes through the bind processor of its column's type. If missing
columns have defaults computed in Python, SQLAlchemy's own insert is used. ``arrow_rows`` inserts Arrow
columns with the same plan.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import Connection, Dialect, Table, exc

from tidegate.sql.core.column_values import Preparation, preparation_of, processor_of
from tidegate.sql.core.dialects import DIALECTS
from tidegate.sql.core.dialects.base import BulkForm
from tidegate.sql.core.failures import is_connection_lost

_PARAMETERS_MAX: Final = 500
"""Per statement on SQLite. A row of 5 columns costs 0.5 µs in a statement of 100 rows and 1.25 µs alone; more
rows gain nothing (measured, SQLite 3.40). Any SQLite accepts 999 (its documentation, "Limits", 9)."""
_ROWS_MAX: Final = 1_000
"""Rows whose parameters the driver holds together (our choice: pyodbc reserves a column's width for each)."""
_TEXT_BYTES: Final = 1024 * 1024
"""Per statement of rows as text, if the server accepts that (our choice: a larger one gains nothing)."""


def insert_values(
    connection: Connection, table: Table, columns: tuple[str, ...], values: Sequence[tuple[object, ...]]
) -> None:
    """Insert ``values``, each row in the order of ``columns`` (keys of the table's columns).

    Raises what the driver and SQLAlchemy raise, see ``failures``; the transaction must then be rolled back to
    before the call.
    """
    if not values:
        return
    if set(map(len, values)) != {len(columns)}:
        # Otherwise values could shift from one row into another.
        raise ValueError(f"a row does not have one value for each of the columns {', '.join(columns)}")
    plan = plan_of(table, columns, connection.dialect)
    if plan.is_core_needed:
        rows = _converted(values, plan.preparations)
        connection.execute(table.insert(), [dict(zip(columns, row, strict=True)) for row in rows])
        return
    rows = _converted(values, [*plan.preparations, *plan.processors])
    if plan.form is BulkForm.TEXT:
        render = DIALECTS[connection.dialect.name].literals
        rows = list(rows)
        columns_in_sql = [render(_column_of(rows, i)) for i in range(len(columns))]
        lines = [f"({','.join(row)}),".encode() for row in zip(*columns_in_sql, strict=True)]
        insert_text(connection, plan, b"".join(lines), list(accumulate(map(len, lines))))
    elif plan.form is BulkForm.COPY:
        with _copying(connection, plan.statement) as copy:
            write_row = copy.write_row
            for row in rows:
                write_row(row)
    elif plan.form is BulkForm.ROWS:
        _insert_rows(connection, plan, list(rows))
    else:
        insert_parameters(connection, plan, list(chain.from_iterable(rows)))


def _converted(
    values: Sequence[tuple[object, ...]], conversions: Sequence[tuple[int, Preparation]]
) -> Iterable[tuple[object, ...]]:
    """Rows with some columns converted, column by column, because most need no conversion."""
    changed: dict[int, Sequence[object]] = {}
    for i, convert in conversions:
        column = changed.get(i) or _column_of(values, i)
        converted = convert(column)
        if converted is not column or i in changed:
            changed[i] = converted
    if not changed:
        return values
    return zip(*(changed.get(i) or _column_of(values, i) for i in range(len(values[0]))), strict=True)


def _column_of(values: Sequence[tuple[object, ...]], i: int) -> list[object]:
    # Not zip(*values): one iterator per row would trigger many garbage collections.
    return list(map(itemgetter(i), values))


@dataclass(frozen=True, slots=True)
class InsertPlan:
    """How to insert rows with certain columns into a table."""

    statement: str
    """``COPY … FROM STDIN``, an insert of one row with a placeholder per column, or ``INSERT … VALUES``."""
    form: BulkForm
    column_count: int
    row_count: int
    """The number of rows that ``statement_of_many`` inserts."""
    statement_of_many: str
    """The insert of many rows; the same as ``statement`` if only single rows are possible."""
    is_core_needed: bool
    """True: SQLAlchemy computes a missing column's default, so its own insert is needed."""
    preparations: tuple[tuple[int, Preparation], ...]
    """(column index, conversion) of the columns whose values must be converted first."""
    processors: tuple[tuple[int, Preparation], ...]
    """(column index, processing) of the columns whose types process values for the driver."""


@lru_cache(maxsize=256)
def plan_of(table: Table, columns: tuple[str, ...], dialect: Dialect) -> InsertPlan:
    """How to insert rows with these columns (keys of the table's columns) into ``table``."""
    quote = dialect.identifier_preparer
    target = quote.format_table(table)
    names = ", ".join(quote.format_column(table.columns[key]) for key in columns)
    form = DIALECTS[dialect.name].bulk_form
    if form in (BulkForm.COPY, BulkForm.TEXT):
        statement = f"COPY {target} ({names}) FROM STDIN"
        if form is BulkForm.TEXT:
            statement = f"INSERT INTO {target} ({names}) VALUES "
        # Doubled for statements with parameters, and these have none.
        statement = statement.replace("%%", "%")
        many, statement_of_many = 1, statement
    else:
        row = f"({', '.join('?' * len(columns))})"
        is_one = form is BulkForm.ROWS or _refers_to_itself(table)
        many = 1 if is_one else max(1, _PARAMETERS_MAX // len(columns))
        statement = f"INSERT INTO {target} ({names}) VALUES {row}"
        statement_of_many = f"INSERT INTO {target} ({names}) VALUES {', '.join([row] * many)}"
    types = [table.columns[key].type for key in columns]
    prepare = [preparation_of(each, dialect) for each in types]
    process = [processor_of(each, dialect) for each in types]
    given = set(columns)
    # Numbers of the user's own need a statement before, which SQLAlchemy sends.
    numbered = table.autoincrement_column
    is_guarded = DIALECTS[dialect.name].has_identity_guard and numbered is not None and numbered.key in given
    return InsertPlan(
        statement=statement,
        form=form,
        column_count=len(columns),
        row_count=many,
        statement_of_many=statement_of_many,
        is_core_needed=is_guarded
        or any(
            column.default is not None and not column.default.is_sequence and column.key not in given
            for column in table.columns
        ),
        preparations=tuple((i, each) for i, each in enumerate(prepare) if each is not None),
        processors=tuple((i, each) for i, each in enumerate(process) if each is not None),
    )


def _refers_to_itself(table: Table) -> bool:
    """SQLite checks foreign keys at the end of a statement, so inserting many rows at once would differ."""
    return any(key.target_fullname.rpartition(".")[0] == table.fullname for key in table.foreign_keys)


def insert_parameters(connection: Connection, plan: InsertPlan, parameters: Sequence[object]) -> None:
    """SQLite only: insert rows from a flat list of values, as the driver binds them. Raises DBAPIError."""
    step = plan.row_count * plan.column_count
    whole = len(parameters) // step * step
    with _wrapping(connection, plan.statement):
        _execute_many(connection, plan.statement_of_many, _cut(parameters[:whole], step))
        _execute_many(connection, plan.statement, _cut(parameters[whole:], plan.column_count))


def _insert_rows(connection: Connection, plan: InsertPlan, rows: Sequence[Sequence[object]]) -> None:
    """SQL Server only. Raises DBAPIError."""
    with _wrapping(connection, plan.statement), closing(_driver_connection(connection).cursor()) as cursor:
        # The server does not describe a temporary table's columns to the driver: all would be sent as
        # VARCHAR(255), decimals rounded (pyodbc, params.cpp, and its issue 295).
        cursor.fast_executemany = not plan.statement.startswith("INSERT INTO [#")
        for part in _cut(rows, _ROWS_MAX):
            cursor.executemany(plan.statement, part)
            # A later row's error may come with its result only (pyodbc, issue 665).
            while cursor.nextset():
                pass


def _cut(parameters: Sequence[object], step: int) -> list[Sequence[object]]:
    return [parameters[start : start + step] for start in range(0, len(parameters), step)]


def _execute_many(connection: Connection, statement: str, values: Sequence[Sequence[object]]) -> None:
    if values:
        with closing(_driver_connection(connection).cursor()) as cursor:
            cursor.executemany(statement, values)


def insert_text(connection: Connection, plan: InsertPlan, rows: bytes, ends: Sequence[int]) -> None:
    """MariaDB only: insert rows that are already text, ``(…),`` each. Raises DBAPIError and ValueError.

    ends: where each row ends in ``rows``.
    """
    statement = plan.statement.encode()
    room = DIALECTS[connection.dialect.name].statement_bytes_max(connection) - len(statement) - 1
    start = index = 0
    with _wrapping(connection, plan.statement), closing(_driver_connection(connection).cursor()) as cursor:
        while index < len(ends):
            index = max(index + 1, bisect_right(ends, start + min(_TEXT_BYTES, room), lo=index))
            until = int(ends[index - 1])
            if until - start > room:
                raise ValueError(
                    f"a row of {until - start:,} bytes is longer than the server's max_allowed_packet"
                )
            cursor.execute(statement + rows[start : until - 1])
            start = until


def copy_text(connection: Connection, statement: str, lines: Iterable[memoryview]) -> None:
    """PostgreSQL only: run a COPY whose data is already in its text format. Raises DBAPIError."""
    with _copying(connection, statement) as copy:
        for part in lines:
            copy.write(part)


@contextmanager
def _copying(connection: Connection, statement: str) -> Iterator[Any]:
    with (
        _wrapping(connection, statement),
        _driver_connection(connection).cursor() as cursor,
        cursor.copy(statement) as copy,
    ):
        yield copy


def _driver_connection(connection: Connection) -> Any:
    driver_connection: Any = connection.connection.driver_connection
    assert driver_connection is not None
    return driver_connection


@contextmanager
def _wrapping(connection: Connection, statement: str) -> Iterator[None]:
    """Turn the driver's errors into SQLAlchemy's, as if it had run the statement."""
    try:
        yield
    except _driver_error(connection) as error:
        ours = DIALECTS[connection.dialect.name]
        is_lost = is_connection_lost(error) or ours.is_transaction_over(_driver_connection(connection))
        if is_lost:
            connection.invalidate(error)
        raise exc.DBAPIError(
            statement, None, error, hide_parameters=True, connection_invalidated=is_lost
        ) from error


def _driver_error(connection: Connection) -> type[Exception]:
    """The root of the driver's own errors, for an ``except`` that does not import the driver."""
    module = connection.dialect.dbapi
    assert module is not None
    root: type[Exception] = module.Error
    return root
