"""The last 24 hours of the charts: one value a minute of each series, in memory of a fixed size. Pure.

A file's format: a line with the version, then compressed: a line of JSON (the newest minute, the keys of the
series), then the values of each series as they are in memory. Whatever is not so is a ValueError.
"""

from __future__ import annotations

import json
import math
import sys
import zlib
from array import array
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

MINUTES: Final = 24 * 60
SERIES_MAX: Final = 1_024
"""Of all event hubs. Our choice: 6 MB."""
HUB_SERIES_MAX: Final = 36
"""Of one: four rates, and two of each of 16 groups."""

_VERSION: Final = b"tidegate charts 1\n"
_BLANK: Final = array("f", [math.nan]) * MINUTES
_HEADER_BYTES_MAX: Final = 1024 * 1024
_FORGIVEN_MINUTES: Final = 60
"""A clock that is set back by less: the minutes that are there already stay. By more: all are forgotten."""


class SeriesKey(NamedTuple):
    """What a series is of."""

    hub_id: str
    """So that a hub that is created again has nothing of the earlier one. Empty: of the namespace."""
    name: str


@dataclass(slots=True)
class _Series:
    last: int
    """The last minute with a value other than 0."""
    values: array[float] = field(default_factory=lambda: array("f", _BLANK))
    """By minute modulo MINUTES; NaN: not known."""


class Day:
    """The values of the last 24 hours."""

    def __init__(self) -> None:
        self._minute = 0
        """The newest minute, since 1970 in UTC."""
        self._series: dict[SeriesKey, _Series] = {}

    @property
    def hub_ids(self) -> set[str]:
        """The hubs that have a series."""
        return {key.hub_id for key in self._series}

    def note(self, minute: int, values: Mapping[SeriesKey, float], *, hub_ids: Collection[str]) -> None:
        """Add the values of one minute. hub_ids: the hubs that there are: others are forgotten.

        An event hub's series begins with a value other than 0, while there is room, and is forgotten after
        24 hours of 0. A hub that has HUB_SERIES_MAX forgets another one for it.
        """
        self._advance_to(minute)
        if minute == self._minute:
            for key, value in values.items():
                series = self._series.get(key)
                if series is None and (value or not key.hub_id) and self._has_room(key.hub_id, values):
                    series = self._series[key] = _Series(minute)
                if series is not None:
                    series.values[minute % MINUTES] = value
                    series.last = minute if value else series.last
        kept = {"", *hub_ids}
        self._series = {
            key: series
            for key, series in self._series.items()
            if key.hub_id in kept and (not key.hub_id or minute - series.last < MINUTES)
        }

    def chart(self, hub_id: str, names: Mapping[str, str], unit: str) -> dict[str, Any]:
        """A chart in the format of ``console.js``. names: of the series by their labels."""
        values = {label: self._in_order(SeriesKey(hub_id, name)) for label, name in names.items()}
        return {
            "start": (self._minute - MINUTES + 1) * 60,
            "step": 60,
            "series": [
                {"label": label, "values": [None if each != each else round(each, 1) for each in found]}
                for label, found in values.items()
            ],
            "unit": unit,
        }

    def most(self, hub_id: str, name: str) -> float | None:
        """The largest value of a series; None: there is none."""
        found = self._in_order(SeriesKey(hub_id, name))
        return max((each for each in found if each == each), default=None)

    def encode(self) -> bytes:
        """The content of a file. May run in a thread while values are added."""
        kept = list(self._series.items())
        header = {
            "byteorder": sys.byteorder,
            "minute": self._minute,
            "series": [[*key, series.last] for key, series in kept],
        }
        values = b"".join(series.values.tobytes() for _, series in kept)
        return _VERSION + zlib.compress(json.dumps(header).encode() + b"\n" + values, 1)

    @classmethod
    def decode(cls, content: bytes) -> Day:
        """The inverse of ``encode``. Raises ValueError."""
        if not content.startswith(_VERSION):
            raise ValueError(f"its version is unknown: {content[: len(_VERSION)]!r}")
        size = _BLANK.itemsize * MINUTES
        unpacker = zlib.decompressobj()
        try:
            plain = unpacker.decompress(content[len(_VERSION) :], _HEADER_BYTES_MAX + SERIES_MAX * size)
            line, _, values = plain.partition(b"\n")
            header = json.loads(line)
            day, order = cls(), header["byteorder"]
            day._minute = int(header["minute"])
            for number, (hub_id, name, last) in enumerate(header["series"]):
                series = day._series[SeriesKey(str(hub_id), str(name))] = _Series(int(last))
                series.values[:] = array("f", values[number * size : (number + 1) * size])
        except (zlib.error, KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"it is damaged: {error}") from error
        if not unpacker.eof or order != sys.byteorder or len(values) != size * len(day._series):
            raise ValueError("it is damaged: its values are not complete")
        return day

    def _has_room(self, hub_id: str, values: Collection[SeriesKey]) -> bool:
        """Whether a series may begin. values: the series that have one now: a hub forgets others first."""
        own = [key for key in self._series if key.hub_id == hub_id]
        if len(own) >= HUB_SERIES_MAX:
            del self._series[min(own, key=lambda key: (key in values, self._series[key].last))]
        return len(self._series) < SERIES_MAX

    def _advance_to(self, minute: int) -> None:
        passed = minute - self._minute
        if passed >= MINUTES or passed <= -_FORGIVEN_MINUTES:
            self._series.clear()
        elif passed <= 0:
            return
        start, until = (self._minute + 1) % MINUTES, minute % MINUTES + 1
        self._minute = minute
        pieces = [(start, until)] if start < until else [(start, MINUTES), (0, until)]
        for series in self._series.values():
            for begin, end in pieces:
                series.values[begin:end] = _BLANK[begin:end]

    def _in_order(self, key: SeriesKey) -> array[float]:
        """The oldest first; all NaN if there is no such series."""
        series = self._series.get(key)
        if series is None:
            return _BLANK
        newest = self._minute % MINUTES
        return series.values[newest + 1 :] + series.values[: newest + 1]
