"""Runs coroutines for threads without an event loop, on one loop per process, in a daemon thread.

A forked child (Spark's worker daemon forks) gets its own loop, because it lacks the parent's thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from tidegate.model.errors import OperationTimeoutError

T = TypeVar("T")


class _BackgroundLoop:
    """An event loop in a daemon thread of this process."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="tidegate-client", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None) -> T:
        assert threading.current_thread() is not self._thread, "a coroutine cannot block its own loop"
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result(timeout_s)
        except TimeoutError as error:
            if future.done():
                raise  # the coroutine's own
            raise OperationTimeoutError(f"The operation did not finish within {timeout_s} s.") from error
        finally:
            future.cancel()  # an interrupt in this thread must not leave it running


_current: _BackgroundLoop | None = None
_lock = threading.Lock()


def _forget_inherited() -> None:
    """In a forked child: drop the loop and the lock, whose threads do not exist there."""
    global _current, _lock
    _current = None
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_inherited)


def _background() -> _BackgroundLoop:
    """The loop of this process, started when first used."""
    global _current
    with _lock:
        if _current is None:
            _current = _BackgroundLoop()
    return _current


def run_blocking(coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
    """Run a coroutine on this process's background loop and return its result.

    timeout_s: then the coroutine is cancelled and OperationTimeoutError raised; None waits forever.
    """
    return _background().run(coroutine, timeout_s)
