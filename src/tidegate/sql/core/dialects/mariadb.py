"""MariaDB by PyMySQL: READ COMMITTED, row locks, inserts as text; errors by their codes.

Where it differs from the others: a statement that creates or drops a table commits, so ``make_table`` and
``drop_temporary`` use the temporary tables that do not; UPDATE returns no rows; integers, times and strings
that do not fit are refused only in strict mode, which each connection sets.
"""

from __future__ import annotations

import math
import numbers
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from types import ModuleType
from typing import Any, ClassVar, Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
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
    is_bytes_like,
    new_values,
    shut_down,
)

COLLATION: Final = "utf8mb4_nopad_bin"
"""Of Tidegate's own tables: ``a``, ``A`` and ``a `` differ, as on the other databases."""
_PACKET_BYTES: Final = "tidegate_packet_bytes"
"""In a connection's ``info``: the server's ``max_allowed_packet``."""

_SQL_MODE: Final = (
    "STRICT_ALL_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION,"
    "NO_AUTO_VALUE_ON_ZERO"
)
_BYTES_MAX: Final = {"TINYTEXT": 255, "TINYBLOB": 255, "TEXT": 65_535, "BLOB": 65_535}
"""Of column types without a length (MariaDB documentation, "Data Types")."""
_DATE: Final = re.compile(r"\s*[0-9]{4}([^0-9]|[0-9]{4}([^0-9]|$)|[0-9]{10}([^0-9]|$))")
"""A year of four digits and a separator, or all digits of a date, or of a date and time. Of others MariaDB
makes a date as well: ``10:11:12`` is in 2010, and a number of ten digits may be."""
_TIME: Final = re.compile(r"[^:]*:|\s*[0-9]{6}([^0-9]|$)")
"""With a separator, or with all digits. ``130`` would be 1 minute and 30 seconds."""
_KEEPALIVES: Final = (
    ("TCP_KEEPIDLE", 10),
    ("TCP_KEEPINTVL", 5),
    ("TCP_KEEPCNT", 4),
    ("TCP_USER_TIMEOUT", 30_000),
)
"""In seconds, the last in milliseconds: as for PostgreSQL, a dead server machine is detected within 30 s."""
_SCHEMA_LOCK: Final = "CONCAT('tidegate:', MD5(DATABASE()))"
"""Named locks belong to the whole server."""

_KINDS: Final = (
    (
        {1053, 1152, 1153, 1158, 1159, 1160, 1161, 1927, 2002, 2003, 2006, 2013, 2014, 2045, 2055},
        ErrorKind.LOST,
    ),
    ({1040, 1203, 1205, 1213, 1226, 1317, 1969}, ErrorKind.BUSY),
    ({1213}, ErrorKind.DEADLOCK),
    (
        {
            *(1048, 1062, 1118, 1172, 1216, 1217, 1242, 1264, 1265, 1292, 1300, 1301, 1339, 1364, 1365, 1366),
            *(1406, 1411, 1416, 1441, 1451, 1452, 1526, 1557, 1586, 1644, 1690, 1761, 1762, 4025),
            *(*range(4035, 4041), 4078),
        },
        ErrorKind.DATA,
    ),
    ({1051, 1146}, ErrorKind.NO_TABLE),
    ({1044, 1045, 1142, 1143, 1227, 1290, 1792, 1836}, ErrorKind.NO_RIGHT),
    ({1021, 1114}, ErrorKind.DISK_FULL),
    ({1030, 1194, 1195}, ErrorKind.BROKEN),
    ({1305}, ErrorKind.NO_SAVEPOINT),
)
"""By the error's code (MariaDB documentation, "MariaDB Error Codes"; 2000 to 2099: the driver's own). 1305 is
also a missing function, so only its messages about savepoints count. 1205 is a wait for a lock that took too
long, 1213 a deadlock, 1927 a killed connection, 1644 a trigger's SIGNAL, 4025 a CHECK, 1118 a row too long
for a page, 1526 a value without a partition, 1339 a CASE of a trigger without a branch for it, 1172 more rows
than its SELECT INTO takes, 4035 to 4040 JSON that a generated column cannot read. Not 1139 and 1329: first of
all, a regular expression is broken, and a trigger's FETCH finds an empty table."""


