"""Distinguishes an outage of what a handler calls from a failing event; limits dead letters per minute.

An event at fault fails alone. During an outage all fail with the same kind of error, so that kind
(``FailurePolicy.outage_errors``) is held against an event only if most others succeed.
Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from tidegate.processor.policies import FailurePolicy

_SHARE: Final = 0.5
"""More failures than this fraction of a batch are an outage (our choice)."""
_IN_A_ROW: Final = 5
"""As many failing events without a success between them are one as well (our choice): each may have waited
for a time-out."""
_WINDOW_S: Final = 60.0


class OutageError(Exception):
    """A call failed because of an outage; the transaction must be rolled back. Users never see it.

    Its cause is the handler's error.
    """


class OutageWatch:
    """Watches the calls of one transaction."""

    def __init__(self, policy: FailurePolicy, event_count: int | None = None) -> None:
        """event_count: of the batch, whose events may be at fault; None: the first failure is an outage."""
        self._policy = policy
        self._failures_max = 0 if event_count is None else int(event_count * _SHARE)
        self._failures = 0
        self._in_a_row = 0

    def failed(self, error: BaseException | None, event_count: int = 1) -> None:
        """Note that a call with so many events failed. Raises OutageError if it was due to an outage."""
        if error is None or not any(isinstance(each, self._policy.outages) for each in _chain(error)):
            return
        if event_count > 1 and self._failures_max:
            return  # the events will be tried alone
        self._failures += 1
        self._in_a_row += 1
        if self._failures > self._failures_max or self._in_a_row >= _IN_A_ROW:
            raise OutageError from error

    def failed_together(self, error: BaseException, event_count: int) -> None:
        """The same for a call whose events are tried alone, and noted, within the handler's call."""
        if event_count > 1:
            self.failed(error, event_count)

    def succeeded(self) -> None:
        """Note that an event was processed."""
        self._in_a_row = 0


class DeadLetterBudget:
    """How many dead letters a partition may still get, in any minute."""

    def __init__(self, per_minute: int | None) -> None:
        """None: no limit."""
        self._per_minute = per_minute
        self._spent: deque[tuple[float, int]] = deque()
        """When (monotonic) and how many."""

    def left(self, now: float) -> int | None:
        """How many; None: no limit."""
        if self._per_minute is None:
            return None
        while self._spent and now - self._spent[0][0] >= _WINDOW_S:
            self._spent.popleft()
        return max(0, self._per_minute - sum(count for _, count in self._spent))

    def spend(self, count: int, now: float) -> None:
        """Note that so many were written."""
        if count and self._per_minute is not None:
            self._spent.append((now, count))

    def wait_s(self, now: float) -> float:
        """Seconds until more may be written, if none may now."""
        return max(0.0, self._spent[0][0] + _WINDOW_S - now) if self._spent else 0.0


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and those that led to it."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
