"""Errors of the operating system: which are temporary (a full disk, too few descriptors, too little memory),
and what to do about them. And a little space for what frees space: see ``Reserve``."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from tidegate.model.errors import LogFailedError, LogFullError, ServerBusyError, TidegateError
from tidegate.storage.files import Files, WritableFile

T = TypeVar("T")

_FULL_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_SHORTAGE_ERRORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_RETRY_AFTER_S: Final = 1.0
"""Our choice: descriptors become free as soon as connections end."""

_logger = logging.getLogger(__name__)


def is_full_error(error: OSError) -> bool:
    """Whether the write failed for lack of space: disk full, over quota, or beyond the file size limit."""
    return error.errno in _FULL_ERRORS


def is_shortage_error(error: OSError) -> bool:
    """Whether a call failed for lack of file descriptors or memory, which says nothing about the disk.

    Not for a failed sync: data that the system could not write then may be lost.
    """
    return error.errno in _SHORTAGE_ERRORS


def shortage_error(error: OSError, what: str) -> ServerBusyError:
    """The error for ``what`` could not be started for such a shortage. Logs it as well."""
    busy = ServerBusyError(
        f"The service cannot {what} now: {error.strerror or error}.",
        next_step="Try again. If the problem persists, allow the service to open more files (ulimit -n).",
        retry_after_s=_RETRY_AFTER_S,
    )
    _logger.warning("%s", busy)
    return busy


def step_error(error: OSError, step: str, path: Path) -> TidegateError:
    """The error for a step outside a round that failed: it names the file, the step and a remedy."""
    path = Path(os.fsdecode(error.filename)) if error.filename else path
    if is_full_error(error):
        return LogFullError(
            f"Cannot {step}: the disk of {path} is full.", next_step="Free disk space and try again."
        )
    if is_shortage_error(error):
        return shortage_error(error, step)
    remedy = "Check the disk, and try again."
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        remedy = "Give the service's user write access to it."
    elif isinstance(error, FileExistsError | NotADirectoryError | IsADirectoryError):
        remedy = "Move that file away, or use another data directory."
    return LogFailedError(f"Cannot {step}: {path}: {error.strerror or error}.", next_step=remedy)


class Reserve:
    """A file that holds back a little space of the disk. Any thread may call it.

    What deletes events first writes that it does, so on a full disk nothing could be deleted. The space is
    lent to deletions and changes of settings that find the disk full. Events and checkpoints are stored only
    while it is whole: they would take it otherwise.
    """

    def __init__(self, files: Files, path: Path, size: int) -> None:
        """size: in bytes. Nothing is taken before ``is_whole``."""
        self._files = files
        self._path = path
        self._size = size
        self._file: WritableFile | None = None
        self._lock = threading.Lock()
        self._borrowers = 0
        self._is_whole = False
        self._is_reported = False

    def is_whole(self) -> bool:
        """Whether all of it is there; takes the space if it is free."""
        if not self._is_whole:
            with self._lock:
                if self._borrowers == 0:
                    self._take()
        return self._is_whole

    def lend(self, work: Callable[[], T]) -> T:
        """The result of ``work``, which is done again with this space if it raises LogFullError."""
        try:
            return work()
        except LogFullError:
            with self._lock:
                self._borrowers += 1
                self._is_whole = False
                self._give()
        try:
            return work()
        finally:
            with self._lock:
                self._borrowers -= 1
                if self._borrowers == 0:
                    self._take()

    def close(self) -> None:
        """Release the file; the space stays taken."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _take(self) -> None:
        try:
            if self._file is None:
                is_there = self._files.exists(self._path)
                self._file = (self._files.open_writable if is_there else self._files.create)(self._path)
            self._file.allocate(self._size)
            self._is_whole, self._is_reported = True, False
        except OSError as error:
            if not self._is_reported:
                self._is_reported = True
                _logger.warning(
                    "No space for %s (%s): until there is, no events and checkpoints are stored.",
                    self._path,
                    error,
                )
            self._give()

    def _give(self) -> None:
        try:
            if self._file is not None:
                self._file.truncate(0)
        except OSError as error:
            _logger.warning("%s keeps its space: %s.", self._path, error)
