"""PostgreSQL by psycopg 3: READ COMMITTED, row locks, COPY; errors by their SQLSTATE."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Engine, Table, event, func, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import URL
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.types import TypeEngine

from tidegate.model.clock import Clock
from tidegate.sql.core.dialects.base import (
    NO_KIND,
    BulkForm,
    ErrorKind,
    IntegerRule,
    SqlDialect,
    shut_down,
)
from tidegate.sql.core.dialects.on_conflict import OnConflict

_CONNECT_ARGUMENTS: Final = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
"""For libpq, in seconds, the last in milliseconds; the URL's own take precedence. A dead server machine is
detected within 30 s (our choice: a lease) instead of 2 hours (Linux, tcp_keepalive_time)."""
_SERVER_KEEPALIVES: Final = {
    "tcp_keepalives_idle": 10,
    "tcp_keepalives_interval": 5,
    "tcp_keepalives_count": 4,
}
"""The same on the server: a dead client machine's locks are released within 30 s."""
_SCHEMA_LOCK_KEY: Final = 0x7469_6465  # "tide": the advisory lock that serialises migrations

_KINDS: Final = (
    (("08", "57P"), ErrorKind.LOST),
    (("40", "55P03", "53"), ErrorKind.BUSY),
    (("40P01",), ErrorKind.DEADLOCK),
    (("53100",), ErrorKind.DISK_FULL),
    (
        ("20", "21", "22", "23", "38000", "44", "45", "P0", "42622", "42804", "42846", "54000", "54001"),
        ErrorKind.DATA,
    ),
    (("21000",), ErrorKind.SECOND_TIME),
    (("42P01",), ErrorKind.NO_TABLE),
    (("42501",), ErrorKind.NO_RIGHT),
    (("3B001", "25P01"), ErrorKind.NO_SAVEPOINT),
)
"""By the beginning of the SQLSTATE (PostgreSQL 15 documentation, appendix A): 20 a trigger's CASE without a
branch for the value, 21 cardinality, 22 data, 23 integrity, 38000 a function's exception in another language,
44 view check, P0 a trigger's RAISE, ASSERT or STRICT, 42622 a label too long for ltree, 42804/42846 type
mismatch and cast, 54000 a value too long for its index, 54001 JSON too deep for the stack; SQL reserves 45
for users' own errors. 21000: ON CONFLICT DO UPDATE met a row for the second time. 3B001, 25P01: no such
savepoint, no transaction in progress.

Not 42501 of a row-level security policy: a role without any policy gets the same error for every row. Not
2F005: first of all, a trigger lacks its RETURN.

Not XX000, which extensions (PostGIS) and PL/Perl also use for a value: it is PostgreSQL's state of a damaged
index or catalog, which would make a dead letter of every event. Whether other rows are accepted shows nothing
if the batch has one."""

_VALUE_PARSERS: Final = {
    "42601": {
        *("hstore_io.c", "jsonpath_gram.y", "jsonpath_scan.l", "ltree_io.c", "ltxtquery_io.c"),
        *("tsquery.c", "tsvector_parser.c"),
    },
    "XX000": {"hstore_io.c"},  # before PostgreSQL 16
}
"""The server's source files that read a value and report its syntax by a state of statements or of damage.
Not the message, which is in the server's language, and not a place in the statement: PL/pgSQL reports a
SELECT without a destination without one."""


class PostgresqlDialect(OnConflict, SqlDialect):
    """See the module."""

    name = "postgresql"
    title = "PostgreSQL"
    driver_modules = ("psycopg",)
    extra = "postgresql"
    url_example = "postgresql://user:password@host:5432/name"
    bulk_form = BulkForm.COPY
    has_zones = True
    integer_rule = IntegerRule.CONVERTED
    is_shared_key_refused = True
    is_commit_error_final = True

    def insert(self, table: Table) -> Any:
        return postgresql.insert(table)

    def checked(self, url: URL) -> URL:
        return url.set(drivername="postgresql+psycopg")

    def connect_arguments(self, url: URL, *, lock_wait_s: float) -> dict[str, Any]:
        return {name: value for name, value in _CONNECT_ARGUMENTS.items() if name not in url.query}

    def set_up(self, engine: Engine, *, lock_wait_s: float) -> None:
        settings = {"lock_timeout": max(1, round(lock_wait_s * 1000)), **_SERVER_KEEPALIVES}

        def prepare(connection: DBAPIConnection, record: ConnectionPoolEntry) -> None:
            cursor = connection.cursor()
            for name, value in settings.items():
                cursor.execute(f"SET {name} = {value}", ())
            cursor.close()
            connection.commit()

        event.listen(engine, "connect", prepare)

    def abort(self, raw: Any) -> None:
        shut_down(raw.fileno())

    def is_login_refused(self, words: str) -> bool:
        return "password authentication failed" in words or "does not exist" in words

    def changing_schema(self, connection: Connection) -> AbstractContextManager[None]:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _SCHEMA_LOCK_KEY})
        return nullcontext()

    def now(self, clock: Clock, type_: TypeEngine[Any]) -> ColumnElement[Any]:
        # The same in all columns of a statement, unlike clock_timestamp().
        return func.statement_timestamp(type_=type_)

    def hour_of(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return func.date_trunc("hour", column, "UTC")

    def descending(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return column.desc().nulls_last()

    def make_constraints_immediate(self, connection: Connection) -> bool:
        connection.execute(text("SET CONSTRAINTS ALL IMMEDIATE"))
        return True

    def begin_snapshot(self, connection: Connection) -> None:
        connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))

    def kinds_of(self, error: BaseException) -> ErrorKind:
        state = getattr(error, "sqlstate", None)
        kinds = NO_KIND
        if state:
            for starts, kind in _KINDS:
                if state.startswith(starts):
                    kinds |= kind
            if _is_of_value(error, state):
                kinds = ErrorKind.DATA
        elif type(error).__name__ == "OperationalError":
            kinds = ErrorKind.LOST  # psycopg reports a lost connection without SQLSTATE
        elif type(error).__name__ in ("DataError", "ProgrammingError", "NotSupportedError"):
            kinds = ErrorKind.DATA  # the driver could not send a value
        return kinds


def _is_of_value(error: Any, state: str) -> bool:
    return state in _VALUE_PARSERS and error.diag.source_file in _VALUE_PARSERS[state]
