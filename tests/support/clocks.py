"""Clocks that stand still until a test moves them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

START = datetime(2026, 11, 20, 12, 0, 0, 500_000, tzinfo=UTC)
"""Within a second, so that a time that is cut to seconds shows."""


class SetClock:
    """A clock that stands where it was put."""

    def __init__(self, now: datetime = START) -> None:
        self.now = now

    def now_utc(self) -> datetime:
        """The wall clock."""
        return self.now

    def monotonic(self) -> float:
        """Seconds since some moment."""
        return self.now.timestamp()

    def advance(self, seconds: float = 0.0, *, hours: float = 0.0) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds, hours=hours)


class FixedClock(SetClock):
    """Begins at the real time, for what OpenSSL verifies against its own clock."""

    def __init__(self) -> None:
        super().__init__(datetime.now(UTC))  # noqa: TID251 - OpenSSL verifies against the real clock
