"""What event hubs share of the service: whatever one hub's clients take, others find some left."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

K = TypeVar("K")


def share_left(event_hub: str, holders: Iterable[tuple[str, int]], whole: int) -> int:
    """How much an event hub may take now: so that it never has more than it leaves. 0 or less: nothing.

    holders: who has how much; a hub may be among them often. One hub gets half of the whole, a second one
    half of the rest, and so on.
    """
    own = taken = 0
    for name, amount in holders:
        taken += amount
        own += amount if name.lower() == event_hub.lower() else 0
    return whole - taken - own


def oldest_of_most(hubs: Mapping[K, str], *, newcomer: str) -> K:
    """Which of the things kept, by event hub and oldest first, makes room for a newcomer's: the oldest of the
    hub that has most."""
    counts = Counter(hub.lower() for hub in hubs.values())
    if newcomer.lower() in counts:
        counts[newcomer.lower()] += 1
    ((most, _),) = counts.most_common(1)
    return next(each for each, hub in hubs.items() if hub.lower() == most)


class SharedPlaces:
    """Places for work that takes much memory: hubs take turns, and none has more places than it leaves."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._taken: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """The waiting work of each hub, oldest first; the first hub is next."""

    @asynccontextmanager
    async def of(self, event_hub: str) -> AsyncIterator[None]:
        """Wait for a place, and have it within the block. Cancellation: the others move up."""
        hub = event_hub.lower()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(hub, deque()).append(turn)
        self._give()
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled():
                self._taken[hub] -= 1
                self._taken += Counter()  # without those at zero
            else:
                self._forget(hub, turn)
            self._give()

    def _give(self) -> None:
        """Give free places to the hubs that are next, which then are last."""
        while (hub := self._next()) is not None:
            waiting = self._waiting.pop(hub)
            turn = waiting.popleft()
            if waiting:
                self._waiting[hub] = waiting
            if not turn.cancelled():
                self._taken[hub] += 1
                turn.set_result(None)

    def _next(self) -> str | None:
        taken = self._taken.items()
        return next((hub for hub in self._waiting if share_left(hub, taken, self._count) > 0), None)

    def _forget(self, hub: str, turn: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(hub, ())
        if turn in waiting:
            self._waiting[hub].remove(turn)
            if not self._waiting[hub]:
                del self._waiting[hub]
