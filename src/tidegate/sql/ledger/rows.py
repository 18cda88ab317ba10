"""Writes a micro-batch's rows to their tables, appended or upserted in bulk, in one transaction.

An upsert loads a temporary table first and merges it in one statement, so rows that share a key are treated
the same on all databases: an error names the key, unless ``order_by`` decides which row is last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

import sqlalchemy as sa

from tidegate.model.errors import DatabaseError, DatabaseUnavailableError, InvalidArgumentError
from tidegate.sql.core.database import Database
from tidegate.sql.core.dialects.base import Columns, ErrorKind, SqlDialect, Upsert
from tidegate.sql.core.failures import is_of
from tidegate.sql.core.unit_of_work import RowsRefusedError, UnitOfWork, rows_refused

if TYPE_CHECKING:
    from tidegate.sql.core.row_groups import RowGroup

_KEYS_SHOWN = 3
_RANK = "tidegate_rank"

Rows: TypeAlias = sa.Select[Any]


class StagedRowsLostError(DatabaseUnavailableError):
    """A database crash lost staged rows; the batch must be run again."""


class WriteMode(StrEnum):
    """What to do with a row whose key is already in the table."""

    APPEND = "append"
    """Insert the row; the database refuses an existing key."""
    UPSERT = "upsert"
    """Replace the row with its key; columns that it lacks keep their values."""


@dataclass(frozen=True, slots=True)
class LedgerTable:
    """A table that a ``LedgerSink`` writes, and how."""

    table: sa.Table
    mode: WriteMode = WriteMode.UPSERT
    key: tuple[str, ...] = ()
    """Columns that identify a row in an upsert; empty: the primary key. They must be unique in the database,
    and never NULL."""
    order_by: tuple[str, ...] = ()
    """Of a micro-batch's rows with the same key, the one with the highest values here is written; NULL is
    lowest. Empty: such rows are an error."""
    is_older_ignored: bool = False
    """True: a row does not replace one with higher ``order_by`` values."""
    key_columns: tuple[str, ...] = field(init=False)
    """The resolved key."""

    def __post_init__(self) -> None:
        names = tuple(self.key) or tuple(column.key for column in self.table.primary_key)
        object.__setattr__(self, "key_columns", names)
        object.__setattr__(self, "order_by", tuple(self.order_by))
        unknown = [name for name in (*names, *self.order_by) if name not in self.table.columns]
        if unknown:
            raise InvalidArgumentError(
                f"The table {self.table.name} has no column {unknown[0]!r}.",
                next_step=f"It has {', '.join(self.table.columns.keys())}.",
            )
        if self.mode is WriteMode.UPSERT and not names:
            raise InvalidArgumentError(
                f"The table {self.table.name} has no primary key to upsert by.",
                next_step="Give it one, name the columns of a unique key, or use WriteMode.APPEND.",
            )
        open_keys = [
            name
            for name in names
            if self.table.columns[name].nullable and name not in self.table.primary_key.columns
        ]
        if self.mode is WriteMode.UPSERT and open_keys:
            raise InvalidArgumentError(
                f"The key column {open_keys[0]!r} of the table {self.table.name} may be NULL, and rows with "
                "NULL there would be added again with each micro-batch.",
                next_step="Declare it nullable=False.",
            )
        if self.is_older_ignored and not self.order_by:
            raise InvalidArgumentError("is_older_ignored needs order_by, which says which rows are older.")


class TableWriter:
    """Writes one table's rows in one transaction: any number of ``load`` and ``take`` calls, then
    ``finish``."""

    def __init__(self, unit: UnitOfWork, target: LedgerTable) -> None:
        self._unit = unit
        self._target = target
        self._sources: list[sa.Table] = []
        self._loaded: dict[tuple[str, ...], sa.Table] = {}
        self.rows = 0
        """The number of rows written to the table."""

    def load(self, rows: RowGroup) -> None:
        """Load rows; an append inserts them immediately. Raises RowsRefusedError."""
        if not len(rows):
            return
        table = self._target.table
        if self._target.mode is WriteMode.UPSERT:
            if rows.columns not in self._loaded:
                self._make_temporary(rows.columns)
            table = self._loaded[rows.columns]
        self._unit.insert_values(table, rows)
        self.rows += len(rows)

    def take(self, staged: sa.Table, columns: Sequence[str], rows: int) -> None:
        """Take rows from a staged table with these columns in the same database, a server's.

        rows: how many it must hold. Raises RowsRefusedError; StagedRowsLostError for another number: the
        table may be unlogged, and the server has crashed since.
        """
        with self._unit.translating(f"reading staged rows for {self._target.table.name}"):
            found = self._unit.connection.execute(sa.select(sa.func.count()).select_from(staged)).scalar_one()
        if found != rows:
            raise StagedRowsLostError(
                f"The staged rows for {self._target.table.name} are {found} instead of {rows}: the database "
                "has restarted since they were written.",
                next_step="Nothing of the micro-batch was written; run it again.",
            )
        if self._target.mode is WriteMode.APPEND:
            targets = [self._target.table.columns[key] for key in columns]
            statement = self._target.table.insert().from_select(targets, _rows_of(staged, columns))
            execute_rows(self._unit, statement, self._target.table)
        else:
            self._sources.append(loose_copy(self._target.table, staged.name, columns))
        self.rows += rows

    def finish(self) -> int:
        """Merge the loaded and taken rows. Returns how many. Raises as ``merge``."""
        groups: dict[tuple[str, ...], list[sa.Table]] = {}
        for source in [*self._loaded.values(), *self._sources]:
            groups.setdefault(tuple(source.columns.keys()), []).append(source)
        if len(groups) > 1:
            raise InvalidArgumentError(
                f"The rows for {self._target.table.name} do not all have the same columns.",
                next_step="Let each part of a micro-batch have the same columns for a table.",
            )
        for columns, sources in groups.items():
            merge(self._unit, self._target, sources, columns)
        with self._unit.translating("dropping a temporary table"):
            for table in self._loaded.values():
                self._unit.database.dialect.drop_temporary(self._unit.connection, table)
        self._loaded.clear()
        return self.rows

    def _make_temporary(self, columns: tuple[str, ...]) -> None:
        name = f"tidegate_new_{len(self._loaded)}_{self._target.table.name}"[:63]
        name = self._unit.database.dialect.temporary_name(name)
        table = loose_copy(self._target.table, name, columns, prefixes=("TEMPORARY",))
        with self._unit.translating("creating a temporary table"):
            self._unit.database.dialect.make_table(self._unit.connection, table, like=self._target.table)
        self._loaded[columns] = table


def check_key(database: Database, target: LedgerTable) -> None:
    """Raises InvalidArgumentError if the database does not keep an upsert's key unique."""
    if target.mode is WriteMode.APPEND:
        return
    table = target.table
    wanted = {table.columns[key].name for key in target.key_columns}
    with database.read() as connection:
        found = sa.inspect(connection)
        keys = [found.get_pk_constraint(table.name, table.schema)["constrained_columns"]]
        keys += [each["column_names"] for each in found.get_unique_constraints(table.name, table.schema)]
        for index in found.get_indexes(table.name, table.schema):
            is_partial = any(name.endswith("_where") for name in index.get("dialect_options", {}))
            if index["unique"] and not is_partial:
                keys.append([name for name in index["column_names"] if name is not None])
    if not any(set(key) == wanted for key in keys):
        raise InvalidArgumentError(
            f"The table {table.name} in {database.url} has no unique key of the columns "
            f"{', '.join(sorted(wanted))} to upsert by.",
            next_step="Make a primary key or a unique index of just these columns.",
        )


