"""The machine's clock, for everything that is not under test."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class SystemClock:
    """``tidegate.model.Clock`` on the machine's own clocks."""

    def now_utc(self) -> datetime:
        """The wall clock: timezone-aware, in UTC."""
        return datetime.now(UTC)  # noqa: TID251 - the one place that reads it

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""
        return time.monotonic()
