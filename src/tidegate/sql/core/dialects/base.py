"""What the transactional core asks of a database: connections, statements and errors.

Rule: nothing else in ``tidegate.sql`` asks which database it is, except that SQLite's is a file. A new
database is one more ``SqlDialect``, which has to pass tests/sql/test_conformance.py.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum, Flag, auto
from typing import Any, ClassVar, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    DateTime,
    Dialect,
    Engine,
    Executable,
    Insert,
    Select,
    Table,
    and_,
    bindparam,
    false,
    or_,
    tuple_,
)
from sqlalchemy.engine import URL
from sqlalchemy.schema import CreateTable, DropTable
from sqlalchemy.types import TypeEngine

from tidegate.model.clock import Clock

Columns = Mapping[str, ColumnElement[Any]]
"""Columns by their keys."""


class ErrorKind(Flag):
    """What a driver's error means; an error may be of several kinds, or of none."""

    LOST = auto()
    """The connection is lost, and perhaps an answer with it."""
    BUSY = auto()
    """Nothing was written, and a retry helps: a lock, a deadlock, too many connections."""
    DEADLOCK = auto()
    DATA = auto()
    """A row's values are at fault."""
    SECOND_TIME = auto()
    """Two of a statement's rows share a key."""
    NO_TABLE = auto()
    NO_RIGHT = auto()
    DISK_FULL = auto()
    BROKEN = auto()
    """Another fault of the database itself."""
    TOO_LARGE = auto()
    """The transaction was too large or too long for the server: so would be the same one again."""
    NO_SAVEPOINT = auto()
    """The transaction has ended behind SQLAlchemy's back."""


NO_KIND = ErrorKind(0)

ROW_LOCK: Final = "WITH (UPDLOCK, ROWLOCK)"
"""SQL Server's hint for ``locking``."""
ROW_LOCK_OF_FREE: Final = "WITH (UPDLOCK, ROWLOCK, READPAST)"
"""The same for ``locking_free``."""


class BulkForm(Enum):
    """How many rows get into a table fastest."""

    COPY = "COPY"
    PARAMETERS = "an insert of many rows, with parameters"
    TEXT = "an insert of many rows, as text"
    ROWS = "an insert of one row, for which the driver sends many rows' parameters together"


class IntegerRule(Enum):
    """What becomes of ``5.0`` and of ``true`` for an integer column."""

    AS_GIVEN = "the database keeps what is given"
    CONVERTED = "the database takes only integers"
    CHECKED = "the database would round a fraction, so it must not see one"


@dataclass(frozen=True, slots=True)
class Upsert:
    """Rows of a query to be written to a table, replacing rows with the same key."""

    table: Table
    key: Sequence[str]
    columns: Sequence[str]
    """All columns that the rows have, the key's included."""
    rows: Select[Any]
    is_newer: Callable[[Columns], ColumnElement[bool]] | None = None
    """Whether a row, given by its columns, replaces the stored one; None: it always does."""

    @property
    def changed(self) -> list[str]:
        """The columns that are not the key's."""
        return [name for name in self.columns if name not in self.key]


