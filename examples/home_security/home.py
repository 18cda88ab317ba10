"""The results of homes' readings, and the limits. The rules are in ``block`` and ``sensors``.

    reading ──► too late, or too far behind ──► a reason: the event becomes a dead letter
            ──► came before ────────────────► counted as a duplicate
            ──► counts in its minute, in rooms and activity of the day
            └─► if it is its sensor's newest: moves the door, the carbon monoxide
    watermark passes a door's limit ────────► alarm

A delayed reading still counts in its minute, but does not open a door that has been closed since.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, NamedTuple

TOO_LATE: Final = "The reading came too late: its minute is closed."
TOO_FAR_BEHIND: Final = "The reading is too far behind its sensor's newest to know whether it came before."

ALARMS_SHOWN: Final = 10
"""The newest alarms, in a home's summary."""
ACTIVITY_LEVELS: Final = (1, 4, 16)
"""Readings per hour at which its activity becomes 1, 2 and 3."""

CARBON_MONOXIDE: Final = "carbon_monoxide"
DOOR_OPEN: Final = "door_open"
GLASS_BREAK: Final = "glass_break"
ALARM_KINDS: Final = (CARBON_MONOXIDE, DOOR_OPEN, GLASS_BREAK)
"""Alphabetical, so that their numbers sort as they do."""


class Alarm(NamedTuple):
    """An alarm for the residents."""

    home: str
    sensor: str
    number: int
    """Of the reading that caused it: the opening, the broken glass, the first one over the limit. Home,
    sensor and number together are unique."""
    kind: str
    raised_ms: int
    """Milliseconds since 1970-01-01 UTC: when its cause occurred, not when it was noticed."""
    value: float
    """Parts per million; 0 for other kinds."""


def iso_time(time_ms: int) -> str:
    """Milliseconds since 1970-01-01 UTC, as ``2026-03-02T06:15:09.250Z``."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
