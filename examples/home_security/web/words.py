"""Filters of the templates: a home's summary in words and small charts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import Final

from markupsafe import Markup

from examples.home_security.summary import ACTIVITY_MAX, HOURS

_ALARMS: Final = {
    "glass_break": "Glass broke",
    "door_open": "Left open",
    "carbon_monoxide": "Carbon monoxide",
}
_LEVELS: Final = ("none", "a little", "some", "a lot")


def words_of(name: str) -> str:
    """``living-room`` as ``Living room``."""
    return name.replace("-", " ").replace("_", " ").capitalize()


def sensor_in_words(sensor: str) -> str:
    """``door-front`` as ``Front door``, ``glass-living-room`` as ``Living room glass``."""
    kind, _, place = sensor.partition("-")
    names = {"co": "carbon monoxide detector"}
    return words_of(f"{place} {names.get(kind, kind)}") if place else words_of(kind)


def alarm_in_words(kind: str) -> str:
    """The kind of alarm in words."""
    return _ALARMS.get(kind, words_of(kind))


def hours_in_words(hours: Sequence[int]) -> str:
    """``Motion from 6 to 9 and from 17 to 18``: from the first hour's beginning to the last one's end."""
    runs: list[list[int]] = []
    for hour in hours:
        if runs and runs[-1][1] == hour:
            runs[-1][1] = hour + 1
        else:
            runs.append([hour, hour + 1])
    if not runs:
        return "No motion yet"
    *first, last = [f"from {start} to {end}" for start, end in runs]
    return "Motion " + (f"{', '.join(first)} and {last}" if first else last)


def hours_strip(hours: Sequence[int]) -> Markup:
    """A day as 24 cells, those with motion filled."""
    cells = "".join(
        f'<rect class="{"on" if hour in hours else "off"}" x="{hour * 10 + 0.5}" y="0.5" '
        'width="9" height="9" rx="1.5"/>'
        for hour in range(HOURS)
    )
    return Markup(f'<svg class="hours" aria-hidden="true" viewBox="0 0 {HOURS * 10} 10">{cells}</svg>')


def activity_chart(levels: Sequence[int]) -> Markup:
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


def activity_in_words(levels: Sequence[int]) -> str:
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


FILTERS: Final = {
    each.__name__: each
    for each in (
        *(words_of, sensor_in_words, alarm_in_words, time_of_day),
        *(hours_in_words, hours_strip, activity_in_words, activity_chart),
    )
}
"""By name in the templates."""
