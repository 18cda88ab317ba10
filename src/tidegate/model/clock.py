"""The seam for time. Code below ``transport`` never reads a clock directly."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """Wall and monotonic time, so that tests can run on virtual time."""

    def now_utc(self) -> datetime:
        """The wall clock: timezone-aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; only differences mean anything."""
        ...
