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
    """The codes that scripts may rely on. A command terminated by signal N exits with 128 + N, as in
    shells."""

    DONE = 0
    FAILED = 1
    """The operation failed."""
    USAGE = 2
    """Invalid usage: an unknown option, an invalid value."""
    UNREACHABLE = 3
    """The service was unreachable or denied access."""
    CHECK_FAILED = 4
    """A check failed."""


class CheckFailedError(TidegateError):
    """A command that checks something found a problem."""


class NoConnectionError(TidegateError):
    """No option, variable or profile names a service."""


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


def exit_code_of(error: Exception) -> ExitCode:
    """The exit code of a command that fails with ``error``."""
    return next((code for error_type, code in _CODES if isinstance(error, error_type)), ExitCode.FAILED)
