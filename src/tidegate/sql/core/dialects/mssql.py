"""SQL Server and Azure SQL by pyodbc: READ COMMITTED SNAPSHOT, hints for locks, no MERGE; errors by number.

Never run against a server: tests compile every statement, parse it as T-SQL, and run the flows on a driver of
their own. Sources: Microsoft Learn, by the titles of its pages; pyodbc's source.

Where it differs from the others: a SELECT locks by its hints; strings are compared without trailing blanks;
some errors end the whole transaction; a temporary table's name begins with ``#``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mssql
from sqlalchemy.pool import ConnectionPoolEntry

from tidegate.model.clock import Clock
from tidegate.model.errors import DatabaseError, DatabaseUnavailableError
from tidegate.sql.core.dialects.base import (
    NO_KIND,
    BulkForm,
    Columns,
    ErrorKind,
    IntegerRule,
    SqlDialect,
    Upsert,
    new_values,
)

COLLATION: Final = "Latin1_General_100_BIN2"
"""Of the strings in Tidegate's own tables: compared by code units."""
_MARK: Final = "\u2423"
"""Ends a stored name that ends with a blank or with this. SQL Server compares strings as if the shorter one
had more blanks at its end ("= (String comparison or assignment)"), also in unique keys (KB 231830)."""
_KEY_LOCK: Final = "WITH (UPDLOCK, HOLDLOCK)"
"""Locks a key until the transaction ends, also one that is not there: no other transaction inserts it
("Table hints", UPDLOCK and SERIALIZABLE). A rollback to a savepoint releases what was locked after it."""

_ODBC_DRIVER: Final = "ODBC Driver 18 for SQL Server"
_CONNECTING: Final = {"timeout": 10, "KeepAlive": 10, "KeepAliveInterval": 5, "ConnectRetryCount": 0}
"""In seconds. The driver's own reconnecting would hide that a transaction was lost."""
_OPTIONS_NEXT: Final = (
    "Let an administrator run: ALTER DATABASE CURRENT SET READ_COMMITTED_SNAPSHOT ON WITH ROLLBACK "
    "IMMEDIATE; ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON."
)
_TRANSACTION: Final = "tidegate_transaction"
"""In a connection's ``info``: the id of its transaction."""
_IS_SNAPSHOT: Final = "tidegate_is_snapshot"
_ENDED: Final = 56401
"""The number of an error of our own: the transaction has ended behind SQLAlchemy's back."""

_KINDS: Final = (
    ({596, 6005, 40197, *range(40549, 40554)}, ErrorKind.LOST),
    (
        {
            *(615, 701, 802, 845, 921, 922, 952, 983, 988, 1204, 1205, 1222, 3960, 3961, 3966, 4060, 4221),
            *(8628, 8645, 8651, 10928, 10929, 10936, 17809, 40501, 40613, 41301, 41302, 41305, 41325, 41839),
            *(49918, 49919, 49920),
        },
        ErrorKind.BUSY,
    ),
    (set(range(40549, 40554)), ErrorKind.TOO_LARGE),
    ({1205}, ErrorKind.DEADLOCK),
    (
        {
            *(206, 220, 232, 233, 241, 242, 244, 245, 248, 257, 295, 511, 512, 513, 515, 517, 529, 547, 550),
            *(681, 1946, 2601, 2627, 2628, 3609, 3616, 8023, 8114, 8115, 8134, 8152, 8169, 13609),
            *range(9400, 9481),
        },
        ErrorKind.DATA,
    ),
    ({208, 3701, 4701}, ErrorKind.NO_TABLE),
    ({229, 230, 262, 297, 300, 916, 1088, 3906, 15247}, ErrorKind.NO_RIGHT),
    ({1101, 1105, 1132, 9002, 40544}, ErrorKind.DISK_FULL),
    ({605, 823, 824, 926}, ErrorKind.BROKEN),
    ({_ENDED, 628, 3902, 3903, 6401}, ErrorKind.NO_SAVEPOINT),
)
"""By number. Each is in "Database Engine events and errors" or, for Azure (also 615 and 4060), in
"Troubleshoot connectivity issues and other errors with Azure SQL Database and Azure SQL Managed Instance".
Windows' errors share some numbers, such as 121 and 233, but come with an SQLSTATE of ``08``. 1205 is a
deadlock, 1222 a wait for a lock that took too long, 3960 a conflict of snapshots, 983 a replica that changes
its role, 2601 and 2627 keys that are there already, 511, 2628 and 8152 a row or value too long, 515 NULL, 547
a foreign key or CHECK, 3609 and 3616 a trigger that rolled back, 9400 to 9480 XML; 40549 to 40553 end the
session of a transaction that is too long or has too many locks, bytes of log or of memory."""
_STATES: Final = (
    (("08", "HYT"), ErrorKind.LOST),
    (("40001",), ErrorKind.BUSY | ErrorKind.DEADLOCK),
    (("22", "23"), ErrorKind.DATA),
    (("42S02",), ErrorKind.NO_TABLE),
)
"""By the beginning of the SQLSTATE ("Appendix A: ODBC Error Codes"), for numbers that are not known: the
driver's own errors have 0 or the system's."""
_OF_USERS: Final = 50_000
"""The first number of RAISERROR and THROW."""
_LOGINS: Final = frozenset({4060, 18452, 18456, 18470, 18486, 18487, 18488})
"""Of "Database Engine events and errors". 4060 is a database that cannot be opened."""
_NUMBER: Final = re.compile(r".*\((-?\d+)\) \(SQL\w+\)", re.DOTALL)
"""``[state] words (number) (function)``: the last, since the words may quote an event's value that looks like
it. ``; [state] words (number)`` of more errors may follow, but only on Windows (pyodbc, errors.cpp)."""


