"""Decides what a database error means: bad data, a lost connection, or something that the user must fix.

Driver and SQLAlchemy errors stop here; the rest of the package raises the model's errors.
"""

from __future__ import annotations

import sqlite3

from sqlalchemy import exc

from tidegate.model.errors import DatabaseError, DatabaseUnavailableError

ROW_ERRORS = (exc.StatementError, TypeError, ValueError, ArithmeticError, AttributeError)
"""What writing a row was seen to raise; ``is_bad_data`` decides which are the row's fault."""

_SQLSTATES_LOST = ("08", "57P")
_SQLSTATES_BUSY = ("40", "55P03", "53")
_SQLSTATES_DATA = ("21", "22", "23", "44", "45", "P0001", "42804", "42846", "54000")
# 21 cardinality, 22 data, 23 integrity, 44 view check, P0001 a trigger's RAISE, 42804/42846 type mismatch and
# cast, 54000 a value too long for its index (PostgreSQL 15 documentation, appendix A); SQL reserves 45 for
# users' own errors.

_SQLITE_DATA = ("malformed JSON", "integer overflow")
"""Errors of functions in generated columns, checks and triggers about a value; SQLite calls them
operational."""

_SQLITE_ENVIRONMENT = (
    "database is locked",
    "locking protocol",
    "disk is full",
    "disk I/O error",
    "no such table",
    "readonly database",
    "unable to open",
)


def sqlstate_of(error: BaseException) -> str:
    """The five-character SQLSTATE of a PostgreSQL error; empty if there is none."""
    return getattr(reason_of(error), "sqlstate", None) or ""


def is_deadlock(error: BaseException) -> bool:
    """Whether PostgreSQL aborted a transaction because of a deadlock."""
    return sqlstate_of(error) == "40P01"


def is_connection_lost(error: BaseException) -> bool:
    """Whether the connection is lost, and perhaps an answer with it."""
    if isinstance(error, exc.DBAPIError) and error.connection_invalidated:
        return True
    state = sqlstate_of(error)
    if state:
        return state.startswith(_SQLSTATES_LOST)
    original = reason_of(error)
    # psycopg reports a lost connection as an OperationalError without SQLSTATE.
    return type(original).__module__.startswith("psycopg") and type(original).__name__ == "OperationalError"


def is_bad_data(error: BaseException) -> bool:
    """Whether a row's values are at fault, so that its event becomes a dead letter.

    For errors raised while writing rows; False for a wrong table or a lost connection.
    """
    if isinstance(error, exc.DBAPIError):
        if error.connection_invalidated:
            return False
        state = sqlstate_of(error)
        if state:
            return state.startswith(_SQLSTATES_DATA)
        original = error.orig
        if isinstance(original, sqlite3.Error):
            return _is_bad_sqlite_data(original)
        return type(original).__name__ in ("DataError", "ProgrammingError", "NotSupportedError")
    # The driver or a column type could not turn a value into SQL, before the database saw it.
    return isinstance(error, ROW_ERRORS)


def _is_bad_sqlite_data(error: sqlite3.Error) -> bool:
    if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError):
        return True
    if isinstance(error, sqlite3.OperationalError):
        return str(error) in _SQLITE_DATA
    # For a value of an unknown type, Python 3.11 raises InterfaceError and 3.12 ProgrammingError.
    return isinstance(error, sqlite3.InterfaceError | sqlite3.ProgrammingError) and "binding" in str(error)


def is_environment(error: BaseException) -> bool:
    """Whether the database itself is at fault: no connection, lock, space, table or permission.

    For errors of a handler's own statements; any other error is its event's fault.
    """
    if isinstance(error, exc.TimeoutError) or is_connection_lost(error):
        return True
    state = sqlstate_of(error)
    if state:
        return state.startswith(_SQLSTATES_BUSY) or state in ("42P01", "42501")
    original = reason_of(error)
    if not isinstance(original, sqlite3.OperationalError):
        return False
    text = str(original)
    return any(words in text for words in _SQLITE_ENVIRONMENT)


def reason_of(error: BaseException) -> BaseException:
    """The error to show: the driver's own, without SQLAlchemy's statement and parameters."""
    original = getattr(error, "orig", None)
    return original if isinstance(original, BaseException) else error


def translate(error: BaseException, *, doing: str, where: str) -> DatabaseError:
    """The model's error for a database error raised while ``doing`` something in the database ``where``."""
    text = " ".join(str(reason_of(error)).split()).rstrip(".")
    state = sqlstate_of(error)
    if "disk is full" in text or state == "53100":
        return DatabaseError(
            f"The disk of the database {where} is full: {text}.",
            next_step="Nothing of this batch was written; free some space and start again.",
        )
    # A process that is stopped while writing the WAL's header also blocks readers: after 10 s SQLite reports
    # "locking protocol" (SQLITE_PROTOCOL; seen with a stopped process).
    if state.startswith(_SQLSTATES_BUSY) or "database is locked" in text or "locking protocol" in text:
        return DatabaseUnavailableError(
            f"The database {where} was busy while {doing}: {text}.",
            next_step="Nothing was written; try again.",
        )
    if is_connection_lost(error):
        return DatabaseUnavailableError(
            f"The connection to the database {where} was lost while {doing}: {text}.",
            next_step="The transaction is rolled back; try again when the database answers.",
        )
    if state == "42P01" or "no such table" in text:
        return DatabaseError(
            f"A table is missing in the database {where} while {doing}: {text}.",
            next_step="Create it, or call Database.ensure_table(table) before the first batch.",
        )
    if state == "42501" or "readonly database" in text:
        return DatabaseError(
            f"This user may not write to the database {where} while {doing}: {text}.",
            next_step="Grant it INSERT, UPDATE and SELECT on the target and the tidegate_* tables.",
        )
    return DatabaseError(f"The database {where} refused while {doing}: {text}.")
