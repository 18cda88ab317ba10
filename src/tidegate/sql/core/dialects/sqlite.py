"""SQLite by Python's own driver: WAL, one writer at a time; errors by their codes."""

from __future__ import annotations

import sqlite3
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Engine, Table, event, func, literal, literal_column
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import URL
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.types import TypeEngine

from tidegate.model.clock import Clock
from tidegate.model.errors import DatabaseError
from tidegate.sql.core.dialects.base import NO_KIND, BulkForm, ErrorKind, IntegerRule, SqlDialect
from tidegate.sql.core.dialects.on_conflict import OnConflict

IS_READER: Final = "tidegate_is_reader"
"""The execution option of connections that only read."""

_DATA: Final = ("malformed JSON", "integer overflow")
"""Errors of functions in generated columns, checks and triggers about a value; SQLite calls them
operational."""
_KINDS: Final = {
    sqlite3.SQLITE_BUSY: ErrorKind.BUSY,
    # A process that is stopped while writing the WAL's header also blocks readers: after 10 s SQLite reports
    # "locking protocol" (seen with a stopped process).
    sqlite3.SQLITE_PROTOCOL: ErrorKind.BUSY,
    sqlite3.SQLITE_FULL: ErrorKind.DISK_FULL,
    sqlite3.SQLITE_IOERR: ErrorKind.BROKEN,
    sqlite3.SQLITE_READONLY: ErrorKind.NO_RIGHT,
    sqlite3.SQLITE_CANTOPEN: ErrorKind.BROKEN,
}
"""By code ("Result and Error Codes"), since messages quote values of events."""
_KINDS_WITHOUT_CODE: Final = (
    ("no such table: ", ErrorKind.NO_TABLE),
    ("no such savepoint: ", ErrorKind.NO_SAVEPOINT),
)
"""By the beginning of the message, which no value is; SQLITE_ERROR is the code of many errors."""


class SqliteDialect(OnConflict, SqlDialect):
    """See the module."""

    name = "sqlite"
    title = "SQLite"
    driver_modules = ("sqlite3",)
    url_example = "sqlite:////absolute/path.db"
    bulk_form = BulkForm.PARAMETERS
    has_zones = False
    integer_rule = IntegerRule.AS_GIVEN
    is_shared_key_refused = False
    is_commit_error_final = False

    def insert(self, table: Table) -> Any:
        return sqlite.insert(table)

    def checked(self, url: URL) -> URL:
        if url.database in (None, "", ":memory:") or str(url.database).startswith("file:"):
            raise DatabaseError(
                "An in-memory database or a file: URI cannot be shared with other processes.",
                next_step="Name a file: sqlite:////absolute/path.db",
            )
        return url.set(drivername="sqlite", database=str(Path(str(url.database)).absolute()))

    def connect_arguments(self, url: URL, *, lock_wait_s: float) -> dict[str, Any]:
        return {"timeout": lock_wait_s, "check_same_thread": False}

    def engine_options(self) -> dict[str, Any]:
        return {}

    def set_up(self, engine: Engine, *, lock_wait_s: float) -> None:
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)

    def abort(self, raw: Any) -> None:
        raw.interrupt()
        # Without a transaction, the next statement would commit on its own: forbid writing.
        raw.execute("PRAGMA query_only = ON")
        raw.rollback()

    def changing_schema(self, connection: Connection) -> AbstractContextManager[None]:
        return nullcontext()  # the writers' lock does so

    def now(self, clock: Clock, type_: TypeEngine[Any]) -> ColumnElement[Any]:
        return literal(clock.now_utc(), type_)

    def hour_of(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        # As stored, "2026-11-22 06:00:00.000000": the first 13 characters are the hour.
        return func.substr(literal_column(str(column.key)), 1, 13)

    def begin_snapshot(self, connection: Connection) -> None:
        """Every transaction reads one state."""

    def kinds_of(self, error: BaseException) -> ErrorKind:
        text = str(error)
        kinds = ErrorKind.DATA if _is_data(error, text) else NO_KIND
        # The low byte; the driver's own errors have no code.
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        kinds |= _KINDS.get(code, NO_KIND)
        if code == sqlite3.SQLITE_ERROR:
            for words, kind in _KINDS_WITHOUT_CODE:
                if text.startswith(words):
                    kinds |= kind
        return kinds


def _is_data(error: BaseException, text: str) -> bool:
    if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError):
        return True
    if isinstance(error, sqlite3.OperationalError):
        return text in _DATA
    # For a value of an unknown type, Python 3.11 raises InterfaceError and 3.12 ProgrammingError.
    return isinstance(error, sqlite3.InterfaceError | sqlite3.ProgrammingError) and "binding" in text


def _prepare(connection: DBAPIConnection, record: ConnectionPoolEntry) -> None:
    # SQLAlchemy begins transactions itself (_begin), so the driver must not.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Connection) -> None:
    is_reader = connection.get_execution_options().get(IS_READER, False)
    # A deferred transaction that starts writing halfway can fail immediately with "database is locked".
    connection.exec_driver_sql("BEGIN" if is_reader else "BEGIN IMMEDIATE")
