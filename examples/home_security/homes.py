"""The demo's homes: their hub, sensors and limits, and the results of their readings. The rules are in
``block`` and ``sensors``.

    reading ──► in another partition, too late, too far behind ──► a reason: the event becomes a dead letter
            ──► came before ────────────────► counted as a duplicate
            ──► counts in its minute, in rooms and activity of the day
            └─► if it is its sensor's newest: moves the door, the carbon monoxide
    watermark passes a door's limit ────────► alarm

A delayed reading still counts in its minute, but does not open a door that has been closed since.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import IntEnum
from typing import Final, NamedTuple

EVENT_HUB: Final = "home-security"
PARTITION_COUNT: Final = 16

BLOCKS_DEFAULT: Final = 32
"""Keys of the pipeline's state: about 3,100 of 100,000 homes share one. Every key costs some milliseconds in
a micro-batch, and tasks share the work by key. Spark distributes keys by a hash, and a micro-batch lasts as
long as its largest task: of 32 keys, two tasks get 16 each, and 16 tasks at most 3; of 64, 39 and 25, and at
most 8."""

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS

DOOR_OPEN_LIMIT_MS: Final = 5 * MINUTE_MS
"""A door or window open for longer raises an alarm."""
CO_LIMIT_PPM: Final = 70.0
"""Carbon monoxide above it raises an alarm, in parts per million (the lowest level at which UL 2034 requires
a household detector to sound; without its waiting time, our choice)."""
LATENESS_MS: Final = 2 * MINUTE_MS
"""The longest delay of a reading: one that its home sends later becomes a dead letter."""
CLOCK_ERROR_MS: Final = MINUTE_MS
"""How far ahead of its home's clock a sensor's may be, and how far ahead of the service's a home's may move
the watermark."""
NUMBERS_REMEMBERED: Final = 64
"""For this many numbers below a sensor's highest, it is known whether they have come."""


class Kind(IntEnum):
    """The kind of a reading. The numbers are used between the pipeline's steps, not in events."""

    MOTION = 0
    DOOR = 1
    WINDOW = 2
    GLASS = 3
    CO = 4
    STATUS = 5
    """A sensor's report that it is alive; filtered out."""


KIND_NAMES: Final = {kind.name.lower(): kind for kind in Kind}
"""Name in events → kind."""

SENSORS: Final = (
    ("motion-hall", Kind.MOTION),
    ("motion-kitchen", Kind.MOTION),
    ("motion-living-room", Kind.MOTION),
    ("motion-bedroom", Kind.MOTION),
    ("door-front", Kind.DOOR),
    ("door-back", Kind.DOOR),
    ("window-kitchen", Kind.WINDOW),
    ("window-bedroom", Kind.WINDOW),
    ("glass-living-room", Kind.GLASS),
    ("co-kitchen", Kind.CO),
)
"""Every home's sensors. The pipeline does not know this list: the last one is added while it runs."""


def home_name(index: int) -> str:
    """The id of a home, such as ``h000042``: its events' partition key."""
    return f"h{index:06}"


# --- results ------------------------------------------------------------------------------------------------

WRONG_PARTITION: Final = "The reading is not in the partition of its key."
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
