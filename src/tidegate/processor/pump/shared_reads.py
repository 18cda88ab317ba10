"""One answer for many who ask at the same time: sixteen partitions that start together ask the store once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeVar

from tidegate.processor.checkpoint import ProcessorCheckpoint
from tidegate.transport.tasks import TaskOwner

T = TypeVar("T")


class SharedRead(Generic[T]):
    """A question whose answers are shared, never remembered: it was asked for after its asker came."""

    def __init__(self, ask: Callable[[], Awaitable[T]], tasks: TaskOwner, *, name: str) -> None:
        self._ask = ask
        self._tasks = tasks
        self._name = name
        self._gathering: asyncio.Task[T | Exception] | None = None
        """The question that has not been put yet, so that others may join."""

    async def read(self) -> T:
        """The answer. Raises what asking raises. Cancellation: others still get theirs."""
        if self._gathering is None:
            self._gathering = self._tasks.start(self._run(), name=self._name)
        answer = await asyncio.shield(self._gathering)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _run(self) -> T | Exception:
        await asyncio.sleep(0)  # one turn of the loop, in which everybody who starts now joins
        self._gathering = None
        try:
            return await self._ask()
        except Exception as error:  # whatever it is, it belongs to those who asked, not to the task's owner
            return error


CheckpointReads = SharedRead[Mapping[str, ProcessorCheckpoint]]
"""The group's checkpoints by partition id."""