class _StoredName(sa.TypeDecorator[str]):
    """A name, which is equal to no other, in an index."""

    impl = mssql.NVARCHAR
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        is_marked = value is not None and value.endswith((" ", _MARK))
        return f"{value}{_MARK}" if is_marked else value

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else value.removesuffix(_MARK)


def name_type(characters_max: int) -> sa.types.TypeEngine[str]:
    """The type of a name in Tidegate's tables, which may be in a key of at most 1,700 bytes."""
    return _StoredName(characters_max, collation=COLLATION)


def words_type() -> sa.types.TypeEngine[str]:
    """The type of other strings in Tidegate's tables."""
    return mssql.NVARCHAR("max", collation=COLLATION)  # type: ignore[arg-type]  # SQLAlchemy's own "max"


class MssqlDialect(SqlDialect):
    """See the module."""

    name = "mssql"
    title = "SQL Server"
    driver_modules = ("pyodbc",)
    extra = "sqlserver"
    url_example = "mssql://user:password@host:1433/name"
    untried = (
        "Tidegate has never run on SQL Server: its statements were only checked as text. Exactly once is not "
        "promised there."
    )
    bulk_form = BulkForm.ROWS
    has_zones = False
    has_binary_lengths = True
    integer_rule = IntegerRule.CHECKED
    has_parallel_results = False
    has_index_walks = False
    has_row_counts = False
    parameters_max = 2_000  # 2,100 less its own ("Maximum capacity specifications for SQL Server")
    has_identity_guard = True
    is_shared_key_refused = False
    is_commit_error_final = False
    time_type = mssql.DATETIME2(6)  # type: ignore[no-untyped-call]

    def checked(self, url: sa.URL) -> sa.URL:
        if not url.database or not url.host or "odbc_connect" in url.query:
            raise DatabaseError(
                "The URL names no host or no database, or hides them in odbc_connect.",
                next_step=f"Write {self.url_example}; more keywords of the ODBC driver follow a ?.",
            )
        named = url if "driver" in url.query else url.update_query_dict({"driver": _ODBC_DRIVER})
        return named.set(drivername="mssql+pyodbc")

    def connect_arguments(self, url: sa.URL, *, lock_wait_s: float) -> dict[str, Any]:
        given = {name.lower() for name in url.query}
        return {name: value for name, value in _CONNECTING.items() if name.lower() not in given}

    def set_up(self, engine: sa.Engine, *, lock_wait_s: float) -> None:
        # The driver manager's pool would give a broken connection again; SQLAlchemy has one.
        engine.dialect.loaded_dbapi.pooling = False  # type: ignore[attr-defined]
        settings = f"SET LOCK_TIMEOUT {max(1, round(lock_wait_s * 1000))}; SET XACT_ABORT OFF"

        def prepare(connection: Any, record: ConnectionPoolEntry) -> None:
            _run(connection, settings)

        sa.event.listen(engine, "connect", prepare)
        sa.event.listen(engine, "checkin", _leave_snapshot)
        sa.event.listen(engine, "handle_error", _notice_end)
        sa.event.listen(engine, "begin", _note_transaction)
        # There is nothing to release, so nothing else would notice that a handler has committed.
        sa.event.listen(engine, "release_savepoint", lambda connection, *_: _check_transaction(connection))
        sa.event.listen(engine, "commit", _check_transaction)

    def abort(self, raw: Any) -> None:
        raw.close()  # rolls back; the thread that uses it gets an error (pyodbc, cursor.cpp)

    def is_transaction_over(self, raw: Any) -> bool:
        try:
            return bool(_run(raw, "SELECT XACT_STATE()") != 1)
        except Exception:  # the connection is lost, whatever the driver calls that
            return True

    def is_login_refused(self, words: str) -> bool:
        return _number(words) in _LOGINS

    def driver_step(self, words: str) -> str | None:
        if "libodbc" in words or "Can't open lib" in words or "IM002" in words:
            return f"Install unixODBC and Microsoft's {_ODBC_DRIVER}: docs/reference/databases.md."
        return None

    @contextmanager
    def changing_schema(self, connection: sa.Connection) -> Iterator[None]:
        options = "SELECT is_read_committed_snapshot_on, snapshot_isolation_state FROM sys.databases "
        is_versioned, snapshots = connection.exec_driver_sql(f"{options}WHERE database_id = DB_ID()").one()
        if not is_versioned or snapshots != 1:
            raise DatabaseError("Readers of this database wait for writers.", next_step=_OPTIONS_NEXT)
        got = connection.exec_driver_sql(
            "SET NOCOUNT ON; DECLARE @got int; EXEC @got = sp_getapplock @Resource = N'tidegate', "
            "@LockMode = 'Exclusive', @LockOwner = 'Transaction', @LockTimeout = 60000; SELECT @got"
        ).scalar_one()
        if got < 0:
            raise DatabaseUnavailableError(
                "Another process has been changing the tables for too long.", next_step="Try again."
            )
        yield

    def temporary_name(self, name: str) -> str:
        return f"#{name}"

    def make_table(self, connection: sa.Connection, table: sa.Table, *, like: sa.Table | None = None) -> None:
        # Copied from what the database has, as tempdb has a collation of its own. Behind an outer join a
        # column may be NULL, and behind any join it is not numbered ("SELECT - INTO clause").
        quote = connection.dialect.identifier_preparer
        known = {} if like is None else dict(like.columns.items())
        columns = []
        for each in table.columns:
            own = f"CAST(NULL AS {each.type.compile(connection.dialect)})"
            if each.key in known:
                own = f"copied.{quote.format_column(known[each.key])}"
            elif isinstance(each.type, sa.String):
                own += " COLLATE DATABASE_DEFAULT"
            columns.append(f"{own} AS {quote.format_column(each)}")
        source = "(SELECT 1 AS one) AS one_row"
        if like is not None:
            source += f" LEFT JOIN {quote.format_table(like)} AS copied ON 1 = 0"
        target = quote.format_table(table)
        connection.exec_driver_sql(f"SELECT {', '.join(columns)} INTO {target} FROM {source} WHERE 1 = 0")

    def rename_tables(
        self, connection: sa.Connection, names: Sequence[tuple[str, str]], schema: str | None
    ) -> None:
        # The new name is taken as it is, without a schema or quotes ("sp_rename").
        quoted = connection.dialect.identifier_preparer
        for old, new in names:
            place = quoted.format_table(sa.table(old, schema=schema))
            connection.execute(sa.text("EXEC sp_rename :place, :new"), {"place": place, "new": new})

    def insert_or_lock(self, table: sa.Table, values: Mapping[str, Any]) -> sa.Executable:
        return self.insert_if_absent(table, values)

    def insert_if_absent(self, table: sa.Table, values: Mapping[str, Any]) -> sa.Insert:
        there = sa.and_(*(each == values[each.key] for each in table.primary_key))
        row = [sa.type_coerce(value, table.c[name].type) for name, value in values.items()]
        return _insert_absent(table, list(values), sa.select(*row), there)

    def upsert_values(
        self, table: sa.Table, changes: Callable[[Columns], Mapping[str, sa.ColumnElement[Any]]]
    ) -> Sequence[sa.Executable]:
        new = new_values(table)
        there = sa.and_(*(each == new[each.key] for each in table.primary_key))
        update = sa.update(table).with_hint(_KEY_LOCK, dialect_name="mssql").where(there)
        insert = _insert_absent(table, list(new), sa.select(*new.values()), there)
        return [update.values(dict(changes(new))), insert]

    def upsert_statements(self, upsert: Upsert) -> Sequence[sa.Executable]:
        table, rows = upsert.table, upsert.rows.subquery("new_rows")
        there = sa.and_(*(table.columns[key] == rows.columns[key] for key in upsert.key))
        new = sa.select(*(rows.columns[key] for key in upsert.columns))
        statements: list[sa.Executable] = []
        if upsert.changed:
            is_newer = sa.true() if upsert.is_newer is None else upsert.is_newer(dict(rows.columns.items()))
            update = sa.update(table).with_hint(_KEY_LOCK, dialect_name="mssql").where(there, is_newer)
            statements.append(update.values({key: rows.columns[key] for key in upsert.changed}))
        return [*statements, _insert_absent(table, list(upsert.columns), new, there)]

    def now(self, clock: Clock, type_: sa.types.TypeEngine[Any]) -> sa.ColumnElement[Any]:
        # With a digit more than Python has ("SYSUTCDATETIME"; that a statement sees one value is not written
        # there).
        return sa.cast(sa.func.sysutcdatetime(), type_)

    def hour_of(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        return sa.func.convert(sa.literal_column("varchar(13)"), column, sa.literal_column("120"))

    def is_one_of(
        self, columns: Sequence[sa.ColumnElement[Any]], rows: Sequence[Sequence[Any]]
    ) -> sa.ColumnElement[bool]:
        alike = (sa.and_(*(each == value for each, value in zip(columns, row, strict=True))) for row in rows)
        return sa.or_(sa.false(), *alike)

    def is_beyond(
        self, columns: Sequence[sa.ColumnElement[Any]], place: Sequence[Any], *, is_descending: bool = False
    ) -> sa.ColumnElement[bool]:
        return self.is_beyond_by_column(columns, place, is_descending=is_descending)

    def make_constraints_immediate(self, connection: sa.Connection) -> bool:
        return True  # they always are

    def begin_snapshot(self, connection: sa.Connection) -> None:
        connection.connection.rollback()  # the level is that with which a transaction begins
        connection.info[_IS_SNAPSHOT] = True
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL SNAPSHOT")
        _note_transaction(connection)

    def kinds_of(self, error: BaseException) -> ErrorKind:
        words = [str(each) for each in error.args]
        kinds = NO_KIND
        number = _number(words[1] if len(words) > 1 else "")
        for codes, kind in _KINDS:
            if number in codes:
                kinds |= kind
        if number >= _OF_USERS and number != _ENDED:
            kinds |= ErrorKind.DATA
        if not kinds and words:
            for starts, kind in _STATES:
                if words[0].startswith(starts):
                    kinds |= kind
        if not kinds and type(error).__name__ in ("DataError", "IntegrityError"):
            return ErrorKind.DATA
        if not kinds and any("right truncation" in each or each == "HY105" for each in words):
            return ErrorKind.DATA  # pyodbc cannot send the value
        # The driver's own sentence, without an SQLSTATE.
        is_closed = len(words) == 1 and "closed" in words[0] and "connection" in words[0]
        return ErrorKind.LOST if not kinds and is_closed else kinds


def _insert_absent(
    table: sa.Table, columns: Sequence[str], rows: sa.Select[Any], is_there: sa.ColumnElement[bool]
) -> sa.Insert:
    one: sa.ColumnElement[int] = sa.literal_column("1")
    there = sa.select(one).select_from(table).where(is_there).with_hint(table, _KEY_LOCK, "mssql")
    absent = rows.where(~there.correlate_except(table).exists())
    return table.insert().from_select(list(columns), absent, include_defaults=False)


def _number(words: str) -> int:
    """The server's number of an error; 0 if it is not the server's."""
    found = _NUMBER.match(words)
    return 0 if found is None else int(found[1])


def _run(raw: Any, statement: str) -> Any:
    """Run a statement on a driver's connection; returns the first value of its first row, if any."""
    cursor = raw.cursor()
    try:
        cursor.execute(statement)
        row = cursor.fetchone() if cursor.description else None
        return None if row is None else row[0]
    finally:
        cursor.close()


def _leave_snapshot(connection: Any, record: ConnectionPoolEntry) -> None:
    # The level belongs to the session, not to its transaction.
    if record.info.pop(_IS_SNAPSHOT, False) and connection is not None:
        _run(connection, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED")


def _notice_end(context: sa.engine.ExceptionContext) -> None:
    """Some errors roll back everything, and the next statement would begin a transaction of its own."""
    connection = context.connection
    if connection is None or context.is_disconnect or connection.closed or connection.invalidated:
        return
    dialect, raw = MssqlDialect(), connection.connection.dbapi_connection
    is_ours = isinstance(context.original_exception, connection.dialect.loaded_dbapi.Error)
    if is_ours and connection.in_transaction() and dialect.is_transaction_over(raw):
        context.is_disconnect = True
        context.invalidate_pool_on_disconnect = False


def _note_transaction(connection: sa.Connection) -> None:
    # It reads a table, so a transaction begins: a savepoint needs one, and SQLAlchemy would begin two.
    statement = "SELECT CURRENT_TRANSACTION_ID() FROM sys.schemas WHERE schema_id = SCHEMA_ID('sys')"
    connection.info[_TRANSACTION] = int(connection.exec_driver_sql(statement).scalar_one())


def _check_transaction(connection: sa.Connection) -> None:
    connection.exec_driver_sql(
        f"IF CURRENT_TRANSACTION_ID() <> {connection.info[_TRANSACTION]} "
        f"THROW {_ENDED}, 'The transaction has ended before.', 1"
    )
