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

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Final

from tidegate import InvalidArgumentError

HOURS: Final = 24
ACTIVITY_MAX: Final = 3
"""The highest level of activity of an hour; 0 is none."""


@dataclass(frozen=True, slots=True)
class Room:
    """A room with a motion sensor."""

    name: str
    hours_with_motion: tuple[int, ...]
    """Hours of the day, 0..23, ascending."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A door or a window."""

    sensor: str
    """Such as ``door-front``: kind and location."""
    is_open: bool
    since: datetime


@dataclass(frozen=True, slots=True)
class HomeAlarm:
    """An alarm for the residents."""

    at: datetime
    kind: str
    """``glass_break``, ``door_open`` or ``carbon_monoxide``; more may be added."""
    sensor: str


@dataclass(frozen=True, slots=True)
class HomeSummary:
    """A home on its latest day. Times are in UTC."""

    home: str
    day: date | None
    """None: it has sent nothing yet."""
    rooms: tuple[Room, ...]
    """By name."""
    openings: tuple[Opening, ...]
    """By sensor."""
    alarms: tuple[HomeAlarm, ...]
    """The newest first."""
    activity: tuple[int, ...]
    """A level, 0..ACTIVITY_MAX, for each of the day's hours."""

    @classmethod
    def from_json(cls, content: bytes) -> HomeSummary:
        """Parse a summary, ignoring unknown fields.

        Raises InvalidArgumentError if ``content`` is something else, or incomplete.
        """
        try:
            values: dict[str, Any] = json.loads(content)
            return cls(
                home=_text(values["home"]),
                day=None if values["day"] is None else date.fromisoformat(values["day"]),
                rooms=tuple(
                    Room(name, _hours(room["hours_with_motion"]))
                    for name, room in sorted(_mapping(values["rooms"]).items())
                ),
                openings=tuple(
                    Opening(sensor, _bool(door["is_open"]), _time(door["since"]))
                    for sensor, door in sorted(_mapping(values["doors"]).items())
                ),
                alarms=tuple(
                    sorted(
                        (
                            HomeAlarm(_time(alarm["at"]), _text(alarm["kind"]), _text(alarm["sensor"]))
                            for alarm in values["alarms"]
                        ),
                        key=lambda alarm: alarm.at,
                        reverse=True,
                    )
                ),
                activity=_levels(values["activity"]),
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InvalidArgumentError("This is not the summary of a home.") from error


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(value)
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def _time(value: object) -> datetime:
    found = datetime.fromisoformat(_text(value))
    if found.tzinfo is None:
        raise ValueError(value)
    return found.astimezone(UTC)


def _hours(value: object) -> tuple[int, ...]:
    hours = _integers(value)
    if any(not 0 <= hour < HOURS for hour in hours):
        raise ValueError(value)
    return tuple(sorted(hours))


def _levels(value: object) -> tuple[int, ...]:
    levels = _integers(value)
    if len(levels) != HOURS or any(not 0 <= level <= ACTIVITY_MAX for level in levels):
        raise ValueError(value)
    return tuple(levels)


def _integers(value: object) -> list[int]:
    if not isinstance(value, list) or any(type(item) is not int for item in value):
        raise TypeError(value)
    return value
