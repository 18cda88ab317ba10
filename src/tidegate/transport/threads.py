"""Blocking calls (external storage, databases) in daemon threads: one that hangs blocks neither the service
nor its shutdown."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

T = TypeVar("T")


class Threads:
    """Runs at most ``count`` calls at a time; others wait."""

    def __init__(self, count: int, *, name: str) -> None:
        self._turns = asyncio.Semaphore(count)
        self._name = name

    async def run(
        self,
        call: Callable[[], T],
        *,
        release: Callable[[T], None] | None = None,
        when_ended: Callable[[], None] = lambda: None,
    ) -> T:
        """Run ``call`` in a thread and return its result.

        when_ended: called on the event loop once the call has ended, or will not begin.
        Cancellation: the call continues and occupies its slot until it ends. Its result is passed to
        ``release``, which must not raise and runs in a thread.
        """
        try:
            future = await self._begin(call)
        except BaseException:
            when_ended()
            raise
        future.add_done_callback(lambda _: when_ended())
        try:
            await asyncio.wait([future])  # cancellation does not reach the call's future
        except asyncio.CancelledError:
            if release is not None:
                future.add_done_callback(partial(self._release, release))
            raise
        return future.result()

    async def run_whole(self, call: Callable[[], T]) -> T:
        """As ``run``. Cancellation: a call that has begun is waited for first."""
        future = await self._begin(call)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise

    def leave(self, call: Callable[[], None]) -> None:
        """Run ``call`` immediately, without a slot and without waiting for it; it must not raise."""
        threading.Thread(target=call, name=self._name, daemon=True).start()

    async def _begin(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Wait for a slot, which the end of the call frees."""
        await self._turns.acquire()
        try:
            future = self._start(call)
        except BaseException:
            self._turns.release()
            raise
        future.add_done_callback(self._note_end)
        return future

    def _release(self, release: Callable[[T], None], future: asyncio.Future[T]) -> None:
        if not future.cancelled() and future.exception() is None:
            self.leave(partial(release, future.result()))

    def _note_end(self, future: asyncio.Future[T]) -> None:
        self._turns.release()
        if not future.cancelled():
            future.exception()  # read it, so that asyncio does not report it as unretrieved

    def _start(self, call: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def set_outcome(result: T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]  # None only where T is

        def work() -> None:
            result, error = None, None
            try:
                result = call()
            except BaseException as caught:  # raised to the waiting caller
                error = caught
            with suppress(RuntimeError):  # the loop is closed: no caller waits
                loop.call_soon_threadsafe(set_outcome, result, error)

        threading.Thread(target=work, name=self._name, daemon=True).start()
        return future
