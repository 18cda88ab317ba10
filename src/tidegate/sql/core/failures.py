"""Decides what a database error means: bad data, a lost connection, or something that the user must fix.

Driver and SQLAlchemy errors stop here; the rest of the package raises the model's errors.
"""

from __future__ import annotations

from sqlalchemy import exc

from tidegate.model.errors import DatabaseError, DatabaseUnavailableError
from tidegate.sql.core.dialects import kinds_of
from tidegate.sql.core.dialects.base import ErrorKind

ROW_ERRORS = (exc.StatementError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError)
"""What writing a row was seen to raise; ``is_bad_data`` decides which are the row's fault. RecursionError:
psycopg encodes JSON and arrays by functions that call themselves for each level."""

_ENVIRONMENT = (
    ErrorKind.LOST
    | ErrorKind.BUSY
    | ErrorKind.NO_TABLE
    | ErrorKind.NO_RIGHT
    | ErrorKind.DISK_FULL
    | ErrorKind.BROKEN
)


def is_of(error: BaseException, kind: ErrorKind) -> bool:
    """Whether the database reports (one of) ``kind``."""
    return bool(kinds_of(reason_of(error)) & kind)


def is_connection_lost(error: BaseException) -> bool:
    """Whether the connection is lost, and perhaps an answer with it."""
    return _is_invalidated(error) or is_of(error, ErrorKind.LOST)


def is_bad_data(error: BaseException) -> bool:
    """Whether a row's values are at fault, so that its event becomes a dead letter.

    For errors raised while writing rows; False for a wrong table or a lost connection.
    """
    if isinstance(error, exc.DBAPIError):
        return not _is_invalidated(error) and is_of(error, ErrorKind.DATA)
    # The driver or a column type could not turn a value into SQL, before the database saw it.
    return isinstance(error, ROW_ERRORS)


def is_environment(error: BaseException) -> bool:
    """Whether the database itself is at fault: no connection, lock, space, table or permission.

    For errors of a handler's own statements; any other error is its event's fault.
    """
    return isinstance(error, exc.TimeoutError) or _is_invalidated(error) or is_of(error, _ENVIRONMENT)


def _is_invalidated(error: BaseException) -> bool:
    return isinstance(error, exc.DBAPIError) and error.connection_invalidated


def reason_of(error: BaseException) -> BaseException:
    """The error to show: the driver's own, without SQLAlchemy's statement and parameters."""
    original = getattr(error, "orig", None)
    return original if isinstance(original, BaseException) else error


def translate(error: BaseException, *, doing: str, where: str) -> DatabaseError:
    """The model's error for a database error raised while ``doing`` something in the database ``where``."""
    text = " ".join(str(reason_of(error)).split()).rstrip(".")
    if is_of(error, ErrorKind.DISK_FULL):
        return DatabaseError(
            f"The disk of the database {where} is full: {text}.",
            next_step="Nothing of this batch was written; free some space and start again.",
        )
    if is_of(error, ErrorKind.TOO_LARGE):
        return DatabaseError(
            f"The database {where} ended the session while {doing}: {text}.",
            next_step="Nothing of this batch was written. Process fewer events at a time (max_batch_size, "
            "max_events_per_trigger), or do less in the handler.",
        )
    if is_of(error, ErrorKind.BUSY):
        return DatabaseUnavailableError(
            f"The database {where} was busy while {doing}: {text}.",
            next_step="Nothing was written; try again.",
        )
    if is_connection_lost(error):
        return DatabaseUnavailableError(
            f"The connection to the database {where} was lost while {doing}: {text}.",
            next_step="The transaction is rolled back; try again when the database answers.",
        )
    if is_of(error, ErrorKind.NO_TABLE):
        return DatabaseError(
            f"A table is missing in the database {where} while {doing}: {text}.",
            next_step="Create it, or call Database.ensure_table(table) before the first batch.",
        )
    if is_of(error, ErrorKind.NO_RIGHT):
        return DatabaseError(
            f"This user may not write to the database {where} while {doing}: {text}.",
            next_step="Grant it INSERT, UPDATE and SELECT on the target and the tidegate_* tables.",
        )
    return DatabaseError(f"The database {where} refused while {doing}: {text}.")
