"""Shares a read between concurrent callers: 16 partitions that start together read the store once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeVar

from tidegate.processor.checkpoint import ProcessorCheckpoint
from tidegate.processor.raised import failure_of_call
from tidegate.transport.tasks import TaskOwner

T = TypeVar("T")


class SharedRead(Generic[T]):
    """A read whose result concurrent callers share. Never stale: it begins after all of them called."""

    def __init__(self, ask: Callable[[], Awaitable[T]], tasks: TaskOwner, *, name: str) -> None:
        self._ask = ask
        self._tasks = tasks
        self._name = name
        self._gathering: asyncio.Task[T | Exception] | None = None
        """The next read, which has not begun yet and which callers may join."""

    async def read(self) -> T:
        """The result. Raises what the read raises. Cancellation: other callers still get it."""
        if self._gathering is None:
            self._gathering = self._tasks.start(self._run(), name=self._name)
        answer = await asyncio.shield(self._gathering)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _run(self) -> T | Exception:
        await asyncio.sleep(0)  # one turn of the loop, in which other callers join
        self._gathering = None
        try:
            return await self._ask()
        except BaseException as error:  # raised to the callers, not to the task's owner
            return failure_of_call(error)


CheckpointReads = SharedRead[Mapping[str, ProcessorCheckpoint]]
"""The group's checkpoints by partition id."""
