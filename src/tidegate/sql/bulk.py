"""Many rows into one table, as fast as the database takes them: COPY on PostgreSQL, executemany on SQLite.

Both bypass SQLAlchemy's per-row work but keep its column types: a value goes through the bind processor of
its column's type. A table whose missing columns have defaults computed in Python takes SQLAlchemy's own
insert.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from sqlalchemy import Connection, Dialect, Table, exc

from tidegate.sql.failures import is_connection_lost

Processor = Callable[[object], object]


def insert_values(
    connection: Connection, table: Table, columns: tuple[str, ...], values: Sequence[tuple[object, ...]]
) -> None:
    """Insert ``values``, each in the order of ``columns`` (keys of the table's columns).

    Raises what the driver and SQLAlchemy raise, see ``failures``; the transaction is then only good for a
    rollback to before the call.
    """
    if not values:
        return
    plan = _plan(table, columns, connection.dialect)
    if plan.is_core_needed:
        connection.execute(table.insert(), [dict(zip(columns, row, strict=True)) for row in values])
        return
    if plan.processors:
        # Column by column: most columns need no processing, and the loop then runs inside map.
        by_column: list[Iterable[object]] = list(zip(*values, strict=True))
        for i, process in plan.processors:
            by_column[i] = map(process, by_column[i])
        values = list(zip(*by_column, strict=True))
    if plan.is_copy:
        _copy(connection, plan.statement, values)
    else:
        connection.exec_driver_sql(plan.statement, values if isinstance(values, list) else list(values))


@dataclass(frozen=True, slots=True)
class _Plan:
    statement: str
    is_copy: bool
    is_core_needed: bool
    processors: tuple[tuple[int, Processor], ...]
    """Indexes of the columns whose values need processing, with what does it."""


@lru_cache(maxsize=256)
def _plan(table: Table, columns: tuple[str, ...], dialect: Dialect) -> _Plan:
    quote = dialect.identifier_preparer
    target = quote.format_table(table)
    names = ", ".join(quote.format_column(table.columns[key]) for key in columns)
    is_copy = dialect.name == "postgresql"
    if is_copy:
        statement = f"COPY {target} ({names}) FROM STDIN"
    else:
        statement = f"INSERT INTO {target} ({names}) VALUES ({', '.join('?' * len(columns))})"
    processors = [table.columns[key].type.dialect_impl(dialect).bind_processor(dialect) for key in columns]
    given = set(columns)
    return _Plan(
        statement=statement,
        is_copy=is_copy,
        is_core_needed=any(
            column.default is not None and not column.default.is_sequence and column.key not in given
            for column in table.columns
        ),
        processors=tuple((i, process) for i, process in enumerate(processors) if process is not None),
    )


def _copy(connection: Connection, statement: str, values: Sequence[tuple[object, ...]]) -> None:
    driver_connection = connection.connection.driver_connection
    assert driver_connection is not None
    try:
        with driver_connection.cursor() as cursor, cursor.copy(statement) as copy:
            write_row = copy.write_row
            for row in values:
                write_row(row)
    except _driver_error(connection) as error:
        is_lost = is_connection_lost(error)
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