def loose_copy(
    table: sa.Table,
    name: str,
    columns: Sequence[str],
    *,
    more: Sequence[sa.Column[Any]] = (),
    prefixes: Sequence[str] = (),
) -> sa.Table:
    """A table with some columns of ``table`` and their types, without constraints."""
    copies = [
        sa.Column(table.columns[key].name, table.columns[key].type, key=key, nullable=True) for key in columns
    ]
    return sa.Table(name, sa.MetaData(), *copies, *more, prefixes=list(prefixes))


def merge(unit: UnitOfWork, target: LedgerTable, sources: Sequence[sa.Table], columns: Sequence[str]) -> None:
    """Upsert the rows of source tables with these columns.

    Raises RowsRefusedError, and DatabaseError if rows share a key and nothing says which is last.
    """
    parts = [sa.select(*(source.columns[key].label(key) for key in columns)) for source in sources]
    source = parts[0].subquery() if len(parts) == 1 else sa.union_all(*parts).subquery()
    # Some databases refuse a key's second row, unless both are older than the stored one, and a row without a
    # key. In others, one of the rows would silently win, and a row would be given a new integer key.
    is_refused = unit.database.dialect.is_shared_key_refused
    if not is_refused:
        _refuse_null_keys(unit, target, source)
    is_looked_for = not is_refused or target.is_older_ignored
    is_shared = is_looked_for and bool(_shared_keys(unit, target, source))
    if not is_shared and _try_upsert(unit, target, columns, _rows_of(source, columns)):
        return
    keys = _shared_keys(unit, target, source, is_highest_only=bool(target.order_by))
    if keys:
        raise _duplicate_error(target, keys)
    highest = _rows_of(_ranked(unit.database.dialect, target, source, columns), columns)
    is_merged = _try_upsert(unit, target, columns, highest)
    assert is_merged, "one row of each key is left"


