"""Long work on the event loop, in the turns of the address that causes it, so that others do not wait longer.

A thread would not help: such work holds the interpreter's lock, and each turn of the event loop would wait 5
ms for it (``sys.getswitchinterval``).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Final, Generic, TypeVar
from weakref import WeakValueDictionary

from tidegate.transport.memory import MemoryBudget
from tidegate.transport.turns import Share, Turns

T = TypeVar("T")

_VISITED_AT_ONCE: Final = 200
"""Our choice: a connection or a session takes some microseconds."""


class Visits(Generic[T]):
    """Calls a function with each of many, some in each pass of the event loop."""

    def __init__(self, find_all: Callable[[], Iterable[T]], visit: Callable[[T], object]) -> None:
        """visit: must not raise; may be called with one that was found and has gone since."""
        self._find_all = find_all
        self._visit = visit
        self._waiting: list[T] = []
        self._is_started_again = False

    def start(self) -> None:
        """Visit all that there are now: some at once. While a round is under way, another one follows it, so
        that frequent starts leave nothing unvisited."""
        if self._waiting:
            self._is_started_again = True
        else:
            self._waiting = list(self._find_all())
            self._work()

    def _work(self) -> None:
        waiting = self._waiting
        visited = waiting[-_VISITED_AT_ONCE:]
        del waiting[-_VISITED_AT_ONCE:]
        if not waiting and self._is_started_again:
            self._is_started_again = False
            self._waiting = list(self._find_all())
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._work)
        for each in visited:
            self._visit(each)


class SlicedWork:
    """Consumes iterators, a slice of each at a time. A short one does not wait for the end of a long one, and
    an address that causes much of such work waits for the others.
    """

    def __init__(self, turns: Turns | None = None, budget: MemoryBudget | None = None) -> None:
        """turns: None does all work immediately. budget: counts large results, as who asks for them does."""
        self._turns = turns
        self.budget = budget or MemoryBudget(sys.maxsize)
        self._locks: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    def alone(self, key: Hashable) -> asyncio.Lock:
        """For work whose result is large: of those that ask with one key, one holds a result at a time."""
        return self._locks.setdefault(key, asyncio.Lock())

    async def collect(self, items: Iterator[T | None], *, address: object = None) -> list[T]:
        """All items of an iterator but None, which is a step without one. Each step should be short; a slice
        runs without interruption. address: as of ``Share.join``, of the client that caused the work.

        Raises what ``items`` raises. Cancellation: ``items`` is not advanced further.
        """
        found: list[T] = []
        failures: list[Exception] = []
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def work() -> bool:
            if done.done():  # cancelled; the caller's task has not run since
                return False
            try:
                for item in items:
                    if item is not None:
                        found.append(item)
                    if share.is_time_over:
                        return True
            except Exception as error:  # any error belongs to the caller
                failures.append(error)
            done.set_result(None)
            return False

        share = Share(self._turns, work)
        share.join(address)
        share.serve()
        try:
            await done
        finally:
            share.close()
        if failures:
            # Nothing else may refer to it: its traceback refers to this frame and to what ``items`` held, and
            # a cycle would keep that until a garbage collection.
            raise failures.pop()
        return found
