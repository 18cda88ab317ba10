"""A home's summary: the pipeline writes it to blob storage, and the web page shows it to the resident.

The JSON form, as ``write_pages`` gives it, on one line and without spaces:

    {"activity": [0, 0, 1, …],
     "alarms": [{"at": "2026-03-02T05:00:00.000Z", "kind": "glass_break", "sensor": "glass-living-room"}],
     "day": "2026-03-02",
     "doors": {"door-front": {"is_open": false, "since": "2026-03-02T06:15:09.250Z"}},
     "home": "h000042",
     "rooms": {"hall": {"hours_with_motion": [6, 7]}}}

The keys are sorted, and ``page_files`` relies on it: ``activity`` marks the beginning of a page.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Final

from msgspec import DecodeError, Meta, Struct, json

from tidegate import InvalidArgumentError

HOURS: Final = 24
ACTIVITY_MAX: Final = 3
"""The highest level of activity of an hour; 0 is none."""

Time = Annotated[datetime, Meta(tz=True)]
Hour = Annotated[int, Meta(ge=0, lt=HOURS)]
Level = Annotated[int, Meta(ge=0, le=ACTIVITY_MAX)]


class Room(Struct, frozen=True):
    """A room with a motion sensor."""

    hours_with_motion: tuple[Hour, ...]
    """Hours of the day, ascending."""


class Opening(Struct, frozen=True):
    """A door or a window."""

    is_open: bool
    since: Time


class HomeAlarm(Struct, frozen=True):
    """An alarm for the residents."""

    at: Time
    kind: str
    """``glass_break``, ``door_open`` or ``carbon_monoxide``; more may be added."""
    sensor: str


class HomeSummary(Struct, frozen=True):
    """A home on its latest day. Times are in UTC."""

    home: str
    day: date | None
    """None: it has sent nothing yet."""
    rooms: dict[str, Room]
    """By name."""
    doors: dict[str, Opening]
    """Doors and windows by sensor, such as ``door-front``: kind and location."""
    alarms: tuple[HomeAlarm, ...]
    """The newest last."""
    activity: Annotated[tuple[Level, ...], Meta(min_length=HOURS, max_length=HOURS)]
    """A level for each of the day's hours."""

    @classmethod
    def from_json(cls, content: bytes) -> HomeSummary:
        """Parse a summary, ignoring unknown fields.

        Raises InvalidArgumentError if ``content`` is something else, or incomplete.
        """
        try:
            return json.decode(content, type=cls)
        except (DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidArgumentError("This is not the summary of a home.") from error
