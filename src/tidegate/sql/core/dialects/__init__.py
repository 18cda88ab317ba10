"""The databases that Tidegate works with, one module each behind ``SqlDialect``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection, Update

from tidegate.sql.core.dialects.base import NO_KIND, ErrorKind, SqlDialect
from tidegate.sql.core.dialects.mariadb import MariadbDialect
from tidegate.sql.core.dialects.mssql import MssqlDialect
from tidegate.sql.core.dialects.postgresql import PostgresqlDialect
from tidegate.sql.core.dialects.sqlite import SqliteDialect

DIALECTS: Final[dict[str, SqlDialect]] = {
    each.name: each for each in (SqliteDialect(), PostgresqlDialect(), MariadbDialect(), MssqlDialect())
}
"""By SQLAlchemy's name of the database."""
_OF_DRIVER: Final = {module: each for each in DIALECTS.values() for module in each.driver_modules}


def dialect_of(connection: Connection) -> SqlDialect:
    """The dialect of a connection's database."""
    return DIALECTS[connection.dialect.name]


def changed_rows(connection: Connection, statement: Update, parameters: Sequence[dict[str, object]]) -> int:
    """Run a statement with each row of parameters; returns how many rows it changed in all."""
    if len(parameters) > 1 and dialect_of(connection).has_row_counts:
        return connection.execute(statement, parameters).rowcount
    return sum(connection.execute(statement, each).rowcount for each in parameters)


def kinds_of(error: BaseException) -> ErrorKind:
    """What a driver's error means; of no kind if it is not a driver's."""
    dialect = _OF_DRIVER.get(type(error).__module__.partition(".")[0])
    return NO_KIND if dialect is None else dialect.kinds_of(error)
