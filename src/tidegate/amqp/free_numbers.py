"""Allocates channels and handles without a search."""

from __future__ import annotations

from heapq import heappop, heappush


class FreeNumbers:
    """Allocates the lowest free number from 0 on, in time logarithmic in the numbers given back."""

    __slots__ = ("_given_back", "_next")

    def __init__(self) -> None:
        self._next = 0  # this number and higher ones were never allocated
        self._given_back: list[int] = []  # a heap of lower ones

    def take(self, highest: int) -> int | None:
        """Allocate the lowest free number; None if it is above ``highest``."""
        lowest = self._given_back[0] if self._given_back else self._next
        if lowest > highest:
            return None
        if self._given_back:
            return heappop(self._given_back)
        self._next += 1
        return lowest

    def give_back(self, number: int) -> None:
        heappush(self._given_back, number)
