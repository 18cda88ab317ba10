"""Supervised tasks: every task has an owner that sees it end. Only this module creates asyncio tasks."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Self, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")


CANCELLED_AT_ONCE: Final = 50
"""Tasks that are cancelled in one pass of the event loop: 1 ms (4,500 attaches took 52; our choice)."""


class Cancellations:
    """Cancels tasks, of thousands some in each pass of the event loop, in which each of them ends."""

    def __init__(self) -> None:
        self._tasks: deque[asyncio.Task[Any]] = deque()

    def add(self, task: asyncio.Task[Any]) -> None:
        """Cancel a task soon."""
        self._tasks.append(task)
        if len(self._tasks) == 1:
            asyncio.get_running_loop().call_soon(self._cancel_some)

    def _cancel_some(self) -> None:
        for _ in range(min(CANCELLED_AT_ONCE, len(self._tasks))):
            self._tasks.popleft().cancel()
        if self._tasks:
            asyncio.get_running_loop().call_soon(self._cancel_some)


class TaskOwner:
    """Starts tasks, reports the first that fails, and cancels them all when closed.

    Also an async context manager that closes on exit.
    """

    def __init__(self, name: str, *, on_failure: Callable[[BaseException], None] | None = None) -> None:
        """on_failure: called once, with the first error that ended a task; None: it is only logged."""
        self.name = name
        self.first_failure: BaseException | None = None
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<TaskOwner {self.name} tasks={len(self._tasks)}>"

    @property
    def task_count(self) -> int:
        """Tasks that have not ended."""
        return len(self._tasks)

    def start(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start a coroutine as a task of this owner. Raises RuntimeError after ``close``."""
        if self._is_closed:
            coroutine.close()
            raise RuntimeError(f"The task owner {self.name} is closed.")
        task = asyncio.get_running_loop().create_task(coroutine, name=f"{self.name}: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    async def close(self) -> None:
        """Cancel the running tasks, except the calling one, and wait until they have ended.

        Cancellation: the tasks are still cancelled; only the wait ends.
        """
        self._is_closed = True
        current = asyncio.current_task()
        running = [task for task in self._tasks if task is not current]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None or isinstance(error, (KeyboardInterrupt, SystemExit)):
            return  # with these, asyncio ends the event loop
        if self.first_failure is not None:
            logger.warning("%s: another task failed after the first: %r", task.get_name(), error)
            return
        self.first_failure = error
        if self._on_failure is not None:
            self._on_failure(error)
        else:
            logger.error("%s: task failed", task.get_name(), exc_info=error)
