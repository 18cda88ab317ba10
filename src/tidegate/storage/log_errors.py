"""Errors of a log that every engine raises in the same words."""

from __future__ import annotations

from tidegate.model.errors import ClosedError, TidegateError


def closed_error() -> ClosedError:
    """The error for calls after a log's end."""
    return ClosedError("The partition is closed: its event hub was deleted or the service is stopping.")


def copy_error(error: TidegateError) -> TidegateError:
    """A copy for one of several waiters: a shared error would collect the traceback of each."""
    copy = type(error)(error.message, next_step=error.next_step, retry_after_s=error.retry_after_s)
    copy.__cause__ = error.__cause__
    return copy
