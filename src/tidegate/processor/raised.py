"""What a call of a user's code raises: whether that is the code's own failure, as an Exception is.

Not every such error derives from Exception. Libraries in Rust (polars, tokenizers) raise pyo3's
PanicException, task groups raise BaseExceptionGroup, and argparse raises SystemExit for an invalid argument.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from traceback import walk_tb
from typing import Final

from tidegate.model.errors import TidegateError, text_of

_INTERRUPTIONS: Final = (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit)


def is_of_call(error: BaseException) -> bool:
    """Whether ``error`` is the failure of the call that raised it, and not the end of a task or the program.

    A SystemExit is such a failure: one event must not end a host with all its partitions. Only one that a
    signal handler of the program raised, wherever it interrupted the main thread, ends the program.
    """
    if isinstance(error, SystemExit):
        return not _is_of_signal(error)
    return not isinstance(error, _INTERRUPTIONS)


def as_exception(error: BaseException) -> Exception:
    """``error`` for reports and ``process_error``: as a TidegateError's cause if it is not an Exception."""
    if isinstance(error, Exception):
        return error
    described = TidegateError(
        f"A call raised {type(error).__name__}, which does not derive from Exception: {text_of(error)}."
    )
    described.__cause__ = error
    return described


def failure_of_call(error: BaseException) -> Exception:
    """``as_exception(error)`` if it is the call's failure; raises it again if it is not."""
    if not is_of_call(error):
        raise error
    return as_exception(error)


def _is_of_signal(error: SystemExit) -> bool:
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = [code for handler in handlers if (code := getattr(handler, "__code__", None)) is not None]
    return any(frame.f_code in codes for frame, _ in walk_tb(error.__traceback__))
