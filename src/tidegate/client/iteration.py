"""``async for`` over the events that ``receive`` returns in lists."""

from __future__ import annotations

from collections import deque
from typing import Final, Self

from tidegate.client.closing import AsyncClosing
from tidegate.model.events import ReceivedEvent

EVENTS_PER_CALL: Final = 1000
"""Events that ``receive`` returns at most by default (our choice)."""


class EventIteration(AsyncClosing):
    """Yields each further event, until the receiver ends.

    Events that were fetched for a loop which was left, as by ``break``, come next.
    """

    def __init__(self) -> None:
        self._taken: deque[ReceivedEvent] = deque()

    async def _take(self, max_events: int, max_wait_s: float | None) -> list[ReceivedEvent]:
        """As ``receive``, without the events in ``_taken``."""
        raise NotImplementedError

    def _left_over(self, max_events: int) -> list[ReceivedEvent]:
        """Remove and return events that a loop did not reach."""
        return [self._taken.popleft() for _ in range(min(max_events, len(self._taken)))]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedEvent:
        if not self._taken:
            self._taken.extend(await self._take(EVENTS_PER_CALL, None))
        return self._taken.popleft()
