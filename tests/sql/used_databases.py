"""Databases that one test after the other uses: to create Tidegate's tables costs more than most tests.

Between tests, rows and tables of the last one go. A database that differs from a new one after that is given
to no other test.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import Connection
from sqlalchemy.pool import QueuePool
from tests.sql.support import flights
from tests.support.mariadb import MariadbServer
from tests.support.postgresql import PostgresqlServer

from tidegate.model.errors import TidegateError
from tidegate.sql import Database
from tidegate.sql.core import schema

_EMPTIED: Final = sorted({flights.name, *schema.metadata.tables} - {schema.schema_version.name})
_SHAPES: Final = {
    "postgresql": (
        "SELECT relname::text, relkind::text, attname::text, atttypid::bigint, attnotnull "
        "FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid "
        "WHERE relnamespace = current_schema()::regnamespace AND attnum > 0 "
        "UNION ALL SELECT proname::text, 'function', '', 0, false FROM pg_proc "
        "WHERE pronamespace = current_schema()::regnamespace "
        "UNION ALL SELECT typname::text, 'type', '', 0, false FROM pg_type "
        "WHERE typnamespace = current_schema()::regnamespace AND typtype IN ('d', 'e') "
        "UNION ALL SELECT conname::text, 'constraint', '', 0, false FROM pg_constraint "
        "WHERE connamespace = current_schema()::regnamespace "
        "UNION ALL SELECT version::text, 'version', '', 0, false FROM tidegate_schema_version"
    ),
    "mariadb": (
        "SELECT table_name, 'r', column_name, column_type, is_nullable "
        "FROM information_schema.columns WHERE table_schema = DATABASE() "
        "UNION ALL SELECT table_name, index_name, column_name, seq_in_index, non_unique "
        "FROM information_schema.statistics WHERE table_schema = DATABASE() "
        "UNION ALL SELECT version, 'version', '', 0, 0 FROM tidegate_schema_version"
    ),
}
"""Rows that say what a database has: whose, what ('r': a table), and its column's."""
_COUNTERS: Final = {
    "postgresql": "SELECT setval('tidegate_dead_letter_audit_id_seq', 1, false)",
    "mariadb": "ALTER TABLE tidegate_dead_letter_audit AUTO_INCREMENT = 1",
}


class UsedDatabases:
    """Of each server, those that no test has at the moment, open; and a SQLite file to copy."""

    def __init__(self, folder: Path) -> None:
        self._template = folder / "template.db"
        self._free: dict[str, list[tuple[Database, Shape]]] = {"postgresql": [], "mariadb": []}
        self._lent: dict[str, Database] = {}
        """By their URLs."""

    @contextmanager
    def opened(self, url: str) -> Iterator[Database]:
        """The database of a URL, which has the table ``flights`` and no rows."""
        if (lent := self._lent.get(url)) is not None:
            yield lent
            return
        with Database.open(url) as database:
            database.ensure_table(flights)
            yield database

    def copy_sqlite(self, url: str) -> None:
        """Make the file of a URL."""
        if not self._template.exists():
            with self.opened(f"sqlite:///{self._template}"):
                pass
        shutil.copy(self._template, url.removeprefix("sqlite:///"))

    @contextmanager
    def lent(self, server: PostgresqlServer | MariadbServer) -> Iterator[str]:
        """The URL of a database for a test."""
        kind = "postgresql" if isinstance(server, PostgresqlServer) else "mariadb"
        free = self._free[kind]
        database, shape = free.pop() if free else _created(server)
        url = database.engine().url.set(drivername=kind).render_as_string(hide_password=False)
        before = _parts(database)
        self._lent[url] = database
        yield url
        del self._lent[url]
        if _parts(database) == before and _is_emptied(database, shape):
            free.append((database, shape))
        else:
            database.close()

    def close(self) -> None:
        """Close the connections."""
        for free in self._free.values():
            for database, _ in free:
                database.close()


Shape = frozenset[tuple[object, ...]]


def _created(server: PostgresqlServer | MariadbServer) -> tuple[Database, Shape]:
    database = Database.open(server.create_schema())
    database.ensure_table(flights)
    with database.read() as connection:
        return database, _shape(connection)


def _shape(connection: Connection) -> Shape:
    return frozenset(map(tuple, connection.exec_driver_sql(_SHAPES[connection.dialect.name])))


def _parts(database: Database) -> dict[str, object]:
    """What a test may not change, and how many connections it holds."""
    pools = [engine.pool for engine in (database._engine, database._urgent_engine) if engine is not None]
    held = sum(pool.checkedout() for pool in pools if isinstance(pool, QueuePool))
    return {**vars(database), "_urgent_engine": None, "held": held}


def _is_emptied(database: Database, shape: Shape) -> bool:
    """Undo what a test has done; whether that was all."""
    known = {row[0] for row in shape}
    try:
        with database.writing() as connection, connection.begin():
            found = _shape(connection)
            others = {str(row[0]) for row in found if row[1] == "r"} - known
            for name in others:
                quoted = connection.dialect.identifier_preparer.quote(name)
                connection.exec_driver_sql(f"DROP TABLE IF EXISTS {quoted} CASCADE")
            if (_shape(connection) if others else found) != shape:
                return False
            for name in _EMPTIED:
                connection.exec_driver_sql(f"DELETE FROM {name}")
            connection.exec_driver_sql(_COUNTERS[connection.dialect.name])
    except TidegateError:
        return False
    return True
