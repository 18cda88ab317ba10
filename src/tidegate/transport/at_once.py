"""Coroutines that mostly need not wait: their results without a task, if they are there at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

T = TypeVar("T")


def at_once(work: Coroutine[Any, Any, T]) -> T | Awaitable[T]:
    """Run ``work`` until it waits for the first time.

    Returns its result if it never waits, else an awaitable of it, to be awaited in a task. Raises what it
    raises before it waits. Until then it runs in no task: it must begin neither a time-out nor a task group.
    """
    try:
        awaited = work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    return _Rest(work, awaited)


class _Rest(Generic[T]):
    """What is left of a coroutine that waits for ``awaited``."""

    def __init__(self, work: Coroutine[Any, Any, T], awaited: object) -> None:
        self._work = work
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, T]:
        return run_on(self._work, self._awaited)


def run_on(
    work: Coroutine[Any, Any, T] | Generator[Any, Any, T],
    awaited: object,
    step: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Generator[Any, Any, T]:
    """What is left of ``work``, which waits for ``awaited``. step: gives a block around each of its steps."""
    try:
        while True:
            try:
                answer = yield awaited
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:
                with step():
                    awaited = work.throw(error)
            else:
                with step():
                    awaited = work.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result
