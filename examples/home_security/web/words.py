"""A home's summary in words and small charts, for the templates."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

from markupsafe import Markup

from examples.home_security.summary import ACTIVITY_MAX, HOURS, HomeAlarm, HomeSummary, Room

_ALARMS: Final = {
    "glass_break": "Glass broke",
    "door_open": "Left open",
    "carbon_monoxide": "Carbon monoxide",
}
_LEVELS: Final = ("none", "a little", "some", "a lot")


@dataclass(frozen=True, slots=True)
class ShownRoom:
    """A room, in words."""

    name: str
    strip: Markup
    hours: str


def context_of(summary: HomeSummary) -> dict[str, Any]:
    """The template's values for a home's page."""
    return {
        "summary": summary,
        "open": [opening for opening in summary.openings if opening.is_open],
        "rooms": [
            ShownRoom(words_of(room.name), hours_strip(room), hours_in_words(room)) for room in summary.rooms
        ],
        "openings": [
            (sensor_in_words(opening.sensor), opening, time_of_day(opening.since, summary.day))
            for opening in summary.openings
        ],
        "alarms": [
            (alarm_in_words(alarm), sensor_in_words(alarm.sensor), time_of_day(alarm.at, summary.day))
            for alarm in summary.alarms
        ],
        "activity": activity_chart(summary.activity),
        "activity_words": activity_in_words(summary.activity),
    }


def words_of(name: str) -> str:
    """``living-room`` as ``Living room``."""
    return name.replace("-", " ").replace("_", " ").capitalize()


def sensor_in_words(sensor: str) -> str:
    """``door-front`` as ``Front door``, ``glass-living-room`` as ``Living room glass``."""
    kind, _, place = sensor.partition("-")
    names = {"co": "carbon monoxide detector"}
    return words_of(f"{place} {names.get(kind, kind)}") if place else words_of(kind)


def alarm_in_words(alarm: HomeAlarm) -> str:
    """The kind of alarm in words."""
    return _ALARMS.get(alarm.kind, words_of(alarm.kind))


def hours_in_words(room: Room) -> str:
    """``Motion from 6 to 9 and from 17 to 18``: from the first hour's beginning to the last one's end."""
    runs: list[list[int]] = []
    for hour in room.hours_with_motion:
        if runs and runs[-1][1] == hour:
            runs[-1][1] = hour + 1
        else:
            runs.append([hour, hour + 1])
    if not runs:
        return "No motion yet"
    *first, last = [f"from {start} to {end}" for start, end in runs]
    return "Motion " + (f"{', '.join(first)} and {last}" if first else last)


def hours_strip(room: Room) -> Markup:
    """A day as 24 cells, those with motion filled."""
    cells = "".join(
        f'<rect class="{"on" if hour in room.hours_with_motion else "off"}" x="{hour * 10 + 0.5}" y="0.5" '
        'width="9" height="9" rx="1.5"/>'
        for hour in range(HOURS)
    )
    return Markup(f'<svg class="hours" aria-hidden="true" viewBox="0 0 {HOURS * 10} 10">{cells}</svg>')


def activity_chart(levels: tuple[int, ...]) -> Markup:
    """A bar for each hour of the day; the text beside it has the same information."""
    unit, base = 22, ACTIVITY_MAX * 22 + 6
    bars = "".join(
        f'<rect class="level-{level}" x="{hour * 20 + 3}" y="{base - max(level * unit, 2)}" width="14" '
        f'height="{max(level * unit, 2)}" rx="2"/>'
        for hour, level in enumerate(levels)
    )
    marks = "".join(
        f'<text x="{hour * 20 + 10}" y="{base + 14}">{hour:02}</text>' for hour in range(0, HOURS, 3)
    )
    return Markup('<svg class="activity" role="img" aria-label="{}" viewBox="0 0 480 {}">{}{}</svg>').format(
        activity_in_words(levels), base + 18, Markup(bars), Markup(marks)
    )


def activity_in_words(levels: tuple[int, ...]) -> str:
    """The day's activity in a sentence."""
    by_level = {
        words: [str(hour) for hour, level in enumerate(levels) if level == known]
        for known, words in enumerate(_LEVELS)
        if known
    }
    parts = [f"{words} at {', '.join(hours)}" for words, hours in reversed(by_level.items()) if hours]
    if not parts:
        return "No activity yet on this day"
    return f"Activity by hour: {'; '.join(parts)}; else none"


def time_of_day(at: datetime, day: date | None) -> Markup:
    """``06:15``, with the date if it is of another day; the exact time as a tooltip."""
    words = f"{at:%H:%M}" if at.date() == day else f"{at:%Y-%m-%d %H:%M}"
    exact = at.isoformat(timespec="milliseconds")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(exact, exact, words)
