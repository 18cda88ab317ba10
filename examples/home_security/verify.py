"""Recomputes the figures from the log, without Spark: the expected contents of tables and summaries.

It is written to be obviously right, not fast: everything is kept, and nothing forgotten after a window, so it
shares no shortcut with ``block``. It does share ``parse_reading``, which defines what a reading is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from examples.home_security.homes import (
    ACTIVITY_LEVELS,
    ALARMS_SHOWN,
    CARBON_MONOXIDE,
    CO_LIMIT_PPM,
    DAY_MS,
    DOOR_OPEN,
    DOOR_OPEN_LIMIT_MS,
    EVENT_HUB,
    GLASS_BREAK,
    HOUR_MS,
    LATENESS_MS,
    MINUTE_MS,
    NUMBERS_REMEMBERED,
    PARTITION_COUNT,
    TOO_FAR_BEHIND,
    TOO_LATE,
    WRONG_PARTITION,
    Alarm,
    Kind,
    iso_time,
)
from examples.home_security.readings import Reading, parse_reading
from tidegate import partition_for_key
from tidegate.client import BlockingConsumer

Minute = tuple[str, int]
"""Home, and the minute's first millisecond."""
Figures = tuple[int, int, int, float | None, int]
"""The other columns of ``home_minute``."""
EventAddress = tuple[str, int]
"""Partition and sequence number."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected contents of the tables."""

    event_count: int
    status_count: int
    """Events that only say that a sensor is alive: they have no other effect."""
    homes_heard: int
    """Homes that sent anything, by partition key."""
    minutes: Mapping[Minute, Figures]
    alarms: frozenset[Alarm]
    dead_letters: Mapping[EventAddress, str]
    summaries: Mapping[str, bytes]
    latest_sent_ms: int


