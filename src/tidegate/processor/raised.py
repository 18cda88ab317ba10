"""What a call of a user's code raises: whether that is the code's own failure, as an Exception is.

Not every such error derives from Exception. Libraries in Rust (polars, tokenizers) raise pyo3's
PanicException, task groups raise BaseExceptionGroup, and argparse raises SystemExit for an invalid argument.
"""

from __future__ import annotations

import asyncio
import threading
from traceback import walk_tb
from typing import Final

from tidegate.model.errors import TidegateError, text_of

_INTERRUPTIONS: Final = (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit)
_USAGE_EXITS: Final = (("argparse", "exit"), ("click.core", "main"))
"""The functions in which argparse and click exit for invalid arguments."""
_USAGE_CODE: Final = 2


def is_of_call(error: BaseException) -> bool:
    """Whether ``error`` is the failure of the call that raised it, and not the end of a task or the program.

    A group is an end if any error in it is. A SystemExit of the main thread is one, as it may be a signal
    handler's, unless argparse or click raised it for invalid arguments; one of another thread ends nothing.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(is_of_call(each) for each in error.exceptions)
    if isinstance(error, SystemExit):
        return threading.current_thread() is not threading.main_thread() or _is_harmless(error)
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


def _is_harmless(error: SystemExit) -> bool:
    """Whether it is for invalid arguments, or came from a thread of an executor (``asyncio.to_thread``)."""
    functions = [
        (frame.f_globals.get("__name__"), frame.f_code.co_name) for frame, _ in walk_tb(error.__traceback__)
    ]
    if ("concurrent.futures.thread", "run") in functions:
        return True
    return error.code == _USAGE_CODE and bool(functions) and functions[-1] in _USAGE_EXITS