def _try_upsert(unit: UnitOfWork, target: LedgerTable, columns: Sequence[str], rows: Rows) -> bool:
    """Returns False, with nothing written, if the database refuses rows that share a key."""
    upsert = Upsert(target.table, target.key_columns, columns, rows, _is_newer(target))
    savepoint = unit.connection.begin_nested()
    try:
        for statement in unit.database.dialect.upsert_statements(upsert):
            execute_rows(unit, statement, target.table)
    except RowsRefusedError as error:
        savepoint.rollback()
        if not is_of(error.reason, ErrorKind.SECOND_TIME):
            raise
        return False
    savepoint.commit()
    return True


def execute_rows(unit: UnitOfWork, statement: sa.Executable, table: sa.Table) -> None:
    """Run a statement that writes rows of other tables to ``table``. Raises RowsRefusedError."""
    with unit.writing_rows(table):
        unit.connection.execute(statement)


def _is_newer(target: LedgerTable) -> Callable[[Columns], sa.ColumnElement[bool]] | None:
    if not target.is_older_ignored:
        return None
    stored = [target.table.columns[key] for key in target.order_by]
    return lambda new: _is_not_below([new[column.key] for column in stored], stored)


def _is_not_below(
    new: Sequence[sa.ColumnElement[object]], stored: Sequence[sa.ColumnElement[object]]
) -> sa.ColumnElement[bool]:
    """``new >= stored``, compared column by column from the left; NULL is lowest."""
    result: sa.ColumnElement[bool] = sa.true()
    for mine, theirs in zip(reversed(new), reversed(stored), strict=True):
        is_equal = sa.or_(mine == theirs, sa.and_(mine.is_(None), theirs.is_(None)))
        is_higher = sa.or_(mine > theirs, sa.and_(mine.is_not(None), theirs.is_(None)))
        result = sa.or_(is_higher, sa.and_(is_equal, result))
    return result


def _rows_of(source: sa.Table | sa.Subquery, columns: Sequence[str]) -> Rows:
    # SQLite cannot parse ON CONFLICT after a SELECT without WHERE (its documentation, "UPSERT", 2.2).
    rows = sa.select(*(source.columns[key] for key in columns)).where(sa.true())
    return rows.where(source.columns[_RANK] == 1) if _RANK in source.columns else rows


def _ranked(
    dialect: SqlDialect, target: LedgerTable, source: sa.Subquery, columns: Sequence[str]
) -> sa.Subquery:
    """The rows, numbered within each key from the highest by ``order_by``."""
    order = [dialect.descending(source.columns[key]) for key in target.order_by]
    rank = sa.func.rank().over(
        partition_by=[source.columns[key] for key in target.key_columns], order_by=order
    )
    return sa.select(*(source.columns[key].label(key) for key in columns), rank.label(_RANK)).subquery()


def _shared_keys(
    unit: UnitOfWork, target: LedgerTable, source: sa.Subquery, *, is_highest_only: bool = False
) -> Sequence[tuple[object, ...]]:
    """Keys shared by several rows; is_highest_only: by several rows that are all the key's highest."""
    rows = source
    if is_highest_only:
        rows = _ranked(unit.database.dialect, target, source, target.key_columns)
    keys = [rows.columns[key] for key in target.key_columns]
    statement = sa.select(*keys).group_by(*keys).having(sa.func.count() > 1).limit(_KEYS_SHOWN)
    if is_highest_only:
        statement = statement.where(rows.columns[_RANK] == 1)
    with unit.translating(f"looking for rows of {target.table.name} that share a key"):
        return [tuple(found) for found in unit.connection.execute(statement)]


def _refuse_null_keys(unit: UnitOfWork, target: LedgerTable, source: sa.Subquery) -> None:
    """Raises RowsRefusedError for a row without one of its key's columns."""
    for key in target.key_columns:
        statement = sa.select(sa.true()).select_from(source).where(source.columns[key].is_(None)).limit(1)
        with unit.translating(f"looking for rows of {target.table.name} without a key"):
            is_found = unit.connection.execute(statement).first() is not None
        if is_found:
            column = target.table.columns[key]
            driver = unit.connection.dialect.loaded_dbapi
            reason = driver.IntegrityError(f"NOT NULL constraint failed: {target.table.name}.{column.name}")
            raise rows_refused(reason, f"rows for {target.table.name}")


def _duplicate_error(target: LedgerTable, keys: Sequence[tuple[object, ...]]) -> DatabaseError:
    shown = "; ".join(
        ", ".join(f"{name}={value!r}" for name, value in zip(target.key_columns, key, strict=True))
        for key in keys
    )
    if target.order_by:
        return DatabaseError(
            f"Several rows for {target.table.name} have the same key and the same "
            f"{', '.join(target.order_by)}, the highest of the key: {shown}.",
            next_step="Nothing of the micro-batch was written. Add a column to order_by that "
            "distinguishes them.",
        )
    return DatabaseError(
        f"Several rows for {target.table.name} have the same key: {shown}.",
        next_step="Nothing of the micro-batch was written. Aggregate by the key, or set order_by to choose "
        "the last row.",
    )
