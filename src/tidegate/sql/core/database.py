"""Opens the database with the right settings, migrates its tables, and translates its errors.

SQLite runs in WAL mode with ``synchronous=FULL`` (a commit survives power loss); one writer at a time takes a
file lock before ``BEGIN IMMEDIATE``. Servers run READ COMMITTED, and writers queue at row locks.

A ``Database`` may be used from many threads, and in a forked child, which opens its own connections. A
replaced SQLite file is detected by its inode, so that nothing is written to a deleted file.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import sqlalchemy
from sqlalchemy import Connection, Engine, Table, exc, inspect
from sqlalchemy.engine import URL, make_url
from sqlalchemy.pool import Pool

from tidegate.extras import install_step
from tidegate.model.clock import Clock
from tidegate.model.errors import DatabaseError, DatabaseUnavailableError
from tidegate.sql.core import schema
from tidegate.sql.core.dialects import DIALECTS
from tidegate.sql.core.dialects.base import SqlDialect
from tidegate.sql.core.dialects.sqlite import IS_READER
from tidegate.sql.core.failures import translate
from tidegate.sql.core.writer_lock import WriterLock
from tidegate.transport.clock import SystemClock

logger = logging.getLogger(__name__)

LOCK_WAIT_S: Final = 60.0
"""How long a writer waits for others by default, in seconds (our choice: longer than any batch)."""

_WRITER_LOCK = "tidegate_writer_lock"


@dataclass(frozen=True, slots=True)
class DatabaseDescription:
    """A database as it was found."""

    server: str
    """Its kind and version."""
    tables_version: int
    """0: it has no tables of Tidegate."""
    newest_version: int
    """Of this Tidegate."""
    untried: str | None = None
    """What to know if Tidegate was never run on this kind of database."""


class Database:
    """A SQL database with Tidegate's tables in it. Build one with ``open`` or ``shared``."""

    def __init__(self, url: URL, *, clock: Clock, lock_wait_s: float) -> None:
        self._url = url
        self.dialect: SqlDialect = DIALECTS[url.get_backend_name()]
        """What differs between databases."""
        self.clock: Clock = clock
        """The clock for times in Tidegate's own rows."""
        self._lock_wait_s = lock_wait_s
        self._path = _sqlite_path(url)
        self._lock = threading.RLock()
        self._engine: Engine | None = None
        self._urgent_engine: Engine | None = None
        """On a server: separate connections for urgent work, so that batches cannot use them up."""
        self._process_id = os.getpid()
        self._inode: tuple[int, int] | None = None
        self.writer_wait_s = 0.0
        """How long this process has waited to be SQLite's one writer since it started, in seconds."""

    @classmethod
    def open(
        cls, url: str | URL, *, clock: Clock | None = None, lock_wait_s: float = LOCK_WAIT_S
    ) -> Database:
        """Connect, and create or migrate the ``tidegate_*`` tables.

        url: ``sqlite:////absolute/path.db``, ``sqlite:///relative.db``,
        ``postgresql://user:password@host:port/name``, ``mariadb://user:password@host:port/name`` or
        ``mssql://user:password@host:port/name`` (SQL Server, not run yet: docs/reference/databases.md).
        lock_wait_s: how long a writer waits for others.
        Raises DatabaseError (an unusable URL, a missing driver, tables of a newer Tidegate) and
        DatabaseUnavailableError (no connection); no message contains the password.
        """
        database = cls(_checked_url(url), clock=clock or SystemClock(), lock_wait_s=lock_wait_s)
        database.engine()
        return database

    @classmethod
    def describe(cls, url: str | URL) -> DatabaseDescription:
        """What is at ``url``; nothing is created or migrated. Raises as ``open``."""
        database = cls(_checked_url(url), clock=SystemClock(), lock_wait_s=LOCK_WAIT_S)
        if database._is_new_file():
            raise DatabaseError(
                f"There is no SQLite database {database._path}.",
                next_step="Check the path; the first host or pipeline that uses it creates it.",
            )
        engine = database._new_engine()
        try:
            with engine.connect() as connection:
                connection = connection.execution_options(**{IS_READER: True})
                server = connection.dialect.server_version_info or ()
                return DatabaseDescription(
                    f"{connection.dialect.name} {'.'.join(map(str, server))}",
                    schema.current_version(connection),
                    len(schema.MIGRATIONS),
                    database.dialect.untried,
                )
        except exc.SQLAlchemyError as error:
            raise database._connect_error(error) from error
        finally:
            engine.dispose()

    @classmethod
    def shared(cls, url: str | URL, *, lock_wait_s: float = LOCK_WAIT_S) -> Database:
        """This process's one ``Database`` for ``url``; cheap to call in every task, never closed.

        Raises as ``open``; the next call retries a failed opening.
        """
        key = (absolute_url(url), lock_wait_s)
        with _shared_lock:
            database = _shared.get(key)
            if database is None:
                database = _shared[key] = cls.open(url, lock_wait_s=lock_wait_s)
            return database

    @property
    def url(self) -> str:
        """The URL, with the passwords in it hidden."""
        return shown_url(self._url)

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a SQLite file, whose writers queue in this process and others."""
        return self._path is not None

    @contextmanager
    def read(self, *, is_urgent: bool = False) -> Iterator[Connection]:
        """A transaction that only reads; it never waits for writers.

        is_urgent: see ``writing``. Raises DatabaseError and DatabaseUnavailableError.
        """
        engine = self._engine_for(is_urgent=is_urgent)
        try:
            with engine.connect().execution_options(**{IS_READER: True}) as connection, connection.begin():
                yield connection
        except exc.SQLAlchemyError as error:
            raise translate(error, doing="reading", where=self.url) from error

    @contextmanager
    def writing(self, *, is_urgent: bool = False) -> Iterator[Connection]:
        """A connection whose next transaction may write; on SQLite it holds the writers' lock.

        The caller begins and ends the transaction. is_urgent: for short writes that must not be late, see
        ``WriterLock``; on a server they have their own connections.
        Raises DatabaseError; DatabaseUnavailableError without a connection, or if other writers hold the lock
        for ``lock_wait_s``.
        """
        while True:
            engine = self._engine_for(is_urgent=is_urgent)
            with self._writer_lock(is_urgent=is_urgent) as lock:
                if lock is not None:
                    self.writer_wait_s += lock.waited_s
                if self._is_stale():
                    # The file was replaced while we queued. Preparing the new one needs the lock, so release
                    # it.
                    continue
                try:
                    connection = engine.connect()
                except exc.SQLAlchemyError as error:
                    raise self._connect_error(error) from error
                with connection:
                    if lock is not None:
                        connection.info[_WRITER_LOCK] = lock
                    yield connection
                return

    def abort(self, connection: Connection) -> None:
        """Undo the transaction of ``connection`` from another thread, because its own hangs in a user's code.

        Its writes are undone, its locks released, and it can write no more. The caller must not return the
        connection meanwhile, and must discard it afterwards. May take as long as one statement.
        """
        lock = connection.info.pop(_WRITER_LOCK, None)
        try:
            raw = connection.connection.dbapi_connection
            if raw is not None:
                self.dialect.abort(raw)
        except (OSError, exc.SQLAlchemyError, connection.dialect.loaded_dbapi.Error):
            # The connection is already lost, and so is its transaction.
            logger.debug("The connection of an aborted transaction was already lost.", exc_info=True)
        finally:
            if isinstance(lock, WriterLock):
                lock.release()

    def _writer_lock(self, *, is_urgent: bool = False) -> AbstractContextManager[WriterLock | None]:
        if self._path is None:
            return nullcontext()
        return WriterLock(self._path, wait_s=self._lock_wait_s, is_urgent=is_urgent)

    def ensure_table(self, table: Table) -> None:
        """Create ``table`` unless it exists. Call this once before a run, not per batch.

        Raises DatabaseError if a table of that name exists but lacks some of the columns.
        """
        try:
            with self.writing() as connection, connection.begin(), self.dialect.changing_schema(connection):
                table.create(connection, checkfirst=True)
                present = {
                    column["name"] for column in inspect(connection).get_columns(table.name, table.schema)
                }
        except exc.SQLAlchemyError as error:
            raise translate(error, doing=f"creating the table {table.name}", where=self.url) from error
        missing = [column.name for column in table.columns if column.name not in present]
        if missing:
            raise DatabaseError(
                f"The table {table.name} in {self.url} has no column {', '.join(missing)}.",
                next_step="Add the columns, or give the pipeline another table.",
            )

    def close(self) -> None:
        """Close all pooled connections. The next use connects again."""
        with self._lock:
            self._abandon()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Database {self.url}>"

    def engine(self) -> Engine:
        """SQLAlchemy's engine for this process and this file, created on demand.

        Raises as ``open``.
        """
        with self._lock:
            if self._engine is not None and not self._is_stale():
                return self._engine
            if self._engine is not None:
                self._abandon()
            engine = self._new_engine()
            try:
                self._prepare(engine)
            except BaseException:
                engine.dispose()
                raise
            if self.dialect.untried is not None and self.dialect.name not in _warned:
                _warned.add(self.dialect.name)
                logger.warning("%s %s", self.url, self.dialect.untried)
            self._engine = engine
            self._process_id = os.getpid()
            self._inode = _inode(self._path)
            return engine

    def _engine_for(self, *, is_urgent: bool) -> Engine:
        with self._lock:
            engine = self.engine()
            if not is_urgent or self._path is not None:
                return engine
            if self._urgent_engine is None:
                self._urgent_engine = self._new_engine()
            return self._urgent_engine

    def _is_stale(self) -> bool:
        return self._process_id != os.getpid() or self._inode != _inode(self._path)

    def _abandon(self) -> None:
        is_forked = self._process_id != os.getpid()
        for engine in (self._engine, self._urgent_engine):
            if engine is None:
                continue
            if is_forked:
                # Closing a SQLite connection inherited through a fork can disturb the parent's, so keep it.
                _orphans.append(engine.pool)
            engine.dispose(close=not is_forked)
        self._engine = self._urgent_engine = None

    def _new_engine(self) -> Engine:
        dialect = self.dialect
        try:
            engine = sqlalchemy.create_engine(
                self._url,
                connect_args=dialect.connect_arguments(self._url, lock_wait_s=self._lock_wait_s),
                hide_parameters=True,
                **dialect.engine_options(),
            )
        except ImportError as error:
            if not isinstance(error, ModuleNotFoundError):  # it lacks a library of the system
                step = dialect.driver_step(str(error))
                raise DatabaseError(
                    f"The driver for {self.url} cannot start: {error}.", next_step=step or ""
                ) from error
            raise DatabaseError(
                f"The driver {error.name} for {self.url} is not installed.",
                next_step=install_step(dialect.extra or "sql"),
            ) from error
        except exc.SQLAlchemyError as error:
            raise DatabaseError(f"Invalid database URL {self.url}: {error}.") from error
        dialect.set_up(engine, lock_wait_s=self._lock_wait_s)
        return engine

    def _prepare(self, engine: Engine) -> None:
        """Create or migrate the tables unless they have this version already (checked without a lock)."""
        if self._path is not None and not self._path.parent.is_dir():
            raise DatabaseError(
                f"The folder {self._path.parent} of the SQLite database does not exist.",
                next_step="Create it, or name another path (sqlite:////absolute/path.db has four slashes).",
            )
        try:
            if not self._is_new_file():
                with engine.connect() as connection:
                    connection = connection.execution_options(**{IS_READER: True})
                    if schema.is_current(connection):
                        return
            with (
                self._writer_lock(),
                engine.connect() as connection,
                connection.begin(),
                self.dialect.changing_schema(connection),
            ):
                schema.migrate(connection, now=self.clock.now_utc())
        except exc.SQLAlchemyError as error:
            raise self._connect_error(error) from error

    def _is_new_file(self) -> bool:
        # Two connections that switch to WAL mode together fail immediately, so do it only under the lock.
        return self._path is not None and (not self._path.exists() or self._path.stat().st_size == 0)

    def _connect_error(self, error: exc.SQLAlchemyError) -> DatabaseError:
        words = " ".join(str(getattr(error, "orig", None) or error).split())
        for secret in (self._url.password, *(value for _, value in _secret_parameters(self._url))):
            if secret:
                words = words.replace(str(secret), "***")
        if "not a database" in words:
            return DatabaseError(
                f"The file {self._path} is not a SQLite database.", next_step="Name another path."
            )
        if "malformed" in words:
            return DatabaseError(
                f"The SQLite database {self._path} is damaged: {words}.",
                next_step="Restore it from a backup, or recover it with the sqlite3 tool's .recover.",
            )
        step = self.dialect.driver_step(words)
        if step is not None:
            return DatabaseError(f"The driver for {self.url} is not complete: {words}", next_step=step)
        if self.dialect.is_login_refused(words):
            return DatabaseError(
                f"The database {self.url} refused this user: {words}",
                next_step="Check user, password and database name in the URL.",
            )
        if isinstance(error, exc.OperationalError | exc.InterfaceError):
            return DatabaseUnavailableError(
                f"No connection to the database {self.url}: {words}",
                next_step="Check that it runs, and host, port and path in the URL.",
            )
        return translate(error, doing="opening it", where=self.url)


_shared: dict[tuple[str, float], Database] = {}
_shared_lock = threading.Lock()
_orphans: list[Pool] = []
_warned: set[str] = set()
"""Databases on which Tidegate was not run, and which said so in this process."""


def _reset_after_fork() -> None:
    """Give a forked child fresh locks, because another thread may have held the parent's."""
    global _shared_lock
    _shared_lock = threading.Lock()
    for database in _shared.values():
        database._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def absolute_url(url: str | URL) -> str:
    """The URL with an absolute path, for processes in other directories; contains the password.

    Raises DatabaseError for an unusable URL.
    """
    return _checked_url(url).render_as_string(hide_password=False)


