"""One home's state: what a reading changes, what it gives rise to. Pure: no clock, no Spark, no SQL.

Theory of operation. A home's readings come in the order of the log, and everything follows from that order
alone; where one micro-batch ends and the next begins makes no difference. So the results can be recomputed
from the log (``verify``), and a micro-batch that is repeated after a crash gives the same again.

    reading ──► too late, or too far behind ──► a reason: the event becomes a dead letter
            ──► came before ────────────────► counted as a duplicate
            ──► counts in its minute, in rooms and activity of the day
            └─► if it is its sensor's newest: moves the door, the carbon monoxide
    watermark passes a door's limit ────────► alarm

Two kinds of old readings are told apart: one that was delayed still counts in its minute, but a door that has
been closed since is not opened by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import orjson

from tidegate.demos.home_security.homes import (
    CO_LIMIT_PPM,
    DAY_MS,
    DOOR_OPEN_LIMIT_MS,
    HOUR_MS,
    LATENESS_MS,
    MINUTE_MS,
    NUMBERS_REMEMBERED,
    Kind,
)
from tidegate.demos.home_security.readings import Reading

TOO_LATE: Final = "The reading came too late: its minute is closed."
TOO_FAR_BEHIND: Final = "The reading is too far behind its sensor's newest to know whether it came before."

ALARMS_SHOWN: Final = 10
"""Alarms in a home's summary: the newest."""
ACTIVITY_LEVELS: Final = (1, 4, 16)
"""Readings of an hour from which its activity is 1, 2 and 3."""

_ALL_NUMBERS: Final = (1 << NUMBERS_REMEMBERED) - 1
_MOTION, _DOOR, _WINDOW, _GLASS, _CO = (
    int(kind) for kind in (Kind.MOTION, Kind.DOOR, Kind.WINDOW, Kind.GLASS, Kind.CO)
)

GLASS_BREAK: Final = "glass_break"
DOOR_OPEN: Final = "door_open"
CARBON_MONOXIDE: Final = "carbon_monoxide"


class Alarm(NamedTuple):
    """What a resident is woken for."""

    home: str
    sensor: str
    number: int
    """Of the reading that caused it: the opening, the broken glass, the first one over the limit. Home,
    sensor and number together are there once."""
    kind: str
    raised_ms: int
    """Milliseconds since 1970-01-01 UTC: when what it is about was so, not when it was noticed."""
    value: float
    """Parts per million; 0 for the others."""


READINGS, MOTIONS, OPENINGS, CO_MAX_PPM, DUPLICATES = range(5)
"""The places of a minute's figures: ``Home.minutes`` maps a minute's first millisecond to them."""


