"""Runs coroutines for threads without an event loop, on one loop per process, in a daemon thread.

A forked child (Spark's worker daemon forks) gets its own loop, because it lacks the parent's thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tidegate.model.errors import InvalidArgumentError, OperationTimeoutError

T = TypeVar("T")


class BackgroundLoop:
    """An event loop in a daemon thread of this process."""

    def __init__(
        self, name: str, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    ) -> None:
        """name: of the thread. loop_factory: None is asyncio's own."""
        started = threading.Event()

        def serve() -> None:
            with asyncio.Runner(loop_factory=loop_factory) as runner:
                self._loop = runner.get_loop()
                started.set()
                self._loop.run_forever()

        self._thread = threading.Thread(target=serve, name=name, daemon=True)
        self._thread.start()
        started.wait()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None) -> T:
        """Run a coroutine on the loop; see ``run_blocking``."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise InvalidArgumentError(
                "A blocking client was called on its own event loop, and would wait for itself.",
                next_step="In on_error, note what failed, and send it again in another thread.",
            )
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout_s)
        except TimeoutError as error:
            if future.done():
                raise  # the coroutine's own
            raise OperationTimeoutError(f"The operation did not finish within {timeout_s} s.") from error
        finally:
            future.cancel()  # an interrupt in this thread must not leave it running

    def close(self) -> None:
        """Cancel what still runs, and end the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


_current: BackgroundLoop | None = None
_lock = threading.Lock()


def _forget_inherited() -> None:
    """In a forked child: drop the loop and the lock, whose threads do not exist there."""
    global _current, _lock
    _current = None
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_inherited)


def _background() -> BackgroundLoop:
    """The loop of this process, started when first used."""
    global _current
    with _lock:
        if _current is None:
            _current = BackgroundLoop("tidegate-client")
    return _current


def run_blocking(coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
    """Run a coroutine on this process's background loop and return its result.

    timeout_s: then the coroutine is cancelled and OperationTimeoutError raised; None waits forever.
    """
    return _background().run(coroutine, timeout_s)