class MariadbDialect(SqlDialect):
    """See the module."""

    name = "mariadb"
    title = "MariaDB"
    driver_modules = ("pymysql",)
    extra = "mariadb"
    url_example = "mariadb://user:password@host:3306/name"
    bulk_form = BulkForm.TEXT
    has_zones = False
    has_binary_lengths = True
    integer_rule = IntegerRule.CHECKED
    time_forms: ClassVar[Mapping[type, re.Pattern[str]]] = {datetime: _DATE, date: _DATE, time: _TIME}
    has_returning = False
    has_transactional_ddl = False
    has_parallel_results = False
    has_index_walks = False
    is_shared_key_refused = False
    is_commit_error_final = False
    time_type = mysql.DATETIME(fsp=6)

    def checked(self, url: sa.URL) -> sa.URL:
        if not url.database:
            raise DatabaseError("The URL names no database.", next_step=f"Write {self.url_example}.")
        return url.set(drivername="mariadb+pymysql")

    def connect_arguments(self, url: sa.URL, *, lock_wait_s: float) -> dict[str, Any]:
        # Whole seconds; 0 would not wait at all. The second one is for a table that another one changes.
        wait_s = max(1, math.ceil(lock_wait_s))
        arguments: dict[str, Any] = {
            # Literals are escaped for this character set and this mode.
            "charset": "utf8mb4",
            "sql_mode": _SQL_MODE,
            "init_command": f"SET time_zone = '+00:00', innodb_lock_wait_timeout = {wait_s}, "
            f"lock_wait_timeout = {wait_s}",
        }
        return arguments if "connect_timeout" in url.query else {**arguments, "connect_timeout": 10}

    def engine_options(self) -> dict[str, Any]:
        import pymysql

        # SQLAlchemy's types find ``Binary`` in the driver's module; this one refuses numbers.
        driver = ModuleType(pymysql.__name__)
        vars(driver).update(vars(pymysql), Binary=_binary)
        return {**super().engine_options(), "module": driver}

    def set_up(self, engine: sa.Engine, *, lock_wait_s: float) -> None:
        sa.event.listen(engine, "connect", _prepare)
        sa.event.listen(engine, "handle_error", _notice_deadlock)

    def abort(self, raw: Any) -> None:
        if raw._sock is not None:
            shut_down(raw._sock.fileno())

    def is_login_refused(self, words: str) -> bool:
        return "Access denied" in words or "Unknown database" in words

    @contextmanager
    def changing_schema(self, connection: sa.Connection) -> Iterator[None]:
        seconds = connection.execute(sa.text("SELECT @@innodb_lock_wait_timeout")).scalar_one()
        statement = f"SELECT GET_LOCK({_SCHEMA_LOCK}, {int(seconds)})"
        if connection.execute(sa.text(statement)).scalar_one() != 1:
            raise DatabaseUnavailableError(
                "Another process has been changing the tables for too long.", next_step="Try again."
            )
        try:
            yield
            # As most of these statements did: the next owner of the lock must see the changes.
            connection.exec_driver_sql("COMMIT")
        finally:
            # The lock belongs to the connection, so a lost one has released it.
            with suppress(sa.exc.SQLAlchemyError):
                connection.execute(sa.text(f"SELECT RELEASE_LOCK({_SCHEMA_LOCK})"))

    def make_table(self, connection: sa.Connection, table: sa.Table, *, like: sa.Table | None = None) -> None:
        # Copied from what the database has, because Python need not know a column's collation.
        quote = connection.dialect.identifier_preparer
        name = quote.format_table(table)
        temporary = "TEMPORARY " if "TEMPORARY" in table._prefixes else ""
        if temporary:
            # A transaction that was rolled back leaves it.
            connection.exec_driver_sql(f"DROP TEMPORARY TABLE IF EXISTS {name}")
        known = {} if like is None else dict(like.columns.items())
        copied = [known[each.key] for each in table.columns if each.key in known]
        own = ", ".join(
            f"{quote.format_column(each)} {each.type.compile(connection.dialect)}"
            for each in table.columns
            if each.key not in known
        )
        statement = f"CREATE {temporary}TABLE {name} "
        statement += f"{f'({own}) ' if own else ''}ENGINE=InnoDB COLLATE={COLLATION}"
        if copied:
            nothing = sa.select(*copied).where(sa.false())
            # Without its other half, columns that must not be NULL must not be so here.
            nulls = sa.select(*(sa.null().label(each.name) for each in copied)).where(sa.false())
            both = nothing.union_all(nulls)
            statement += " " + str(both.compile(connection, compile_kwargs={"literal_binds": True}))
        connection.exec_driver_sql(statement)

    def bytes_max(self, column_type: sa.types.TypeEngine[Any], dialect: sa.Dialect) -> int | None:
        # Its name in SQL, because several types of SQLAlchemy have it; a character set may follow.
        try:
            name = column_type.compile(dialect)
        except sa.exc.CompileError:  # String without a length, or no type: the table was not made from it
            return None
        return _BYTES_MAX.get(name.partition(" ")[0])

    def rename_tables(
        self, connection: sa.Connection, names: Sequence[tuple[str, str]], schema: str | None
    ) -> None:
        # One statement is atomic, even if the server dies (MariaDB documentation, "Atomic DDL", from 10.6).
        quoted = connection.dialect.identifier_preparer
        place = "" if schema is None else f"{quoted.quote_schema(schema)}."
        pairs = [f"{place}{quoted.quote(old)} TO {place}{quoted.quote(new)}" for old, new in names]
        connection.exec_driver_sql(f"RENAME TABLE {', '.join(pairs)}")

    def drop_temporary(self, connection: sa.Connection, table: sa.Table) -> None:
        name = connection.dialect.identifier_preparer.format_table(table)
        connection.exec_driver_sql(f"DROP TEMPORARY TABLE {name}")

    def insert_or_lock(self, table: sa.Table, values: Mapping[str, Any]) -> sa.Executable:
        key = next(iter(table.primary_key))
        return mysql.insert(table).values(**values).on_duplicate_key_update({key.key: key})

    def insert_if_absent(self, table: sa.Table, values: Mapping[str, Any]) -> sa.Insert:
        # From a SELECT, because a subquery in VALUES would wait for the rows that it reads.
        row = sa.select(*(sa.type_coerce(value, table.c[name].type) for name, value in values.items()))
        return table.insert().prefix_with("IGNORE").from_select(list(values), row, include_defaults=False)

    def upsert_values(
        self, table: sa.Table, changes: Callable[[Columns], Mapping[str, sa.ColumnElement[Any]]]
    ) -> Sequence[sa.Executable]:
        insert: Any = mysql.insert(table).values(new_values(table))
        new = insert.inserted
        # Assigned one after the other: what is computed from the row as it was comes first.
        ordered = sorted(changes(new).items(), key=lambda change: change[1] is new[change[0]])
        return [insert.on_duplicate_key_update(ordered)]

    def upsert_statements(self, upsert: Upsert) -> Sequence[sa.Executable]:
        table = upsert.table
        insert: Any = mysql.insert(table)
        insert = insert.from_select([table.columns[key] for key in upsert.columns], upsert.rows)
        new = insert.inserted
        # Any unique key leads here: a row that shares another one than the upsert's is refused, by a value
        # that its column cannot have. (NULL would be 0 in a column that counts.)
        is_same = sa.and_(*(table.columns[key] == new[key] for key in upsert.key))
        guard = table.columns[upsert.key[0]]
        is_number = guard.type._type_affinity is sa.Integer
        impossible = sa.literal_column("99999999999999999999999999") if is_number else sa.null()
        changes: list[tuple[str, Any]] = [(guard.key, sa.case((is_same, guard), else_=impossible))]
        for key in upsert.changed:
            value = new[key]
            if upsert.is_newer is not None:
                value = sa.case((upsert.is_newer(new), value), else_=table.columns[key])
            changes.append((key, value))
        return [insert.on_duplicate_key_update(changes)]

    def now(self, clock: Clock, type_: sa.types.TypeEngine[Any]) -> sa.ColumnElement[Any]:
        return sa.func.utc_timestamp(sa.literal_column("6"), type_=type_)

    def hour_of(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        return sa.func.date_format(column, sa.literal_column("'%Y-%m-%d %H'"))

    def is_beyond(
        self, columns: Sequence[sa.ColumnElement[Any]], place: Sequence[Any], *, is_descending: bool = False
    ) -> sa.ColumnElement[bool]:
        # MariaDB walks no index by a comparison of tuples, but by one of the first column.
        return self.is_beyond_by_column(columns, place, is_descending=is_descending)

    def make_constraints_immediate(self, connection: sa.Connection) -> bool:
        return True  # they always are

    def begin_snapshot(self, connection: sa.Connection) -> None:
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.exec_driver_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")

    def literals(self, values: Sequence[object]) -> list[str]:
        kinds = set(map(type, values))
        if kinds <= {int, type(None)}:
            return ["NULL" if value is None else str(value) for value in values]
        return [_literal(value) for value in values]

    def statement_bytes_max(self, connection: sa.Connection) -> int:
        return int(connection.info[_PACKET_BYTES])

    def kinds_of(self, error: BaseException) -> ErrorKind:
        code = error.args[0] if error.args else None
        kinds = NO_KIND
        if not code and type(error).__name__ == "InterfaceError":
            return ErrorKind.LOST  # its connection is closed
        if code == 1305 and "SAVEPOINT" not in str(error):
            return kinds
        for codes, kind in _KINDS:
            if code in codes:
                kinds |= kind
        if type(error).__name__ in ("DataError", "IntegrityError"):
            kinds |= ErrorKind.DATA
        return kinds


def _binary(value: object) -> bytes:
    """What the driver's own is, but for what has a number: it makes as many zero bytes. Raises TypeError."""
    if isinstance(value, bytes):
        return value
    if not is_bytes_like(value):
        raise TypeError(f"{type(value).__name__} is not bytes")
    # ``bytes`` would take an array without dimensions for a number.
    return memoryview(value).tobytes()  # type: ignore[arg-type]


def _prepare(connection: Any, record: ConnectionPoolEntry) -> None:
    line = connection._sock
    if line.family in (socket.AF_INET, socket.AF_INET6):
        for name, value in _KEEPALIVES:
            if hasattr(socket, name):
                line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    cursor = connection.cursor()
    cursor.execute("SELECT @@max_allowed_packet")
    (record.info[_PACKET_BYTES],) = cursor.fetchone() or (0,)
    cursor.close()
    connection.rollback()


def _notice_deadlock(context: sa.engine.ExceptionContext) -> None:
    """A deadlock rolls back everything, so a savepoint's end would fail for a reason that hides it."""
    connection = context.connection
    if connection is None or context.is_disconnect or connection.closed or connection.invalidated:
        return
    error = context.original_exception
    is_ours = isinstance(error, connection.dialect.loaded_dbapi.Error)
    if (
        is_ours
        and connection.in_nested_transaction()
        and ErrorKind.DEADLOCK in MariadbDialect().kinds_of(error)
    ):
        context.is_disconnect = True
        context.invalidate_pool_on_disconnect = False


_ESCAPES: Final = str.maketrans({"\\": "\\\\", "'": "\\'", "\0": "\\0"})


def _literal(value: object) -> str:
    """A value in SQL. Raises ValueError and TypeError for one that the database has no form of."""
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return f"'{str.__str__(value).translate(_ESCAPES)}'"
    if isinstance(value, float | numbers.Real) and not isinstance(value, numbers.Integral):
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"MariaDB has no {number}")
        text = repr(number)
        return text if "e" in text else f"{text}e0"
    if isinstance(value, numbers.Integral):
        return str(int(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return f"x'{value.hex()}'"
    if isinstance(value, datetime):
        value = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return f"'{value.isoformat(' ')}'"
    if isinstance(value, date | time | Decimal | UUID):
        return f"'{value}'"
    if isinstance(value, timedelta):
        seconds = value // timedelta(seconds=1)
        sign, whole = ("-", -value) if seconds < 0 else ("", value)
        minutes, seconds = divmod(whole // timedelta(seconds=1), 60)
        return f"'{sign}{minutes // 60:02}:{minutes % 60:02}:{seconds:02}.{whole.microseconds:06}'"
    raise TypeError(f"MariaDB cannot store {type(value).__name__}")
