"""Results that anyone may ask for as often as they like, and that cost time on the event loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

WORK_SHARE: Final = 10
"""A result is used for this many times its computing time, so that all who ask take a tenth of the loop."""

T = TypeVar("T")


class Reused(Generic[T]):
    """A result that is soon out of date: that of a millisecond of work is used for 10 ms."""

    def __init__(self, *, monotonic: Callable[[], float] = time.perf_counter) -> None:
        self._monotonic = monotonic
        self._result: T | None = None
        self._until_s = float("-inf")

    def get(self, work: Callable[[], T]) -> T:
        """The last result while it may be used, or that of ``work``, which must not wait.

        Raises what ``work`` raises.
        """
        now_s = self._monotonic()
        if self._result is None or now_s >= self._until_s:
            self._result = work()
            ended_s = self._monotonic()
            self._until_s = ended_s + WORK_SHARE * (ended_s - now_s)
        return self._result
