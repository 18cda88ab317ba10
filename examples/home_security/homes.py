"""The demo's homes and rules: sensors, limits, the hub."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

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
