"""From an event's bytes to a checked reading, or the reason why it is not one.

    {"home": "h000042", "sensor": "door-front", "kind": "door", "number": 17,
     "taken": 1772431200123, "sent": 1772431200200, "value": "open"}

``number`` counts a sensor's readings, which identifies repeats; ``taken`` and ``sent`` are by the sensor's
and the home's clock, in milliseconds since 1970-01-01 UTC. ``value`` is ``open`` or ``closed`` for doors and
windows, parts per million for carbon monoxide, and null for the others.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import orjson

from examples.home_security.homes import CLOCK_ERROR_MS, KIND_NAMES, Kind

CO_PPM_MAX: Final = 10_000.0
"""The most that a detector can measure; it is broken if it reports more."""
HOME_CHARACTERS_MAX: Final = 128
"""As many as a partition key may have; the tables hold no longer names."""
NAME_CHARACTERS_MAX: Final = 64
_NUMBER_MAX: Final = (1 << 53) - 1
TIME_MS_MAX: Final = 4_102_444_800_000
"""2100-01-01: later times are not milliseconds."""

NOT_JSON: Final = "The body is not JSON."
NOT_AN_OBJECT: Final = "The body is not a JSON object."
WRONG_HOME: Final = "The reading's home is not its partition key."
LONG_HOME: Final = "The name of the home is too long."
WRONG_SENSOR: Final = "The reading has no name of a sensor."
WRONG_KIND: Final = "The kind of the sensor is not known."
WRONG_NUMBER: Final = "The reading's number is not an integer of at least 0."
WRONG_TIME: Final = "The reading has no times."
WRONG_CLOCK: Final = "The reading was taken after it was sent: the sensor's clock is wrong."
WRONG_VALUE: Final = "The value is not one of this kind of sensor."

_FIELDS: Final = ("home", "sensor", "kind", "number", "taken", "sent")
_OPENINGS: Final = {"open": 1.0, "closed": 0.0}


class Reading(NamedTuple):
    """A sensor's reading. A tuple, because a micro-batch has a hundred thousand of them."""

    home: str
    sensor: str
    kind: int
    """A ``Kind``."""
    number: int
    taken_ms: int
    sent_ms: int
    value: float
    """1 for open and 0 for closed; parts per million; 0 if there is none."""


def parse_reading(body: bytes, partition_key: str | None) -> Reading | str:
    """The reading in an event, or one of the reasons above. Reasons hold no values, to be countable."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return NOT_JSON
    if type(fields) is not dict:
        return NOT_AN_OBJECT
    home, sensor, kind_name, number, taken_ms, sent_ms = map(fields.get, _FIELDS)
    kind = KIND_NAMES.get(kind_name) if type(kind_name) is str else None
    # Names that databases cannot store (with a NUL, or too long) would stop the pipeline at its last step.
    if home != partition_key or type(home) is not str or not home.isprintable():
        return WRONG_HOME
    if len(home) > HOME_CHARACTERS_MAX:
        return LONG_HOME
    if type(sensor) is not str or not 0 < len(sensor) <= NAME_CHARACTERS_MAX or not sensor.isprintable():
        return WRONG_SENSOR
    if kind is None:
        return WRONG_KIND
    if type(number) is not int or not 0 <= number <= _NUMBER_MAX:
        return WRONG_NUMBER
    if type(taken_ms) is not int or type(sent_ms) is not int or not 0 <= taken_ms < TIME_MS_MAX:
        return WRONG_TIME
    if not 0 <= sent_ms < TIME_MS_MAX:
        return WRONG_TIME
    if taken_ms - sent_ms > CLOCK_ERROR_MS:
        return WRONG_CLOCK
    value = _value_of(kind, fields.get("value"))
    if value is None:
        return WRONG_VALUE
    return Reading(home, sensor, int(kind), number, taken_ms, sent_ms, value)


def _value_of(kind: Kind, value: object) -> float | None:
    """The value as a number; None if it is invalid for this kind of sensor."""
    if kind is Kind.DOOR or kind is Kind.WINDOW:
        return _OPENINGS.get(value) if type(value) is str else None
    if kind is Kind.CO:
        # To Python, a boolean is an int, but it is not a measurement.
        is_number = type(value) in (int, float)
        return float(value) if is_number and 0 <= value <= CO_PPM_MAX else None  # type: ignore[arg-type,operator]
    return 0.0