@dataclass(slots=True)
class Recomputation:
    """Takes events in the order of the log, partition by partition; ``finish`` returns the result."""

    event_count: int = 0
    status_count: int = 0
    dead_letters: dict[EventAddress, str] = field(default_factory=dict)
    latest_sent_ms: int = 0
    _heard: set[str | None] = field(default_factory=set)
    _counted: dict[str, list[Reading]] = field(default_factory=lambda: defaultdict(list))
    """Home → its readings, each once, in the order of the log."""
    _duplicates: Counter[Minute] = field(default_factory=Counter)
    _newest: dict[tuple[str, str], list[Reading]] = field(default_factory=lambda: defaultdict(list))
    """Home and sensor → those of its readings that were its newest when they came."""
    _numbers: dict[tuple[str, str], set[int]] = field(default_factory=lambda: defaultdict(set))
    _highest: dict[tuple[str, str], int] = field(default_factory=dict)
    _latest_sent_ms: dict[str, int] = field(default_factory=dict)

    def add(self, partition: str, sequence_number: int, partition_key: str | None, body: bytes) -> None:
        """Add the next event of a partition."""
        self.event_count += 1
        self._heard.add(partition_key)
        parsed = parse_reading(body, partition_key)
        if isinstance(parsed, str):
            self.dead_letters[partition, sequence_number] = parsed
            return
        self.latest_sent_ms = max(self.latest_sent_ms, parsed.sent_ms)
        if parsed.kind == Kind.STATUS:
            self.status_count += 1
            return
        is_elsewhere = partition != str(partition_for_key(parsed.home, PARTITION_COUNT))
        reason = WRONG_PARTITION if is_elsewhere else self._count(parsed)
        if reason is not None:
            self.dead_letters[partition, sequence_number] = reason

    def _count(self, reading: Reading) -> str | None:
        home, sensor = reading.home, (reading.home, reading.sensor)
        self._latest_sent_ms[home] = max(self._latest_sent_ms.get(home, 0), reading.sent_ms)
        if reading.taken_ms < self._latest_sent_ms[home] - LATENESS_MS:
            return TOO_LATE
        highest = self._highest.get(sensor, -1)
        if reading.number <= highest - NUMBERS_REMEMBERED:
            return TOO_FAR_BEHIND
        if reading.number in self._numbers[sensor]:
            self._duplicates[home, _minute_of(reading)] += 1
            return None
        self._numbers[sensor].add(reading.number)
        self._counted[home].append(reading)
        if reading.number > highest:
            self._highest[sensor] = reading.number
            self._newest[sensor].append(reading)
        return None

    def finish(self, watermark_ms: int) -> Expected:
        """What the pipeline must have written after all events, with the watermark at ``watermark_ms``."""
        alarms = self._alarms(watermark_ms)
        by_home: dict[str, list[Alarm]] = defaultdict(list)
        for alarm in alarms:
            by_home[alarm.home].append(alarm)
        return Expected(
            event_count=self.event_count,
            status_count=self.status_count,
            homes_heard=len(self._heard),
            minutes=self._minutes(),
            alarms=frozenset(alarms),
            dead_letters=self.dead_letters,
            summaries={home: self._summary(home, by_home[home]) for home in self._counted},
            latest_sent_ms=self.latest_sent_ms,
        )

    def _minutes(self) -> dict[Minute, Figures]:
        found: dict[Minute, list[Reading]] = defaultdict(list)
        for home, readings in self._counted.items():
            for reading in readings:
                found[home, _minute_of(reading)].append(reading)
        return {
            minute: (
                len(found[minute]),
                sum(reading.kind == Kind.MOTION for reading in found[minute]),
                sum(
                    reading.kind in (Kind.DOOR, Kind.WINDOW) and reading.value == 1
                    for reading in found[minute]
                ),
                max((reading.value for reading in found[minute] if reading.kind == Kind.CO), default=None),
                self._duplicates[minute],
            )
            for minute in found.keys() | self._duplicates.keys()
        }

    def _alarms(self, watermark_ms: int) -> list[Alarm]:
        alarms = [
            Alarm(home, reading.sensor, reading.number, GLASS_BREAK, reading.taken_ms, 0.0)
            for home, readings in self._counted.items()
            for reading in readings
            if reading.kind == Kind.GLASS
        ]
        for (home, sensor), readings in self._newest.items():
            before: Reading | None = None
            for reading in _changes(readings):
                if reading.kind == Kind.CO and reading.value > CO_LIMIT_PPM:
                    alarms.append(
                        Alarm(home, sensor, reading.number, CARBON_MONOXIDE, reading.taken_ms, reading.value)
                    )
                if before is not None and _is_open_too_long(before, reading.taken_ms):
                    alarms.append(_door_alarm(before))
                before = reading
            if before is not None and _is_open_too_long(before, watermark_ms - LATENESS_MS):
                alarms.append(_door_alarm(before))
        return alarms

    def _summary(self, home: str, alarms: list[Alarm]) -> bytes:
        readings = self._counted[home]
        day = max(reading.taken_ms // DAY_MS for reading in readings)
        today = [reading for reading in readings if reading.taken_ms // DAY_MS == day]
        rooms: dict[str, set[int]] = defaultdict(set)
        for reading in today:
            if reading.kind == Kind.MOTION:
                rooms[reading.sensor.removeprefix("motion-")].add(reading.taken_ms % DAY_MS // HOUR_MS)
        hours = Counter(reading.taken_ms % DAY_MS // HOUR_MS for reading in today)
        doors: dict[str, Any] = {}
        for sensor in {reading.sensor for reading in readings if reading.kind in (Kind.DOOR, Kind.WINDOW)}:
            *_, last = _changes(self._newest[home, sensor])
            doors[sensor] = {"is_open": last.value == 1, "since": iso_time(last.taken_ms)}
        newest = sorted((alarm.raised_ms, alarm.kind, alarm.sensor) for alarm in alarms)[-ALARMS_SHOWN:]
        return orjson.dumps(
            {
                "home": home,
                "day": iso_time(day * DAY_MS)[:10],
                "rooms": {room: {"hours_with_motion": sorted(seen)} for room, seen in rooms.items()},
                "doors": doors,
                "alarms": [
                    {"at": iso_time(at), "kind": kind, "sensor": sensor} for at, kind, sensor in newest
                ],
                "activity": [sum(hours[hour] >= level for level in ACTIVITY_LEVELS) for hour in range(24)],
            },
            option=orjson.OPT_SORT_KEYS,
        )


def _minute_of(reading: Reading) -> int:
    return reading.taken_ms // MINUTE_MS * MINUTE_MS


def _changes(readings: list[Reading]) -> list[Reading]:
    """The readings that differ from the previous one: open or closed, over the limit or not."""
    changes: list[Reading] = []
    for reading in readings:
        if not changes or _state_of(reading) != _state_of(changes[-1]):
            changes.append(reading)
    return changes


def _state_of(reading: Reading) -> bool:
    return reading.value > CO_LIMIT_PPM if reading.kind == Kind.CO else reading.value == 1


def _is_open_too_long(reading: Reading, until_ms: int) -> bool:
    return (
        reading.kind in (Kind.DOOR, Kind.WINDOW)
        and reading.value == 1
        and until_ms - reading.taken_ms > DOOR_OPEN_LIMIT_MS
    )


def _door_alarm(opening: Reading) -> Alarm:
    return Alarm(
        opening.home,
        opening.sensor,
        opening.number,
        DOOR_OPEN,
        opening.taken_ms + DOOR_OPEN_LIMIT_MS,
        0.0,
    )


def recompute(connection_string: str) -> Recomputation:
    """Read the whole hub. Raises what the consumer raises."""
    recomputation = Recomputation()
    with BlockingConsumer(connection_string, EVENT_HUB) as consumer:
        for partition in consumer.get_all_partition_properties():
            numbers = range(partition.begin_sequence_number, partition.next_sequence_number)
            for event in consumer.read_events(EVENT_HUB, partition.partition_id, numbers):
                # As in Spark's table, where what is not an AMQP message has no body.
                body = event.body if event.decode_error is None else b""
                recomputation.add(partition.partition_id, event.sequence_number, event.partition_key, body)
    return recomputation
