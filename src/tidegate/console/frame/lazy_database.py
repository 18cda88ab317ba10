"""The service's databases: opened at first use, queried in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from tidegate.model.errors import ClosedError, DatabaseUnavailableError
from tidegate.sql import Database
from tidegate.sql.core.database import absolute_url, database_name, sqlite_file
from tidegate.transport.threads import Threads

T = TypeVar("T")

_THREADS: Final = 4
"""Concurrent queries; others wait (our choice: enough for a few users)."""

_COUNTING_THREADS: Final = 2
"""Concurrent sums over all dead letters, each of which may take seconds."""

_MEASURING_THREADS: Final = 2
"""Concurrent reads for metrics: of groups, and of dead letters."""

_CHANGING_THREADS: Final = 4
"""Concurrent changes, which wait for locks of hosts; pages are read meanwhile."""

_LOCK_WAIT_S: Final = 20.0
"""Seconds that a change waits for other writers before it fails (our choice: a user is waiting)."""


def named_databases(urls: Sequence[str]) -> dict[str, LazyDatabase]:
    """The databases in the settings by their names on the server, or of their files: with a number if another
    has the same."""
    found: dict[str, LazyDatabase] = {}
    for url in dict.fromkeys(urls):
        name, count = database_name(url), 1
        while name in found:
            count += 1
            name = f"{database_name(url)}-{count}"
        found[name] = LazyDatabase(url)
    return found


class LazyDatabase:
    """A database in the settings, opened at first use; a failure is retried at the next use."""

    def __init__(self, url: str, *, may_create: bool = False) -> None:
        """may_create: also create an SQLite database; else, one that is not there yet is an error."""
        self._may_create = may_create
        self._url = absolute_url(url)
        self._file = sqlite_file(url)
        self._lock = threading.Lock()
        """Held while the database is opened. Only for threads, because connecting may take long."""
        self._database: Database | None = None
        self._is_closed = False
        self._threads = Threads(_THREADS, name="tidegate-console-sql")
        self._counting_threads = Threads(_COUNTING_THREADS, name="tidegate-console-sums")
        self._measuring_threads = Threads(_MEASURING_THREADS, name="tidegate-console-metrics")
        self._changing_threads = Threads(_CHANGING_THREADS, name="tidegate-console-changes")
        self._closing_thread = Threads(1, name="tidegate-console-close")
        """Separate, because abandoned queries may still occupy the others."""

    @property
    def secret_url(self) -> str:
        """The URL with its password, for a process that needs it."""
        return self._url

    async def ask(
        self, question: Callable[[Database], T], *, when_ended: Callable[[], None] = lambda: None
    ) -> T:
        """Run ``question`` in a thread. Raises what it raises, and what opening the database raises.

        when_ended: as of ``Threads.run``: a cancelled question occupies its thread until it ends.
        """
        return await self._threads.run(lambda: question(self._open()), when_ended=when_ended)

    async def count(self, question: Callable[[Database], T]) -> T:
        """As ``ask``, in other threads, for slow queries."""
        return await self._counting_threads.run(lambda: question(self._open()))

    async def measure(self, question: Callable[[Database], T]) -> T:
        """As ``ask``, in other threads, for metrics, which no page's queries and sums hold up."""
        return await self._measuring_threads.run(lambda: question(self._open()))

    async def change(self, deed: Callable[[Database], T]) -> T:
        """As ``ask``, in other threads. Cancellation: waits until the deed has ended."""
        return await self._changing_threads.run_whole(lambda: deed(self._open()))

    async def close(self) -> None:
        """Close the connections, after any opening ends; later queries raise ClosedError."""
        self._is_closed = True
        await self._closing_thread.run_whole(self._close)

    def _close(self) -> None:
        with self._lock:
            database, self._database = self._database, None
        if database is not None:
            database.close()

    def _open(self) -> Database:
        with self._lock:
            if self._is_closed:
                raise ClosedError("The database is closed: the service is stopping.")
            if self._database is None:
                if self._file is not None and not self._may_create and not self._file.exists():
                    raise DatabaseUnavailableError(
                        f"There is no SQLite database {self._file} yet.",
                        next_step="It comes with the first host or pipeline that writes to it.",
                    )
                self._database = Database.open(self._url, lock_wait_s=_LOCK_WAIT_S)
            return self._database
