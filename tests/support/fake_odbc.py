"""A stand-in for pyodbc with SQL Server behind it: it reads each statement as T-SQL, and runs it on SQLite.

It records what it is sent, refuses what sqlglot's T-SQL reader does not know, MERGE, a second statement while
a result is unread (as without MARS), and more than 2,099 parameters. What only a server can show, it cannot:
locks of rows, types, plans, and whether T-SQL means here what it means there.
"""

from __future__ import annotations

import itertools
import re
import sqlite3
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NoReturn
from unittest import mock

import sqlglot
from sqlglot import exp

from tidegate.transport.clock import SystemClock

PARAMETERS_MAX: Final = 2_099
"""Of one statement. A procedure has 2,100 (Microsoft Learn, "Maximum capacity specifications for SQL
Server"), of which 2,099 can be used here (SQLAlchemy, dialects/mssql/base.py)."""
ROWS_MAX: Final = 1_000
"""In the VALUES of an INSERT (Microsoft Learn, "Table Value Constructor")."""
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{6})?$")
_TYPES: Final = {
    **dict.fromkeys(("INT", "BIGINT", "SMALLINT", "BIT", "BOOLEAN"), "INTEGER"),
    **dict.fromkeys(("VARBINARY", "BINARY"), "BLOB"),
    **dict.fromkeys(("FLOAT", "DOUBLE"), "REAL"),
}
_NUMBERS: Final = {"UNIQUE": ("23000", 2627), "NOT NULL": ("23000", 515), "no such table": ("42S02", 208)}


def _class(name: str, *bases: type[BaseException]) -> type[Exception]:
    return type(name, bases or (Exception,), {"__module__": "pyodbc"})


Error = _class("Error")
DatabaseError = _class("DatabaseError", Error)
ProgrammingError = _class("ProgrammingError", DatabaseError)
IntegrityError = _class("IntegrityError", DatabaseError)
OperationalError = _class("OperationalError", DatabaseError)
InterfaceError = _class("InterfaceError", Error)
DataError = _class("DataError", DatabaseError)


def server_error(
    number: int, words: str, *, state: str = "42000", kind: type[Exception] = Error
) -> Exception:
    """An error as pyodbc words it (its errors.cpp), with the server's number."""
    driver = "[Microsoft][ODBC Driver 18 for SQL Server][SQL Server]"
    return kind(state, f"[{state}] {driver}{words} ({number}) (SQLExecDirectW)")


