"""Channels and handles: which numbers of a connection or session are free, without a search."""

from __future__ import annotations

from heapq import heappop, heappush


class FreeNumbers:
    """Gives the lowest free number from 0 on; each call takes time by the logarithm of those given back."""

    __slots__ = ("_given_back", "_next")

    def __init__(self) -> None:
        self._next = 0  # neither this number nor a higher one was ever taken
        self._given_back: list[int] = []  # a heap of lower ones

    def take(self, highest: int) -> int | None:
        """The lowest free number, which is taken then; None where it is above ``highest``."""
        lowest = self._given_back[0] if self._given_back else self._next
        if lowest > highest:
            return None
        if self._given_back:
            return heappop(self._given_back)
        self._next += 1
        return lowest

    def give_back(self, number: int) -> None:
        """Free a number that was taken."""
        heappush(self._given_back, number)