class Home:
    """The state of one home. Owned by one caller; ``encode`` and ``decode`` keep it between micro-batches."""

    __slots__ = (
        "_activity",
        "_alarms",
        "_day",
        "_doors",
        "_is_co_over",
        "_latest_sent_ms",
        "_numbers",
        "_rooms",
        "is_summary_changed",
        "minutes",
        "name",
        "touched_minutes",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.minutes: dict[int, list[float]] = {}
        """Those that readings may still come for."""
        self.touched_minutes: set[int] = set()
        """Those that have changed since the state was decoded."""
        self.is_summary_changed = False
        """Whether ``summary`` has changed since the state was decoded."""
        self._latest_sent_ms = 0
        self._numbers: dict[str, list[int]] = {}
        """Sensor → its highest number, and a bit for each of the numbers behind it: has it come?"""
        self._doors: dict[str, list[int]] = {}
        """Sensor → number and time of its last change, whether it is open, whether that raised an alarm."""
        self._is_co_over: dict[str, int] = {}
        self._day = -1
        self._rooms: dict[str, int] = {}
        """Room → a bit for each hour of the day with motion in it."""
        self._activity = [0] * 24
        """Readings in each hour of the day."""
        self._alarms: list[list[Any]] = []
        """The newest, as (time, kind, sensor)."""

    # --- state as bytes -----------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """The state as bytes, to be kept."""
        self._forget_closed_minutes()
        return orjson.dumps(
            [
                self._latest_sent_ms,
                self._numbers,
                self._doors,
                self._is_co_over,
                [[minute, *figures] for minute, figures in self.minutes.items()],
                self._day,
                self._rooms,
                self._activity,
                self._alarms,
            ]
        )

    @classmethod
    def decode(cls, name: str, encoded: bytes) -> Home:
        """The home that ``encode`` gave these bytes for."""
        home = cls(name)
        (
            home._latest_sent_ms,
            home._numbers,
            home._doors,
            home._is_co_over,
            minutes,
            home._day,
            home._rooms,
            home._activity,
            home._alarms,
        ) = orjson.loads(encoded)
        home.minutes = {minute: figures for minute, *figures in minutes}
        return home

    def _forget_closed_minutes(self) -> None:
        earliest = self._latest_sent_ms - LATENESS_MS - MINUTE_MS
        self.minutes = {minute: figures for minute, figures in self.minutes.items() if minute > earliest}

    # --- readings and time --------------------------------------------------------------------------------

    def apply(self, reading: Reading) -> Alarm | str | None:
        """Take the next reading of the log; an alarm that it raises, or the reason why it is put aside."""
        _, sensor, kind, number, taken_ms, sent_ms, value = reading
        if sent_ms > self._latest_sent_ms:
            self._latest_sent_ms = sent_ms
        if self._latest_sent_ms - taken_ms > LATENESS_MS:
            return TOO_LATE
        is_new = is_newest = True
        numbers = self._numbers.get(sensor)
        if numbers is None:
            self._numbers[sensor] = [number, 1]
        else:
            behind = numbers[0] - number
            if behind < 0:
                numbers[0] = number
                numbers[1] = (numbers[1] << -behind | 1) & _ALL_NUMBERS if -behind < NUMBERS_REMEMBERED else 1
            elif behind >= NUMBERS_REMEMBERED:
                return TOO_FAR_BEHIND
            else:
                is_newest = False
                is_new = not numbers[1] >> behind & 1
                numbers[1] |= 1 << behind
        minute = taken_ms - taken_ms % MINUTE_MS
        figures = self.minutes.get(minute)
        if figures is None:
            figures = self.minutes[minute] = [0, 0, 0, -1.0, 0]
        self.touched_minutes.add(minute)
        if not is_new:
            figures[DUPLICATES] += 1
            return None
        figures[READINGS] += 1
        self._count_activity(taken_ms)
        if kind == _MOTION:
            figures[MOTIONS] += 1
            self._see_motion(sensor, taken_ms)
            return None
        if kind == _GLASS:
            return self._raise(GLASS_BREAK, sensor, number, taken_ms, 0.0)
        if kind == _CO:
            figures[CO_MAX_PPM] = max(figures[CO_MAX_PPM], value)
            return self._measure_co(sensor, number, taken_ms, value) if is_newest else None
        figures[OPENINGS] += value == 1.0
        return self._move_door(sensor, number, taken_ms, value == 1.0) if is_newest else None

    def next_deadline_ms(self) -> int | None:
        """When the watermark has to be looked at for this home; None: not before its next reading."""
        return min(
            (
                taken_ms + DOOR_OPEN_LIMIT_MS + LATENESS_MS
                for _, taken_ms, is_open, is_raised in self._doors.values()
                if is_open and not is_raised
            ),
            default=None,
        )

    def expire(self, watermark_ms: int) -> Iterator[Alarm]:
        """The alarms of doors that are open for too long, once every reading that was taken within their
        limit must have come: the watermark is that of the times of sending."""
        for sensor, door in self._doors.items():
            number, taken_ms, is_open, is_raised = door
            if is_open and not is_raised and taken_ms + DOOR_OPEN_LIMIT_MS + LATENESS_MS < watermark_ms:
                door[3] = 1
                yield self._raise(DOOR_OPEN, sensor, number, taken_ms + DOOR_OPEN_LIMIT_MS, 0.0)

    def _move_door(self, sensor: str, number: int, taken_ms: int, is_open: bool) -> Alarm | None:
        door = self._doors.get(sensor)
        if door is not None and door[2] == is_open:
            return None
        self._doors[sensor] = [number, taken_ms, int(is_open), 0]
        self.is_summary_changed = True
        if door is None or is_open or door[3] or taken_ms - door[1] <= DOOR_OPEN_LIMIT_MS:
            return None
        # It was open for too long, and its closing came before the watermark passed the limit.
        return self._raise(DOOR_OPEN, sensor, door[0], door[1] + DOOR_OPEN_LIMIT_MS, 0.0)

    def _measure_co(self, sensor: str, number: int, taken_ms: int, ppm: float) -> Alarm | None:
        was_over = self._is_co_over.get(sensor, 0)
        is_over = ppm > CO_LIMIT_PPM
        self._is_co_over[sensor] = int(is_over)
        if is_over and not was_over:
            return self._raise(CARBON_MONOXIDE, sensor, number, taken_ms, ppm)
        return None

    def _raise(self, kind: str, sensor: str, number: int, raised_ms: int, value: float) -> Alarm:
        self._alarms.append([raised_ms, kind, sensor])
        self._alarms.sort()
        del self._alarms[:-ALARMS_SHOWN]
        self.is_summary_changed = True
        return Alarm(self.name, sensor, number, kind, raised_ms, value)

    # --- the resident's page ------------------------------------------------------------------------------

    def _count_activity(self, taken_ms: int) -> None:
        day = taken_ms // DAY_MS
        if day > self._day:
            self._day, self._rooms, self._activity = day, {}, [0] * 24
            self.is_summary_changed = True
        if day == self._day:
            hour = taken_ms % DAY_MS // HOUR_MS
            self._activity[hour] += 1
            if self._activity[hour] in ACTIVITY_LEVELS:
                self.is_summary_changed = True

    def _see_motion(self, sensor: str, taken_ms: int) -> None:
        if taken_ms // DAY_MS != self._day:
            return
        room = sensor.partition("-")[2] or sensor
        hours = self._rooms.get(room, 0)
        bit = 1 << taken_ms % DAY_MS // HOUR_MS
        if not hours & bit:
            self._rooms[room] = hours | bit
            self.is_summary_changed = True

    def summary(self) -> bytes:
        """What the resident's page shows, as JSON; the same bytes for the same state."""
        return orjson.dumps(
            {
                "home": self.name,
                "day": None if self._day < 0 else iso_time(self._day * DAY_MS)[:10],
                "rooms": {
                    room: {"hours_with_motion": [hour for hour in range(24) if hours >> hour & 1]}
                    for room, hours in self._rooms.items()
                },
                "doors": {
                    sensor: {"is_open": bool(is_open), "since": iso_time(taken_ms)}
                    for sensor, (_, taken_ms, is_open, _) in self._doors.items()
                },
                "alarms": [
                    {"at": iso_time(raised_ms), "kind": kind, "sensor": sensor}
                    for raised_ms, kind, sensor in self._alarms
                ],
                "activity": [sum(count >= level for level in ACTIVITY_LEVELS) for count in self._activity],
            },
            option=orjson.OPT_SORT_KEYS,
        )


def iso_time(time_ms: int) -> str:
    """Milliseconds since 1970-01-01 UTC, as ``2026-03-02T06:15:09.250Z``."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