class SqlDialect(ABC):
    """One kind of database. Stateless; methods raise what SQLAlchemy and the driver raise."""

    name: ClassVar[str]
    """SQLAlchemy's name of it."""
    title: ClassVar[str]
    """For messages."""
    driver_modules: ClassVar[tuple[str, ...]]
    """The packages whose errors it judges."""
    extra: ClassVar[str | None] = None
    """The extra of the distribution that installs the driver; None: Python has it."""
    url_example: ClassVar[str]
    untried: ClassVar[str | None] = None
    """What to say to users of a database on which Tidegate was not run; None: it was."""
    bulk_form: ClassVar[BulkForm]
    has_zones: ClassVar[bool]
    """Whether a time can be stored with its zone."""
    time_type: ClassVar[TypeEngine[Any]] = DateTime(timezone=True)
    """Keeps microseconds."""
    integer_rule: ClassVar[IntegerRule]
    time_forms: ClassVar[Mapping[type, re.Pattern[str]]] = {}
    """Matches the beginning of strings that mean a ``datetime``, ``date`` or ``time``, where the database
    would read one from other strings, too; none: it refuses them itself."""
    has_returning: ClassVar[bool] = True
    """Whether INSERT and UPDATE can return rows."""
    has_transactional_ddl: ClassVar[bool] = True
    """Whether a transaction can create and drop tables, and undo that."""
    has_parallel_results: ClassVar[bool] = True
    """Whether a connection can stream several results at once."""
    has_index_walks: ClassVar[bool] = True
    """Whether a recursive query can walk an index from key to key."""
    has_row_counts: ClassVar[bool] = True
    """Whether a statement with several rows of parameters says how many rows it changed in all."""
    parameters_max: ClassVar[int | None] = None
    """Of a statement; None: more than are used here."""
    has_binary_lengths: ClassVar[bool] = False
    """Whether a column refuses bytes beyond the length of its type."""
    has_identity_guard: ClassVar[bool] = False
    """Whether a column that the database numbers refuses a given number until a statement allows it."""
    is_shared_key_refused: ClassVar[bool]
    """Whether an upsert refuses rows that share a key; otherwise one of them would win."""
    is_commit_error_final: ClassVar[bool]
    """Whether an error of COMMIT, other than a lost connection, means that nothing was committed."""

    # --- connecting ---

    @abstractmethod
    def checked(self, url: URL) -> URL:
        """The URL with the driver that is used here. Raises DatabaseError for an unusable one."""

    @abstractmethod
    def connect_arguments(self, url: URL, *, lock_wait_s: float) -> dict[str, Any]:
        """What the driver needs to connect; the URL's own take precedence."""

    def engine_options(self) -> dict[str, Any]:
        """More arguments of ``create_engine``."""
        # As many connections as threads need, 5 of them kept open. With SQLAlchemy's limit of 15, a lease
        # renewal would wait for 15 batches and fail after 30 s.
        return {"pool_pre_ping": True, "isolation_level": "READ COMMITTED", "max_overflow": -1}

    @abstractmethod
    def set_up(self, engine: Engine, *, lock_wait_s: float) -> None:
        """Make the engine prepare each connection."""

    @abstractmethod
    def abort(self, raw: Any) -> None:
        """End the transaction of a driver's connection from another thread. Raises OSError."""

    def is_login_refused(self, words: str) -> bool:
        """Whether an error's message says that user, password or database name are wrong."""
        return False

    def driver_step(self, words: str) -> str | None:
        """What to install, if an error's message says that a part of the driver is missing."""
        return None

    def is_transaction_over(self, raw: Any) -> bool:
        """Whether an error has also ended the transaction of a driver's connection, unsaid."""
        return False

    # --- schema ---

    @abstractmethod
    def changing_schema(self, connection: Connection) -> AbstractContextManager[None]:
        """Keep other processes from creating or migrating tables, at most until the transaction ends."""

    def temporary_name(self, name: str) -> str:
        """The name of a temporary table."""
        return name

    def make_table(self, connection: Connection, table: Table, *, like: Table | None = None) -> None:
        """Create a table for rows on their way, of this connection's own if it has the prefix TEMPORARY.

        like: the table whose columns it copies, beside its own.
        """
        connection.execute(CreateTable(table))

    def bytes_max(self, column_type: TypeEngine[Any], dialect: Dialect) -> int | None:
        """How many bytes of UTF-8, or of binary data, a type declared without a length holds; None: more than
        an event has."""
        return None

    def drop_temporary(self, connection: Connection, table: Table) -> None:
        """Drop a temporary one within the transaction."""
        connection.execute(DropTable(table))

    def rename_tables(
        self, connection: Connection, names: Sequence[tuple[str, str]], schema: str | None
    ) -> None:
        """Rename tables of one schema in this order, all or none; each pair is the old and the new name.

        Without transactional DDL it commits.
        """
        quoted = connection.dialect.identifier_preparer
        place = "" if schema is None else f"{quoted.quote_schema(schema)}."
        for old, new in names:
            connection.exec_driver_sql(
                f"ALTER TABLE {place}{quoted.quote(old)} RENAME TO {quoted.quote(new)}"
            )

    # --- statements ---

    @abstractmethod
    def insert_or_lock(self, table: Table, values: Mapping[str, Any]) -> Executable:
        """Insert a row unless there is one with its primary key. It waits for one being inserted."""

    @abstractmethod
    def insert_if_absent(self, table: Table, values: Mapping[str, Any]) -> Insert:
        """The same, for a caller that needs to know whether it inserted, and not the other's row."""

    @abstractmethod
    def upsert_values(
        self, table: Table, changes: Callable[[Columns], Mapping[str, ColumnElement[Any]]]
    ) -> Sequence[Executable]:
        """The statements that, in order, insert rows, or change those with their key, the only unique one.

        changes: of the new row's columns, what to set; decided by the row as it was before. Parameters: all
        columns by their keys, with ``new_`` before them; no two rows have the same key.
        """

    @abstractmethod
    def upsert_statements(self, upsert: Upsert) -> Sequence[Executable]:
        """The statements that, in order, upsert a query's rows."""

    @abstractmethod
    def now(self, clock: Clock, type_: TypeEngine[Any]) -> ColumnElement[Any]:
        """The database's own time, the same in a whole statement."""

    @abstractmethod
    def hour_of(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """The hour of a time in UTC: a time, or text such as ``2026-11-22 06``."""

    def descending(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Orders from the highest, NULL last."""
        return column.desc()

    def is_one_of(
        self, columns: Sequence[ColumnElement[Any]], rows: Sequence[Sequence[Any]]
    ) -> ColumnElement[bool]:
        """Whether columns have the values of one of the rows."""
        return tuple_(*columns).in_(rows)

    def is_beyond(
        self, columns: Sequence[ColumnElement[Any]], place: Sequence[Any], *, is_descending: bool = False
    ) -> ColumnElement[bool]:
        """Whether columns, compared from the left, are higher than a place; is_descending: lower."""
        here = tuple_(*columns)
        there = tuple_(*place, types=[each.type for each in columns])
        return here < there if is_descending else here > there

    @staticmethod
    def is_beyond_by_column(
        columns: Sequence[ColumnElement[Any]], place: Sequence[Any], *, is_descending: bool = False
    ) -> ColumnElement[bool]:
        """The same for a database that walks no index by a comparison of tuples, but by the first column."""
        found: ColumnElement[bool] = false()
        for column, value in reversed(list(zip(columns, place, strict=True))):
            found = or_(column < value if is_descending else column > value, and_(column == value, found))
        first, value = columns[0], place[0]
        return and_(first <= value if is_descending else first >= value, found)

    def make_constraints_immediate(self, connection: Connection) -> bool:
        """Check deferred constraints with each statement; False: this database cannot."""
        return False

    def literals(self, values: Sequence[object]) -> list[str]:
        """A column's values in SQL (``BulkForm.TEXT``). Raises ValueError and TypeError for unknown ones."""
        raise NotImplementedError

    def statement_bytes_max(self, connection: Connection) -> int:
        """The longest statement that the server accepts (``BulkForm.TEXT``)."""
        raise NotImplementedError

    @abstractmethod
    def begin_snapshot(self, connection: Connection) -> None:
        """Let the transaction, which has read nothing yet, see one state of the database only."""

    # --- errors ---

    @abstractmethod
    def kinds_of(self, error: BaseException) -> ErrorKind:
        """What an error of its driver means."""


def locking(statement: Select[Any], table: Table) -> Select[Any]:
    """The query, which locks the rows of ``table`` that it finds until the transaction ends.

    SQLite's writer has locked all. SQL Server has no FOR UPDATE, but hints.
    """
    return statement.with_for_update().with_hint(table, ROW_LOCK, "mssql")


def locking_free(statement: Select[Any], table: Table) -> Select[Any]:
    """The same, without the rows that another transaction has locked: it waits for nothing."""
    return statement.with_for_update(skip_locked=True).with_hint(table, ROW_LOCK_OF_FREE, "mssql")


def new_values(table: Table) -> dict[str, ColumnElement[Any]]:
    """The parameters of ``upsert_values``, by their columns' keys."""
    return {each.key: bindparam(f"new_{each.key}", type_=each.type) for each in table.columns}


def is_bytes_like(value: object) -> bool:
    """Whether a value is bytes, or a buffer such as an array. Raises ValueError for a buffer without bytes.

    numpy's numbers and strings are buffers too, but mean a number or text.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return True
    # Another thread may be importing numpy, which then lacks names, and has made no values.
    generic = getattr(sys.modules.get("numpy"), "generic", None)
    if generic is not None and isinstance(value, generic):
        return isinstance(value, sys.modules["numpy"].void | sys.modules["numpy"].bytes_)
    try:
        memoryview(value).release()  # type: ignore[arg-type]
    except (TypeError, BufferError):
        return False
    return True


def shut_down(descriptor: int) -> None:
    """Cut a connection. The server ends a lost client's transaction; the driver would wait for its thread."""
    with socket.socket(fileno=os.dup(descriptor)) as line:
        line.shutdown(socket.SHUT_RDWR)
