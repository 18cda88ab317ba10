"""Events' bytes to checked readings, a batch at a time, in Arrow columns.

Nearly every reading is written as homes usually write it, and one regular expression parses those without a
Python object per reading. Any that does not match, or fails a check afterwards, goes to ``parse_reading``
individually, which alone decides what is a reading, and why something is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute

from examples.home_security.homes import CLOCK_ERROR_MS, KIND_NAMES, Kind
from examples.home_security.readings import (
    CO_PPM_MAX,
    HOME_CHARACTERS_MAX,
    NAME_CHARACTERS_MAX,
    TIME_MS_MAX,
    Reading,
    parse_reading,
)

_compute: Any = pyarrow.compute  # its stubs know less than it does

_WORD: Final = r"[ !#-\[\]-~]+"
"""Printable, without characters that JSON escapes."""
_WHOLE: Final = "0|[1-9][0-9]*"
_USUAL: Final = (
    rf'^\{{"home":"(?P<home>{_WORD})","sensor":"(?P<sensor>{_WORD})","kind":"(?P<kind>[a-z]+)",'
    rf'"number":(?P<number>{_WHOLE}),"taken":(?P<taken>{_WHOLE}),"sent":(?P<sent>{_WHOLE}),'
    rf'"value":(?P<value>null|"open"|"closed"|(?:{_WHOLE})(?:\.[0-9]+)?)\}}$'
)
_DIGITS_MAX: Final = 15
"""Longer numbers are left to ``parse_reading``, which checks their size."""

_KINDS: Final = pa.array(list(KIND_NAMES), pa.string())
_KIND_NUMBERS: Final = np.array([*KIND_NAMES.values(), -1], dtype=np.int8)
_WORDS: Final = pa.array(['"closed"', '"open"', "null"], pa.string())
_CLOSED, _OPEN, _NULL = range(3)


@dataclass(slots=True)
class ReadingColumns:
    """The readings of a batch of events, a row per event; a reading's home is its event's partition key."""

    sensor: pa.Array[Any]
    kind: np.ndarray
    """int8, a ``Kind``; -1: the event is not a reading, and its other columns have no meaning."""
    number: np.ndarray
    taken_ms: np.ndarray
    sent_ms: np.ndarray
    value: np.ndarray
    reasons: dict[int, str]
    """Of events that are not readings: row → reason."""


def parse_readings(keys: pa.Array[Any], bodies: pa.Array[Any]) -> ReadingColumns:
    """The result of ``parse_reading`` for each event. keys: partition keys, strings. bodies: binary."""
    found = _compute.extract_regex(bodies, _USUAL)
    home, sensor, kind, number, taken, sent, value = (part.cast(pa.string()) for part in found.flatten())
    is_usual = _compute.equal(home, keys)
    is_usual = _compute.and_(is_usual, _is_short(home, HOME_CHARACTERS_MAX))
    is_usual = _compute.and_(is_usual, _is_short(sensor, NAME_CHARACTERS_MAX))
    for digits in (number, taken, sent, value):
        is_usual = _compute.and_(is_usual, _is_short(digits, _DIGITS_MAX))
    is_usual = _compute.fill_null(is_usual, False)
    columns = ReadingColumns(
        sensor,
        _KIND_NUMBERS[_numbers(_compute.index_in(kind, value_set=_KINDS), -1)],
        _numbers(_compute.if_else(is_usual, number, None)),
        _numbers(_compute.if_else(is_usual, taken, None)),
        _numbers(_compute.if_else(is_usual, sent, None)),
        np.zeros(len(bodies)),
        {},
    )
    is_right = is_usual.to_numpy(zero_copy_only=False) & _take_values(columns, value)
    is_right &= (columns.kind >= 0) & (columns.taken_ms < TIME_MS_MAX) & (columns.sent_ms < TIME_MS_MAX)
    is_right &= columns.taken_ms - columns.sent_ms <= CLOCK_ERROR_MS
    _parse_the_rest(columns, np.flatnonzero(~is_right), keys, bodies)
    return columns


def _is_short(text: pa.Array[Any], length_max: int) -> pa.Array[Any]:
    is_short: pa.Array[Any] = _compute.less_equal(_compute.binary_length(text), length_max)
    return is_short


def _numbers(digits: pa.Array[Any], missing: int = 0) -> np.ndarray:
    """Digits, or integers, as integers."""
    filled: np.ndarray = _compute.fill_null(digits.cast(pa.int64()), missing).to_numpy(
        zero_copy_only=False, writable=True
    )
    return filled


def _take_values(columns: ReadingColumns, value: pa.Array[Any]) -> np.ndarray:
    """Fill in the values; returns which of them are valid for their kind of sensor."""
    words = _numbers(_compute.index_in(value, value_set=_WORDS), -1)
    is_opening = (columns.kind == Kind.DOOR) | (columns.kind == Kind.WINDOW)
    is_co = columns.kind == Kind.CO
    is_measured = is_co & (words < 0)
    columns.value[is_opening] = words[is_opening] == _OPEN
    measured = np.flatnonzero(is_measured)
    columns.value[measured] = value.take(measured).cast(pa.float64())
    is_right: np.ndarray = np.where(is_opening, (words == _OPEN) | (words == _CLOSED), ~is_co | is_measured)
    return is_right & (columns.value <= CO_PPM_MAX)


def _parse_the_rest(
    columns: ReadingColumns, rows: np.ndarray, keys: pa.Array[Any], bodies: pa.Array[Any]
) -> None:
    """Parse the events that are not written as usual, one by one."""
    if not len(rows):
        return
    sensors: list[str | None] = []
    rest: list[Any] = bodies.take(rows).to_pylist()
    for row, key, body in zip(rows.tolist(), keys.take(rows).to_pylist(), rest, strict=True):
        parsed = parse_reading(body, key)
        if isinstance(parsed, Reading):
            sensors.append(parsed.sensor)
            columns.kind[row], columns.number[row] = parsed.kind, parsed.number
            columns.taken_ms[row], columns.sent_ms[row] = parsed.taken_ms, parsed.sent_ms
            columns.value[row] = parsed.value
        else:
            sensors.append(None)
            columns.kind[row] = -1
            columns.reasons[row] = parsed
    is_rest = np.zeros(len(bodies), dtype=bool)
    is_rest[rows] = True
    columns.sensor = _compute.replace_with_mask(
        columns.sensor, pa.array(is_rest), pa.array(sensors, pa.string())
    )
