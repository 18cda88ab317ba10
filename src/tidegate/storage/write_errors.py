"""Errors of the operating system: which are temporary (a full disk, too few descriptors, too little memory),
and what to do about them."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Final

from tidegate.model.errors import LogFailedError, LogFullError, ServerBusyError, TidegateError

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
