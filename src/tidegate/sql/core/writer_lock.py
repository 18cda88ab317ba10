"""One writer at a time for a SQLite file: a file lock beside it, taken before ``BEGIN IMMEDIATE``.

SQLite itself sleeps and polls, without a queue: 16 writers took 18.5 s with its busy time-out alone, and 4.9
s with this lock (measured, SQLite 3.40). The lock is advisory and belongs to the open file, so the system
releases it when the process dies.
"""

from __future__ import annotations

import os
import time
import weakref
from pathlib import Path
from typing import Final

from tidegate.files import lock_file, unlock_file
from tidegate.model.errors import DatabaseError, DatabaseUnavailableError

_PAUSE_S_MIN: Final = 0.0005
_PAUSE_S_MAX: Final = 0.002
_PAUSE_S_MAX_URGENT: Final = 0.0001


class WriterLock:
    """The right to write to one SQLite file; a context manager, used once."""

    def __init__(self, database_path: Path, *, wait_s: float, is_urgent: bool = False) -> None:
        """database_path: the database; the lock file is its name with ``-writer`` added.

        wait_s: how long to wait for other writers. is_urgent: go ahead of this process's other writers, and
        poll more often than those of other processes; for short writes that must not be late, such as lease
        renewals.
        """
        self._path = database_path.with_name(database_path.name + "-writer")
        self._wait_s = wait_s
        self._is_urgent = is_urgent
        self._pause_s_max = _PAUSE_S_MAX_URGENT if is_urgent else _PAUSE_S_MAX
        self._descriptor: int | None = None
        self.waited_s = 0.0
        """How long it waited for others, in seconds."""

    def __enter__(self) -> WriterLock:
        """Wait for the lock.

        Raises DatabaseUnavailableError if others held it for ``wait_s``; DatabaseError if the lock file
        cannot be created.
        """
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as exc:
            raise DatabaseError(
                f"The lock file {self._path} of the SQLite database cannot be opened: {exc.strerror}.",
                next_step="The folder of the database must be writable for this user.",
            ) from exc
        # From here on the fork handler knows it, because a child's copy would also hold the lock.
        self._descriptor = descriptor
        _open.add(self)
        try:
            if self._is_urgent:
                _urgent.add(self)
            self._wait(descriptor)
        except BaseException:
            self._close()
            raise
        finally:
            _urgent.discard(self)
        return self

    def _wait(self, descriptor: int) -> None:
        started = time.monotonic()
        deadline = started + self._wait_s
        pause_s = min(_PAUSE_S_MIN, self._pause_s_max)
        while True:
            try:
                if not self._is_urgent and any(other._path == self._path for other in list(_urgent)):
                    raise BlockingIOError
                lock_file(descriptor)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise DatabaseUnavailableError(
                        f"Other writers held the SQLite database {self._path.name.removesuffix('-writer')} "
                        f"for {self._wait_s:g} s; nothing was written.",
                        next_step="Try again; if many processes write at once, PostgreSQL suits them better.",
                    ) from None
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, self._pause_s_max)
            else:
                self.waited_s = time.monotonic() - started
                return

    def release(self) -> None:
        """Release the lock if it is held."""
        if self._descriptor is not None:
            # Closing alone would leave the lock with any copy of the descriptor.
            unlock_file(self._descriptor)
        self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        _open.discard(self)
        if descriptor is not None:
            os.close(descriptor)

    def __exit__(self, *exception: object) -> None:
        self.release()


_open: weakref.WeakSet[WriterLock] = weakref.WeakSet()
"""Locks held or waited for."""
_urgent: set[WriterLock] = set()
"""Urgent locks waited for: this process's other writers let them go first."""


def _let_go_after_fork() -> None:
    """Close a child's copy of its parent's lock file, or the lock would outlive the parent."""
    _urgent.clear()
    for lock in list(_open):
        lock._close()  # without LOCK_UN, which would release the parent's lock


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_after_fork)