class FakeServer:
    """A SQL Server with one database per file in ``folder``; enter it to be pyodbc."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.statements: list[str] = []
        """All that was sent, in order, without the repetitions of ``executemany``."""
        self.connection_strings: list[str] = []
        self.failures: list[tuple[str, Exception]] = []
        """(A part of a statement, or ``connect``; what it raises once)."""
        self._ids = itertools.count(1_000)

    @contextmanager
    def installed(self) -> Iterator[FakeServer]:
        """As ``import pyodbc``."""
        module: Any = ModuleType("pyodbc")
        for each in (
            Error,
            DatabaseError,
            ProgrammingError,
            IntegrityError,
            OperationalError,
            InterfaceError,
        ):
            setattr(module, each.__name__, each)
        module.DataError, module.NotSupportedError, module.Cursor = DataError, Error, Cursor
        module.version, module.paramstyle, module.apilevel, module.threadsafety = "5.5.0", "qmark", "2.0", 1
        module.SQL_VARCHAR, module.SQL_WVARCHAR, module.NUMBER = 12, -9, float
        module.DATETIME, module.BINARY, module.STRING = datetime, bytes, str
        module.Binary, module.BinaryNull, module.pooling = bytes, None, True
        module.connect = lambda text, **keywords: Connection(self, text, keywords)
        with mock.patch.dict(sys.modules, {"pyodbc": module}):
            yield self

    def fail(self, doing: str) -> None:
        """Raise the failure of a statement, or of ``connect``."""
        for part, error in list(self.failures):
            if part in doing:
                self.failures.remove((part, error))
                raise error

    def next_id(self) -> int:
        """Of a transaction."""
        return next(self._ids)


class Connection:
    """A driver's connection in manual-commit mode."""

    def __init__(self, server: FakeServer, text: str, keywords: dict[str, Any]) -> None:
        server.connection_strings.append(f"{text} {keywords}")
        server.fail("connect")
        found = re.search(r"Database=(\w+)", text)
        assert found is not None
        path = server.folder / f"{found[1]}.db"
        self.server, self.autocommit = server, False
        self.lock_timeout_s = 5.0
        self.sqlite: sqlite3.Connection | None = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, timeout=60
        )
        self.sqlite.execute("PRAGMA foreign_keys = ON")
        self.sqlite.execute("PRAGMA journal_mode = WAL")
        self.now = ""
        self.sqlite.create_function("SYSUTCDATETIME", 0, lambda: self.now)
        self.sqlite.execute("ATTACH ':memory:' AS sys")
        self.sqlite.execute("CREATE TABLE sys.objects (name COLLATE NOCASE, object_id, schema_id, type)")
        self.sqlite.execute("ATTACH ':memory:' AS INFORMATION_SCHEMA")
        self.sqlite.execute("CREATE TABLE INFORMATION_SCHEMA.TABLES (TABLE_NAME, TABLE_SCHEMA, TABLE_TYPE)")
        self.sqlite.execute("CREATE TABLE sys.schemas AS SELECT 'dbo' AS name, 1 AS schema_id")
        self.transaction_id = 0
        self.is_snapshot = False
        self._unread: weakref.ref[Cursor] | None = None
        self.lock = threading.RLock()

    @property
    def unread(self) -> Cursor | None:
        """The cursor with rows that nobody has read; one that nobody has is none."""
        return None if self._unread is None else self._unread()

    @unread.setter
    def unread(self, cursor: Cursor | None) -> None:
        self._unread = None if cursor is None else weakref.ref(cursor)

    def add_output_converter(self, kind: int, convert: object) -> None:
        """Of a type that SQLite has not."""

    def cursor(self) -> Cursor:
        """See PEP 249."""
        if self.sqlite is None:
            raise ProgrammingError("Attempt to use a closed connection.")
        return Cursor(self)

    def begin(self) -> None:
        """As the first statement that reads a table does."""
        assert self.sqlite is not None
        if not self.sqlite.in_transaction:
            self.sqlite.execute("BEGIN" if self.is_snapshot else "BEGIN IMMEDIATE")
            self.transaction_id = self.server.next_id()

    def commit(self) -> None:
        """See PEP 249."""
        self._end("COMMIT")

    def rollback(self) -> None:
        """See PEP 249."""
        self._end("ROLLBACK")

    def _end(self, statement: str) -> None:
        if self.sqlite is None:
            raise ProgrammingError("Attempt to use a closed connection.")
        self.unread = None
        self.transaction_id = 0
        if self.sqlite.in_transaction:
            self.sqlite.execute(statement)

    def close(self) -> None:
        """Rolls back; from any thread."""
        with self.lock:
            if self.sqlite is not None:
                self.sqlite.close()
                self.sqlite = None


