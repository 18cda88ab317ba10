"""The system clock: the only module that reads the machine's time."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class SystemClock:
    """``tidegate.model.clock.Clock`` on the system's clocks."""

    def now_utc(self) -> datetime:
        """The wall clock: timezone-aware, in UTC."""
        return datetime.now(UTC)  # noqa: TID251 (this is the Clock)

    def monotonic(self) -> float:
        """Seconds on the clock of asyncio's loops."""
        return time.monotonic()
