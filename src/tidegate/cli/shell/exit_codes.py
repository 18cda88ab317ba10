"""What the exit code of a command means, and which error becomes which code."""

from __future__ import annotations

from enum import IntEnum

from tidegate.model.errors import (
    BrokenError,
    DatabaseUnavailableError,
    InvalidArgumentError,
    LogCorruptError,
    OperationTimeoutError,
    TidegateError,
    UnauthorizedError,
)


class ExitCode(IntEnum):
    """The codes that scripts may rely on. A command ended by a signal gives 128 + its number, as in
    shells."""

    DONE = 0
    FAILED = 1
    """The operation failed."""
    USAGE = 2
    """The words are off: an unknown option, a value that cannot be meant."""
    UNREACHABLE = 3
    """It could not reach the service, or was not let in."""
    CHECK_FAILED = 4
    """A check found something wrong."""


class CheckFailedError(TidegateError):
    """A command whose work is to check found that something does not hold."""


class NoConnectionError(TidegateError):
    """Nothing says where the service is."""


_CODES: tuple[tuple[type[TidegateError], ExitCode], ...] = (
    (CheckFailedError, ExitCode.CHECK_FAILED),
    (LogCorruptError, ExitCode.CHECK_FAILED),
    (NoConnectionError, ExitCode.UNREACHABLE),
    (UnauthorizedError, ExitCode.UNREACHABLE),
    (BrokenError, ExitCode.UNREACHABLE),
    (DatabaseUnavailableError, ExitCode.UNREACHABLE),
    (OperationTimeoutError, ExitCode.UNREACHABLE),
    (InvalidArgumentError, ExitCode.USAGE),
)


def exit_code_of(error: TidegateError) -> ExitCode:
    """The exit code that a command ends with when ``error`` reaches it."""
    for error_type, code in _CODES:
        if isinstance(error, error_type):
            return code
    return ExitCode.FAILED
