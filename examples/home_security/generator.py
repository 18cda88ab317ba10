"""Generates a hundred thousand homes: the same events in the same order for the same plan, at any speed.

Every home sends once a minute, in turn; what cannot wait, such as a door that closes, is sent beside that.
With a ``rate``, homes send at random instead, and every step has exactly as many events as requested. The
hour of the day only determines what they are. By day people walk through rooms and doors; at night sensors
mostly report that they are alive. Homes differ: some get up early, some work at night. Errors occur as in
reality: doors left open, stuck and flapping sensors, readings that are malformed, delayed or sent twice.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from examples.home_security.homes import (
    DAY_MS,
    HOUR_MS,
    LATENESS_MS,
    MINUTE_MS,
    SENSORS,
    Kind,
    home_name,
)
from tidegate import InvalidArgumentError

START_MS: Final = 1_772_434_800_000
"""2026-03-02 07:00 UTC, a Monday: the homes are getting up."""
STEP_S: Final = 0.1
"""Real seconds of a step: at 5,000 events/s, 500 events for sixteen partitions."""

_WEEKDAY: Final = (
    *(0.05, 0.04, 0.03, 0.03, 0.05, 0.20, 0.60, 0.90, 0.60, 0.35, 0.30, 0.35),
    *(0.45, 0.40, 0.30, 0.35, 0.50, 0.80, 1.00, 0.95, 0.80, 0.60, 0.35, 0.12),
)
_WEEKEND: Final = (
    *(0.15, 0.10, 0.06, 0.04, 0.04, 0.05, 0.15, 0.30, 0.55, 0.80, 0.95, 1.00),
    *(0.95, 0.85, 0.75, 0.75, 0.80, 0.85, 0.90, 0.85, 0.80, 0.70, 0.50, 0.30),
)
"""The activity of each hour of the day (our choice, after one's own home)."""

_MOTION_SHARE, _DOOR_SHARE, _WINDOW_SHARE, _CO_SHARE = 0.72, 0.05, 0.01, 0.06
"""Of the events of a busy hour; the rest report that a sensor is alive. Doors and windows that open also
close, so they come twice."""
_GLASS_SHARE: Final = 2e-5
_STUCK_SHARE, _FLAPPING_SHARE = 0.01, 0.005
"""Of all events: from the few sensors that repeat themselves, and from flapping doors."""
_FAULTY_HOMES_SHARE: Final = 0.002
_SHORT_OPEN_MS, _LONG_OPEN_MS = 20_000, 12 * MINUTE_MS
_LONG_OPEN_SHARE: Final = 0.02
"""Of openings: forgotten for minutes. As many again are never closed."""
_CO_INCIDENT_SHARE: Final = 5e-4
_CO_INCIDENT_PPM: Final = (85, 140, 220, 180, 95, 40, 3)
_TOO_LATE_SHARE: Final = 0.05
"""Of delayed readings: held back for longer than the pipeline waits."""

_MOTION_SENSORS = [index for index, (_, kind) in enumerate(SENSORS) if kind is Kind.MOTION]
_DOOR_SENSORS = [index for index, (_, kind) in enumerate(SENSORS) if kind is Kind.DOOR]
_WINDOW_SENSORS = [index for index, (_, kind) in enumerate(SENSORS) if kind is Kind.WINDOW]
_GLASS_SENSOR, _CO_SENSOR = (
    next(index for index, (_, kind) in enumerate(SENSORS) if kind is wanted)
    for wanted in (Kind.GLASS, Kind.CO)
)
_KIND_NAMES = [kind.name.lower() for _, kind in SENSORS]
_NAMES = [name for name, _ in SENSORS]


@dataclass(frozen=True, slots=True)
class GeneratorPlan:
    """What to generate."""

    homes: int = 100_000
    rate: float | None = None
    """Events per second, of homes at random; None: an event per home and minute, and what cannot wait."""
    speed: float = 60.0
    """Simulated seconds per second."""
    seed: int = 1
    malformed_share: float = 0.005
    delayed_share: float = 0.01
    duplicate_share: float = 0.01
    co_after_s: float = 30.0
    """Real seconds until the homes have carbon monoxide detectors."""

    def __post_init__(self) -> None:
        if self.homes < 1 or (self.rate is not None and self.rate <= 0) or self.speed <= 0:
            raise InvalidArgumentError("homes, rate and speed must be above 0.")
        shares = (self.malformed_share, self.delayed_share, self.duplicate_share)
        if any(not 0 <= share < 1 for share in shares):
            raise InvalidArgumentError("A share must be at least 0 and below 1.")

    @property
    def events_per_s(self) -> float:
        """The ``rate``, or that of an event per home and minute, without what cannot wait."""
        return self.homes * self.speed * 1000 / MINUTE_MS if self.rate is None else self.rate


class _Due(NamedTuple):
    """A reading that is created or sent in a later step."""

    home: int
    sensor: int
    value: str
    number: int
    """-1: a new one, which gets its number and time when its step comes."""
    taken_ms: int


_Homes = np.ndarray[Any, np.dtype[np.int64]]


def _alive(home: int, pick: int) -> _Due:
    """One of the home's sensors reports that it is alive."""
    return _Due(home, pick % (len(SENSORS) - 1), "alive", -1, 0)


class HomesGenerator:
    """The events of the plan, step by step."""

    def __init__(self, plan: GeneratorPlan) -> None:
        self.plan = plan
        self.step_count = 0
        """Steps completed so far."""
        self.counts: Counter[str] = Counter()
        """Events so far: all, malformed, delayed, duplicates."""
        self._random = np.random.Generator(np.random.PCG64(plan.seed))
        self._numbers = np.zeros((plan.homes, len(SENSORS)), dtype=np.int64)
        # Most homes get up around the same hour, one in twenty lives by night.
        phases = np.rint(self._random.normal(0, 1.2, plan.homes)).astype(np.int64)
        self._phases = phases + 12 * (self._random.random(plan.homes) < 0.05)
        faulty = max(1, round(plan.homes * _FAULTY_HOMES_SHARE))
        self._faulty_homes = self._random.integers(0, plan.homes, faulty)
        self._turns = None if plan.rate is not None else self._random.permutation(plan.homes)
        """The order in which homes send, each minute; None: at random."""
        self._open: set[tuple[int, int]] = set()
        """Doors and windows that are open: home and sensor."""
        self._due: dict[int, list[_Due]] = defaultdict(list)
        """Step → readings to be created or sent in it."""

    @property
    def time_ms(self) -> int:
        """The homes' time at the end of the last step, in milliseconds since 1970-01-01 UTC."""
        return self._time_ms(self.step_count)

    def step(self) -> list[tuple[str, bytes]]:
        """The next step's events: home, which is the partition key, and body."""
        index = self.step_count
        per_step = self.plan.events_per_s * STEP_S
        first, until = int(index * per_step), int((index + 1) * per_step)
        due = self._due.pop(index, [])
        start_ms, sent_ms = self._time_ms(index), self._time_ms(index + 1)
        if self._turns is not None:
            homes = self._turns[np.arange(first, until) % len(self._turns)]
        else:
            wanted = until - first
            if len(due) > wanted:
                # Excess events move to the next step, to keep the requested rate.
                self._due[index + 1] = due[wanted:] + self._due.get(index + 1, [])
                del due[wanted:]
            homes = self._random.integers(0, self.plan.homes, wanted - len(due))
        made = due + self._new_readings(homes, index, start_ms)
        events = self._events(made, index, start_ms, sent_ms)
        self.step_count += 1
        self.counts["events"] += len(events)
        return events

    def _time_ms(self, step: int) -> int:
        return START_MS + round(step * STEP_S * self.plan.speed * 1000)

    def _new_readings(self, homes: _Homes, index: int, start_ms: int) -> list[_Due]:
        """A reading of each of these homes; at random, a faulty home sends one in the place of another."""
        count = len(homes)
        is_weekend = (start_ms // DAY_MS + 3) % 7 >= 5  # 1970-01-01 was a Thursday
        rhythm = np.array(_WEEKEND if is_weekend else _WEEKDAY)
        liveliness = rhythm[(start_ms % DAY_MS // HOUR_MS + self._phases[homes]) % 24]
        draws = self._random.random(count)
        picks = self._random.integers(0, 1 << 30, count)
        is_co_there = index * STEP_S >= self.plan.co_after_s
        made: list[_Due] = []
        for home, lively, draw, pick in zip(
            homes.tolist(), liveliness.tolist(), draws.tolist(), picks.tolist(), strict=True
        ):
            made.append(self._new_reading(home, lively, draw, pick, index, is_co_there))
            if self._turns is not None and made[-1].home != home:
                made.append(_alive(home, pick))
        return made

    def _new_reading(
        self, home: int, lively: float, draw: float, pick: int, index: int, is_co_there: bool
    ) -> _Due:
        """An event in a home: ``draw`` determines its kind, ``pick`` the rest."""
        if draw < _GLASS_SHARE:
            return _Due(home, _GLASS_SENSOR, "null", -1, 0)
        draw -= _GLASS_SHARE
        if draw < _STUCK_SHARE:
            return _Due(int(self._faulty_homes[pick % len(self._faulty_homes)]), 0, "null", -1, 0)
        draw -= _STUCK_SHARE
        if draw < _FLAPPING_SHARE:
            home = int(self._faulty_homes[pick % len(self._faulty_homes)])
            return self._toggle(home, _DOOR_SENSORS[-1])
        draw -= _FLAPPING_SHARE
        if draw < _CO_SHARE and is_co_there:
            return self._measure_co(home, pick, index)
        draw = (draw - _CO_SHARE) / lively
        if 0 <= draw < _MOTION_SHARE:
            return _Due(home, _MOTION_SENSORS[pick % len(_MOTION_SENSORS)], "null", -1, 0)
        draw -= _MOTION_SHARE
        if 0 <= draw < _DOOR_SHARE:
            return self._open_door(home, _DOOR_SENSORS[pick % len(_DOOR_SENSORS)], pick, index)
        draw -= _DOOR_SHARE
        if 0 <= draw < _WINDOW_SHARE:
            return self._open_door(home, _WINDOW_SENSORS[pick % len(_WINDOW_SENSORS)], pick, index)
        return _alive(home, pick)

    def _toggle(self, home: int, sensor: int) -> _Due:
        is_open = (home, sensor) in self._open
        (self._open.discard if is_open else self._open.add)((home, sensor))
        return _Due(home, sensor, '"closed"' if is_open else '"open"', -1, 0)

    def _open_door(self, home: int, sensor: int, pick: int, index: int) -> _Due:
        if (home, sensor) in self._open:
            return self._toggle(home, sensor)
        share = pick % 10_007 / 10_007
        if share >= _LONG_OPEN_SHARE:
            is_long = share < 2 * _LONG_OPEN_SHARE
            open_ms = _SHORT_OPEN_MS * (1 + pick % 3) + (_LONG_OPEN_MS * (pick % 97) // 97 if is_long else 0)
            self._later(index, open_ms, _Due(home, sensor, '"closed"', -1, 0))
        return self._toggle(home, sensor)

    def _measure_co(self, home: int, pick: int, index: int) -> _Due:
        if pick % 100_003 < _CO_INCIDENT_SHARE * 100_003:
            for count, ppm in enumerate(_CO_INCIDENT_PPM[1:], start=1):
                self._later(index, count * 30_000, _Due(home, _CO_SENSOR, str(ppm), -1, 0))
            return _Due(home, _CO_SENSOR, str(_CO_INCIDENT_PPM[0]), -1, 0)
        return _Due(home, _CO_SENSOR, str(pick % 90 / 10), -1, 0)

    def _later(self, index: int, delay_ms: float, due: _Due) -> None:
        steps = max(1, round(delay_ms / (STEP_S * self.plan.speed * 1000)))
        self._due[index + steps].append(due)

    def _events(self, made: list[_Due], index: int, start_ms: int, sent_ms: int) -> list[tuple[str, bytes]]:
        """The bodies of this step's readings; another reading takes the place of a delayed one."""
        plan, events = self.plan, []
        fates = self._random.random(len(made)).tolist()
        moments = np.sort(self._random.integers(start_ms, max(sent_ms, start_ms + 1), len(made))).tolist()
        malformed = plan.malformed_share
        delayed = malformed + plan.delayed_share
        duplicate = delayed + plan.duplicate_share
        for due, fate, moment in zip(made, fates, moments, strict=True):
            if due.number < 0:
                if due.value == '"closed"':
                    self._open.discard((due.home, due.sensor))
                number = int(self._numbers[due.home, due.sensor])
                self._numbers[due.home, due.sensor] = number + 1
                due = due._replace(number=number, taken_ms=moment)
                if malformed <= fate < duplicate:
                    self._send_later(due, fate, index, is_delayed=fate < delayed)
                    if fate < delayed:
                        # Something has to be sent in its place: the home reports that it is alive.
                        due = due._replace(value="alive")
            home = home_name(due.home)
            body = _body(home, due, sent_ms)
            if fate < malformed:
                body = _malformed(body, int(fate / malformed * 1e6))
                self.counts["malformed"] += 1
            events.append((home, body))
        return events

    def _send_later(self, due: _Due, fate: float, index: int, *, is_delayed: bool) -> None:
        share = fate * 1e4 % 1
        if is_delayed:
            self.counts["delayed"] += 1
            delay_ms = LATENESS_MS * (share if share > _TOO_LATE_SHARE else 1.5)
        else:
            self.counts["duplicates"] += 1
            delay_ms = 20_000 * share
        self._later(index, delay_ms, due)


def _body(home: str, due: _Due, sent_ms: int) -> bytes:
    """A reading as its home sends it."""
    kind, value = _KIND_NAMES[due.sensor], due.value
    if value == "alive":
        kind, value = "status", "null"
    return (
        f'{{"home":"{home}","sensor":"{_NAMES[due.sensor]}","kind":"{kind}","number":{due.number},'
        f'"taken":{due.taken_ms},"sent":{sent_ms},"value":{value}}}'
    ).encode()


_SPOILINGS: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b'"home":"h', b'"home":"x'),
    (b'"kind":"', b'"kind":"?'),
    (b'"number":', b'"number":-1'),
    (b'"taken":', b'"taken":null,"was":'),
    (b'"sensor":"', b'"sensor":null,"was":"'),
    (b'"taken":1', b'"taken":2'),
)


def _malformed(body: bytes, number: int) -> bytes:
    """A body damaged in one of several ways: truncated, not JSON at all, a field wrong or missing."""
    way = number % (len(_SPOILINGS) + 2)
    if way == len(_SPOILINGS):
        return body[: number % (len(body) - 1)]
    if way == len(_SPOILINGS) + 1:
        return b"\x00\x01 battery low"
    return body.replace(*_SPOILINGS[way], 1)
