"""The state of many homes in columns, and how it is saved as bytes.

A row belongs to a home, to one of its sensors, minutes or rooms. Its key has the home's number in the block
in the upper half, and the number of the sensor, minute or room in the lower. Keys are sorted, so a
micro-batch finds all its rows in one search, and changes them in columns.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute

from tidegate import InvalidArgumentError

_compute: Any = pyarrow.compute  # its stubs know less than it does

KEY_BITS: Final = 32
"""Of the lower half of a key."""

_COMPRESSION: Final = "lz4_raw"
_FORMAT: Final = 2
"""The version of ``encode``'s bytes; 1 had no number."""
_HEAD: Final = struct.Struct("<Bq")
"""The format, and the number of the following bytes once decompressed."""


class Names:
    """Numbers names from 0 on; numbers never change."""

    def __init__(self) -> None:
        self._names: pa.Array[Any] = pa.array([], pa.string())

    def __len__(self) -> int:
        return len(self._names)

    def numbers_of(
        self, names: pa.Array[Any], is_accepted: Callable[[str], bool] | None = None
    ) -> np.ndarray:
        """The numbers of names, as int64; new names get the next ones.

        is_accepted: asked for each new name; those that it refuses get -1.
        """
        found = _compute.index_in(names, value_set=self._names)
        if found.null_count:
            new = names.filter(found.is_null()).unique()
            if is_accepted is not None:
                unknown: Any = new.to_pylist()
                new = pa.array([name for name in unknown if is_accepted(name)], pa.string())
            self._names = pa.concat_arrays([self._names, new])
            found = _compute.index_in(names, value_set=self._names)
        numbers: np.ndarray = _compute.fill_null(found, -1).to_numpy().astype(np.int64)
        return numbers

    def take(self, numbers: np.ndarray) -> pa.Array[Any]:
        """The names with these numbers."""
        return self._names.take(pa.array(numbers))

    def ranks(self) -> np.ndarray:
        """The position of each name in sorted order."""
        names = self.to_list()
        return np.argsort(np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.int64))

    def to_list(self) -> list[str]:
        """All names, by number."""
        names: Any = self._names.to_pylist()
        return list(names)

    def parts(self) -> list[bytes]:
        """Everything as bytes: where names end, and the names."""
        names = pa.concat_arrays([self._names])  # copied, in case it is a slice
        _, ends, text = names.buffers()
        return [buffer.to_pybytes() if buffer is not None else b"" for buffer in (ends, text)]

    def load(self, parts: list[memoryview]) -> None:
        """The inverse of ``parts``."""
        ends, text = (pa.py_buffer(part) for part in parts)
        if len(text):
            self._names = pa.StringArray.from_buffers(ends.size // 4 - 1, ends, text)


class KeyedTable:
    """Columns by sorted, distinct keys."""

    def __init__(self, **types: str) -> None:
        self.keys = np.zeros(0, dtype=np.int64)
        self.columns = {name: np.zeros(0, dtype=kind) for name, kind in types.items()}

    def __getitem__(self, column: str) -> np.ndarray:
        return self.columns[column]

    def has(self, keys: np.ndarray) -> np.ndarray:
        """Which of the sorted, distinct keys have rows."""
        return self._find(keys)[1]

    def rows_of(self, keys: np.ndarray) -> np.ndarray:
        """The rows of sorted, distinct keys; new keys get rows of zeros."""
        rows, is_there = self._find(keys)
        if is_there.all():
            return rows
        new = ~is_there
        for name, values in self.columns.items():
            self.columns[name] = np.insert(values, rows[new], 0, axis=0)
        self.keys = np.insert(self.keys, rows[new], keys[new])
        return np.searchsorted(self.keys, keys)

    def _find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each key, the row that it has or would have, and whether it has one."""
        rows = np.searchsorted(self.keys, keys)
        is_there = np.zeros(len(keys), dtype=bool)
        inside = rows < len(self.keys)
        is_there[inside] = self.keys[rows[inside]] == keys[inside]
        return rows, is_there

    def keep(self, is_kept: np.ndarray) -> None:
        """Delete the other rows."""
        if not is_kept.all():
            self.keys = self.keys[is_kept]
            self.columns = {name: values[is_kept] for name, values in self.columns.items()}

    def parts(self) -> list[bytes]:
        """Everything as bytes: the keys and each column."""
        return [values.tobytes() for values in (self.keys, *self.columns.values())]

    def load(self, parts: list[memoryview]) -> None:
        """The inverse of ``parts``."""
        self.keys = np.frombuffer(parts[0], np.int64).copy()
        for (name, values), part in zip(self.columns.items(), parts[1:], strict=True):
            self.columns[name] = np.frombuffer(part, values.dtype).reshape(-1, *values.shape[1:]).copy()


class HomeTables:
    """The state of a block of homes."""

    def __init__(self) -> None:
        self.homes, self.sensors, self.rooms = Names(), Names(), Names()
        self.by_home = KeyedTable(latest_sent_ms="i8", next_day="i4", activity="(24,)u1")
        """By home alone, so a home's number is its row. ``next_day``: the day after the one on the page; 0:
        none yet. ``activity``: readings in each hour of that day, counted up to the last of
        ``ACTIVITY_LEVELS``."""
        self.numbers = KeyedTable(highest="i8", bits="u8")
        """By sensor: its highest number, and a bit for each of the numbers below it: has it come?"""
        self.doors = KeyedTable(number="i8", taken_ms="i8", is_known="u1", is_open="u1", is_raised="u1")
        """By sensor: number and time of its last change (``is_known``: there was one), whether it is open,
        and whether that raised an alarm."""
        self.over = KeyedTable(is_over="u1")
        """By sensor: whether carbon monoxide was over the limit."""
        self.minutes = KeyedTable(
            **dict.fromkeys(("readings", "motions", "openings", "duplicates"), "i4"),
            is_co_measured="u1",
            co_max_ppm="f8",
        )
        """By minute since 1970: the minutes for which readings may still come."""
        self.hours = KeyedTable(bits="u4")
        """By room: a bit for each hour of the day with motion in it."""
        self.alarms = KeyedTable(raised_ms="i8", kind="u1", sensor="i4")
        """By home and a number from 0 on: its newest alarms, by time."""

    def encode(self) -> bytes:
        """The state as bytes."""
        parts = [part for value in self._values() for part in value.parts()]
        lengths = np.array([len(part) for part in parts], dtype=np.int64)
        content = b"".join([lengths.tobytes(), *parts])
        compressed: bytes = pa.compress(content, _COMPRESSION, asbytes=True)
        return _HEAD.pack(_FORMAT, len(content)) + compressed

    @classmethod
    def decode(cls, state: bytes) -> HomeTables:
        """The inverse of ``encode``. Raises InvalidArgumentError for another version's bytes."""
        if state[:1] != bytes([_FORMAT]):
            raise InvalidArgumentError(
                f"The checkpoint directory holds state of homes in the format {state[0] if state else None}, "
                f"and this version reads the format {_FORMAT} only.",
                next_step="Start again with an empty checkpoint directory, an empty database and an empty "
                "place of summaries.",
            )
        tables = cls()
        _, size = _HEAD.unpack_from(state)
        content = memoryview(pa.decompress(memoryview(state)[_HEAD.size :], size, _COMPRESSION))
        values = tables._values()
        counts = [2 if isinstance(value, Names) else 1 + len(value.columns) for value in values]
        position = 8 * sum(counts)
        parts: list[memoryview] = []
        for length in np.frombuffer(content, np.int64, sum(counts)).tolist():
            parts.append(content[position : position + length])
            position += length
        for value, count in zip(values, counts, strict=True):
            mine, parts = parts[:count], parts[count:]
            value.load(mine)
        return tables

    def _values(self) -> list[Names | KeyedTable]:
        return list(vars(self).values())
