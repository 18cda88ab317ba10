"""The time that retention goes by: the wall clock, unless it has just been set ahead.

A wall clock that is days ahead at one look would remove everything. So a jump ahead, by the monotonic clock,
counts only after it has stood for ``CONFIRM_S``; an operator, or NTP, has that long to correct it. A service
that starts compares with its newest event instead, as it has no earlier look. A clock that goes back is
believed at once, because it only keeps events longer. Pure: both times are arguments.
"""

from __future__ import annotations

import logging
from typing import Final

CONFIRM_S: Final = 900.0
"""How long a jump ahead must stand (our choice: NTP corrects a clock within minutes)."""

JUMP_MS: Final = 60_000
"""Less than this is drift, or the delay of a look (our choice)."""

_logger: Final = logging.getLogger(__name__)


class RetentionClock:
    """Remembers the last time that was believed."""

    def __init__(self, believed_ms: int, now_s: float) -> None:
        """believed_ms: a time that was surely reached, in milliseconds since 1970-01-01 UTC; now_s: on the
        monotonic clock."""
        self._believed_ms = believed_ms
        self._believed_at_s = now_s
        self._ahead_since_s: float | None = None
        """When the wall clock was first seen ahead; None: it is not."""
        self._ahead_least_ms = 0
        """How far ahead it was at every look since then."""
        self._is_first_look = True
        """Since the start, before which nothing may have been stored for a long time."""

    def time_ms(self, wall_ms: int, now_s: float) -> int:
        """The time to go by, never after ``wall_ms``."""
        expected_ms = self._believed_ms + int((now_s - self._believed_at_s) * 1000)
        ahead_ms = wall_ms - expected_ms
        is_first, self._is_first_look = self._is_first_look, False
        if ahead_ms <= JUMP_MS:
            self._ahead_since_s = None
            return self._believe(wall_ms, now_s)
        if self._ahead_since_s is None:
            self._ahead_since_s, self._ahead_least_ms = now_s, ahead_ms
            what = "of the newest event" if is_first else "of what was expected"
            _logger.log(
                logging.INFO if is_first else logging.WARNING,
                "The clock is %.0f s ahead %s. Retention by age ignores that for %.0f s: if the clock is "
                "wrong, correct it before then.",
                ahead_ms / 1000,
                what,
                CONFIRM_S,
            )
        self._ahead_least_ms = min(self._ahead_least_ms, ahead_ms)
        if now_s - self._ahead_since_s < CONFIRM_S:
            return self._believe(expected_ms, now_s)
        self._ahead_since_s = None
        return self._believe(expected_ms + self._ahead_least_ms, now_s)

    def _believe(self, time_ms: int, now_s: float) -> int:
        self._believed_ms, self._believed_at_s = time_ms, now_s
        return time_ms
