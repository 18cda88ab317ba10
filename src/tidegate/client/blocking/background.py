"""Runs coroutines for threads without an event loop, on one loop per process, in a daemon thread.

A forked child (Spark's worker daemon forks) gets its own loop, because it lacks the parent's thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
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

    def run(self, start: Callable[[], Coroutine[Any, Any, T]], timeout_s: float | None) -> T:
        """Run a coroutine on the loop; see ``run_blocking``."""
        if threading.current_thread() is self._thread:
            raise InvalidArgumentError(
                "A blocking client was called on its own event loop, and would wait for itself.",
                next_step="In on_error, note what failed, and send it again in another thread.",
            )
        done: Future[T] = Future()
        task: asyncio.Task[T] | None = None

        def begin() -> None:
            nonlocal task
            if done.cancelled():
                return
            try:
                task = self._loop.create_task(start())
            except Exception as error:  # it belongs to the caller
                done.set_exception(error)
            else:
                task.add_done_callback(partial(_hand_on, done))

        def cancel() -> None:
            if task is not None:
                task.cancel()

        try:
            self._loop.call_soon_threadsafe(begin)
            return done.result(timeout_s)
        except TimeoutError as error:
            if done.done():
                raise  # the coroutine's own
            raise OperationTimeoutError(f"The operation did not finish within {timeout_s} s.") from error
        finally:
            if done.cancel():  # an interrupt in this thread must not leave it running
                self._loop.call_soon_threadsafe(cancel)

    def close(self) -> None:
        """Cancel what still runs, and end the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def _hand_on(done: Future[T], task: asyncio.Task[T]) -> None:
    error = None if task.cancelled() else task.exception()
    if done.cancelled():
        return
    if task.cancelled():
        done.cancel()
    elif error is not None:
        done.set_exception(error)
    else:
        done.set_result(task.result())


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


def run_blocking(start: Callable[[], Coroutine[Any, Any, T]], timeout_s: float | None = None) -> T:
    """Run a coroutine on this process's background loop and return its result.

    start: makes the coroutine, on that loop. If Ctrl-C came between its making and its start, it would never
    run, and Python would warn of it.
    timeout_s: then the coroutine is cancelled and OperationTimeoutError raised; None waits forever.
    """
    return _background().run(start, timeout_s)