class Cursor:
    """See PEP 249."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.description: list[tuple[Any, ...]] | None = None
        self.rowcount = -1
        self.arraysize = 1
        self.fast_executemany = False
        self.rows: list[tuple[Any, ...]] = []
        self._later: list[Exception] = []

    def setinputsizes(self, sizes: object) -> None:
        """Types are SQLite's."""

    def nextset(self) -> bool:
        """There is one result; it raises what a later row of an array was refused for (pyodbc, issue 665)."""
        if self._later:
            raise self._later.pop(0)
        return False

    def close(self) -> None:
        """See PEP 249."""
        if self.connection.unread is self:
            self.connection.unread = None

    def execute(self, statement: str, *parameters: Any) -> Cursor:
        """See PEP 249; parameters also one by one."""
        values = (
            parameters[0] if len(parameters) == 1 and isinstance(parameters[0], tuple | list) else parameters
        )
        self.connection.server.statements.append(statement)
        self._execute(statement, values)
        return self

    def executemany(self, statement: str, parameters: Sequence[Sequence[Any]]) -> None:
        """See PEP 249; the row count is the last one's, as pyodbc's."""
        self.connection.server.statements.append(statement)
        assert not (self.fast_executemany and "[#" in statement), "its columns are not described"
        self._later = []
        for number, each in enumerate(parameters):
            try:
                self._execute(statement, each)
            except Error as error:
                if number == 0 or not self.fast_executemany:
                    raise
                self._later.append(error)

    def fetchone(self) -> tuple[Any, ...] | None:
        """See PEP 249."""
        row = self.rows.pop(0) if self.rows else None
        self._read()
        return row

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """See PEP 249."""
        count = self.arraysize if size is None else size
        found, self.rows = self.rows[:count], self.rows[count:]
        self._read()
        return found

    def fetchall(self) -> list[tuple[Any, ...]]:
        """See PEP 249."""
        found, self.rows = self.rows, []
        self._read()
        return found

    def _read(self) -> None:
        if not self.rows and self.connection.unread is self:
            self.connection.unread = None

    def _answer(self, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        self.description = [(name, None, None, None, None, None, None) for name in names]
        self.rows = [tuple(map(_out, row)) for row in rows]
        self.connection.unread = self if self.rows else None

    def _execute(self, statement: str, values: Sequence[Any]) -> None:
        connection = self.connection
        with connection.lock:
            if connection.sqlite is None:
                raise ProgrammingError("The cursor's connection was closed.")
            if connection.unread is not None and connection.unread is not self:
                words = "Connection is busy with results for another command"
                raise server_error(0, words, state="HY000")
            assert len(values) <= PARAMETERS_MAX, f"{len(values)} parameters"
            connection.server.fail(statement)
            self.description, self.rowcount, self.rows, connection.unread = None, -1, [], None
            connection.now = SystemClock().now_utc().replace(tzinfo=None).isoformat(" ", "microseconds")
            try:
                if not self._of_session(statement):
                    self._of_tables(statement, values)
            except sqlite3.Error as error:
                _refuse(error)

    def _of_session(self, statement: str) -> bool:
        """What is about the session, its transaction and the server."""
        connection, words = self.connection, " ".join(statement.split())
        sqlite = connection.sqlite
        assert sqlite is not None
        if words.startswith("SET ") and "sp_getapplock" not in words:
            if "ISOLATION LEVEL" in words:
                connection.is_snapshot = words.endswith("SNAPSHOT")
            return True
        if words.startswith(("IF @@TRANCOUNT", "IF CURRENT_TRANSACTION_ID()")):
            assert sqlite.in_transaction or "THROW" in words, "BEGIN would begin two transactions"
            found = re.search(r"<> (\d+) THROW (\d+)", words)
            if found and int(found[1]) != connection.transaction_id:
                raise server_error(int(found[2]), "The transaction has ended before.")
            return True
        if words.startswith(("SAVE TRANSACTION", "ROLLBACK TRANSACTION")):
            act = "SAVEPOINT" if words.startswith("SAVE") else "ROLLBACK TO"
            try:
                sqlite.execute(f"{act} {words.rpartition(' ')[2]}")
            except sqlite3.Error:
                raise server_error(6401, "No transaction or savepoint of that name was found.") from None
            return True
        answers: dict[str, list[tuple[Any, ...]]] = {
            "SERVERPROPERTY": [("16.0.4135.4",)],
            "schema_name()": [("dbo",)],
            "test max support": [("test max support",)],
            "fn_listextendedproperty": [],
            "sp_getapplock": [(0,)],
            "FROM sys.databases": [(True, 1)],
            "SELECT XACT_STATE()": [(int(sqlite.in_transaction),)],
        }
        for part, rows in answers.items():
            if part in words:
                if "sys." in part or "sp_" in part:
                    connection.begin()
                self._answer(["found"] * (len(rows[0]) if rows else 1), rows)
                return True
        if "CURRENT_TRANSACTION_ID()" in words:
            connection.begin()
            self._answer(["id"], [(connection.transaction_id,)])
            return True
        return False

    def _of_tables(self, statement: str, values: Sequence[Any]) -> None:
        connection = self.connection
        connection.begin()
        assert connection.sqlite is not None
        values = [_in(each) for each in values]
        if "sys.objects" in statement or "INFORMATION_SCHEMA" in statement:
            self._fill_catalog()
        try:
            translated = in_sqlite(statement)
        except sqlglot.ParseError as error:
            raise server_error(102, str(error), kind=ProgrammingError) from error
        cursor = connection.sqlite.execute(translated, values)
        self.rowcount = cursor.rowcount
        if cursor.description is not None:
            names = [each[0] for each in cursor.description]
            rows = cursor.fetchall()
            self.rowcount = len(rows) if not statement.lstrip().upper().startswith("SELECT") else -1
            self._answer(names, rows)

    def _fill_catalog(self) -> None:
        sqlite = self.connection.sqlite
        assert sqlite is not None
        sqlite.execute("DELETE FROM sys.objects")
        names = "FROM main.sqlite_master WHERE type = 'table'"
        sqlite.execute(f"INSERT INTO sys.objects SELECT name, name, 1, 'U' {names}")
        sqlite.execute("DELETE FROM INFORMATION_SCHEMA.TABLES")
        sqlite.execute(f"INSERT INTO INFORMATION_SCHEMA.TABLES SELECT name, 'dbo', 'BASE TABLE' {names}")


def parsed(statement: str) -> exp.Expr:
    """A statement of T-SQL as sqlglot reads it. Fails for what it does not know, and for MERGE."""
    known = statement.replace("PRIMARY KEY NONCLUSTERED", "PRIMARY KEY")  # which sqlglot does not know
    (tree,) = sqlglot.parse(known, read="tsql", error_level=sqlglot.ErrorLevel.RAISE)
    assert tree is not None
    assert not isinstance(tree, exp.Command), f"sqlglot does not know {statement!r}"
    assert not list(tree.find_all(exp.Merge)), "MERGE"
    for values in tree.find_all(exp.Values):
        assert len(values.expressions) <= ROWS_MAX
    return tree


@cache  # sqlglot takes 10 ms for each, and tests send the same ones
def in_sqlite(statement: str) -> str:
    """The same for SQLite, which needs no hints: OUTPUT is RETURNING, and INTO a temporary table."""
    tree = parsed(statement)
    for kind in list(tree.find_all(exp.DataType)):
        kind.replace(exp.DataType.build(_TYPES.get(kind.this.name, "TEXT"), dialect="sqlite"))
    for each in list(tree.find_all(exp.ColumnConstraint)):
        if isinstance(each.kind, exp.CollateColumnConstraint | exp.GeneratedAsIdentityColumnConstraint):
            each.pop()
    for collated in list(tree.find_all(exp.Collate)):
        collated.replace(collated.this)
    for column in tree.find_all(exp.Column):
        if column.table == "inserted":
            column.set("table", None)
        elif column.table.startswith("#"):
            column.set("table", exp.to_identifier(column.table[1:], quoted=True))
    if isinstance(tree, exp.Update) and tree.args.get("from_"):
        # Its target is in FROM as well, once more.
        tables = tree.args["from_"]
        others = tables.this.args.pop("joins")
        tree.set("from_", exp.From(this=others[0].this))
    return tree.sql(dialect="sqlite", unsupported_level=sqlglot.ErrorLevel.IGNORE)


def _in(value: Any) -> Any:
    return value.isoformat(" ", "microseconds") if isinstance(value, datetime) else value


def _out(value: Any) -> Any:
    return datetime.fromisoformat(value) if isinstance(value, str) and _TIME.match(value) else value


def _refuse(error: sqlite3.Error) -> NoReturn:
    for part, (state, number) in _NUMBERS.items():
        if part in str(error):
            kind = IntegrityError if state == "23000" else ProgrammingError
            raise server_error(number, str(error), state=state, kind=kind) from error
    if isinstance(error, sqlite3.IntegrityError):
        raise server_error(547, str(error), state="23000", kind=IntegrityError) from error
    raise server_error(102, str(error), kind=ProgrammingError) from error
