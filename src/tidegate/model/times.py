"""Times in milliseconds since 1970-01-01 UTC, as the log and AMQP hold them, and as datetimes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def time_of(milliseconds: int) -> datetime:
    """The aware time in UTC. Raises OverflowError beyond the years that datetime has."""
    return EPOCH + milliseconds * _MILLISECOND


def milliseconds_of(time: datetime) -> int:
    """The milliseconds of an aware time; a fraction is dropped."""
    return (time - EPOCH) // _MILLISECOND


def next_millisecond(time: datetime) -> int:
    """The first full millisecond at an aware time or after it."""
    return -((EPOCH - time) // _MILLISECOND)


def time_text(time: datetime) -> str:
    """A time in UTC with milliseconds, e.g. ``2026-01-31T12:00:00.250Z``."""
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