def shown_url(url: str | URL) -> str:
    """The URL for people: without its password, and without those among its parameters."""
    parsed = make_url(url)
    hidden = {name: "..." for name, _ in _secret_parameters(parsed)}
    return parsed.update_query_dict(hidden).render_as_string(hide_password=True)


def _secret_parameters(url: URL) -> list[tuple[str, str]]:
    """``password``, ``sslpassword``, ``PWD``, ``oauth_client_secret``, … of the drivers, each perhaps several
    times."""
    return [
        (name, value)
        for name, values in url.normalized_query.items()
        if any(each in name.lower() for each in ("pass", "pwd", "secret", "token"))
        for value in values
    ]


def database_name(url: str | URL) -> str:
    """Its name on the server, or that of its file without directory and suffix, for people.

    Raises DatabaseError for an unusable URL.
    """
    parsed = _checked_url(url)
    path = _sqlite_path(parsed)
    return (parsed.database if path is None else path.stem) or parsed.get_backend_name()


def sqlite_file(url: str | URL) -> Path | None:
    """The absolute path of a SQLite database, which need not exist; None: another kind of database.

    Raises DatabaseError for an unusable URL.
    """
    return _sqlite_path(_checked_url(url))


def _checked_url(url: str | URL) -> URL:
    try:
        parsed = make_url(url)
    except (exc.ArgumentError, ValueError) as error:
        raise DatabaseError(
            "Invalid database URL.",
            next_step=f"Write {_URLS} (special characters of the password percent-encoded).",
        ) from error
    backend = "postgresql" if parsed.drivername == "postgres" else parsed.get_backend_name()
    dialect = DIALECTS.get(backend)
    if dialect is None:
        raise DatabaseError(f"Tidegate does not support {backend} databases.", next_step=f"Use {_URLS}.")
    return dialect.checked(parsed)


_URLS: Final = " or ".join(each.url_example for each in DIALECTS.values())


def _sqlite_path(url: URL) -> Path | None:
    return Path(str(url.database)) if url.get_backend_name() == "sqlite" else None


def _inode(path: Path | None) -> tuple[int, int] | None:
    if path is None:
        return None
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
