"""The sparse index of a segment: about one entry per 64 KB of log, by sequence number and by enqueued time.

It only provides a starting point for a search, and can be rebuilt from the segment at any time; a sealed
segment's index is kept in a file beside it, so that a look-up need not read the segment. Its checksum is
that of the segment (log, base and salt), so that the index of another segment counts as damaged.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from typing import Final

import google_crc32c

_MAGIC = b"TIDEIDX1"
_HEADER = struct.Struct("<8sIqqqq")
_CRC = struct.Struct("<I")
ENTRY_BYTES: Final = 24
NO_TIME: Final = -(2**63)
"""Stands for "no batch yet" as a time."""


class SparseIndex:
    """Entries (sequence number, enqueued time, position), ascending; and where the segment's batches end.

    One thread appends while another looks up: positions are appended last, and look-ups go by their number.
    """

    __slots__ = (
        "_interval_bytes",
        "_positions",
        "_sequence_numbers",
        "_times",
        "end_position",
        "last_time_ms",
        "until_sequence_number",
    )

    def __init__(self, interval_bytes: int, *, start_position: int, base_sequence_number: int) -> None:
        self._interval_bytes = interval_bytes
        self._sequence_numbers = array("q")
        self._times = array("q")
        self._positions = array("q")
        self.end_position = start_position
        """The position after the last batch."""
        self.until_sequence_number = base_sequence_number
        self.last_time_ms = NO_TIME
        """Enqueued time of the last batch, in milliseconds; NO_TIME if there is none."""

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def is_empty(self) -> bool:
        """Whether the segment holds no batch."""
        return not self._positions

    @property
    def first_time_ms(self) -> int:
        """Enqueued time of the first batch, in milliseconds; NO_TIME if there is none."""
        return self._times[0] if self._positions else NO_TIME

    def add_batch(
        self, base_sequence_number: int, until_sequence_number: int, time_ms: int, position: int, length: int
    ) -> None:
        """Record a batch after the others; one per interval becomes an entry."""
        if not self._positions or position - self._positions[-1] >= self._interval_bytes:
            self._sequence_numbers.append(base_sequence_number)
            self._times.append(time_ms)
            self._positions.append(position)
        self.end_position = position + length
        self.until_sequence_number = until_sequence_number
        self.last_time_ms = time_ms

    def find_sequence_number(self, sequence_number: int) -> int:
        """A batch position at or before the batch with ``sequence_number``; the index must not be empty."""
        count = len(self._positions)
        return self._positions[max(bisect_right(self._sequence_numbers, sequence_number, 0, count) - 1, 0)]

    def find_time(self, time_ms: int) -> int:
        """A batch position at or before the first batch with a time of ``time_ms`` or later."""
        count = len(self._positions)
        return self._positions[max(bisect_left(self._times, time_ms, 0, count) - 1, 0)]

    def encode(self, seed: int) -> bytes:
        """The index as bytes, with a checksum for the segment of this seed."""
        header = _HEADER.pack(
            _MAGIC,
            len(self._positions),
            self._interval_bytes,
            self.end_position,
            self.until_sequence_number,
            self.last_time_ms,
        )
        body = self._sequence_numbers.tobytes() + self._times.tobytes() + self._positions.tobytes()
        return header + body + _CRC.pack(google_crc32c.extend(seed, header + body))

    @classmethod
    def decode(cls, data: bytes, seed: int) -> SparseIndex | None:
        """The index in ``data``; None if it is not intact, or of another segment."""
        if len(data) < _HEADER.size + _CRC.size or data[:8] != _MAGIC:
            return None
        content = data[: -_CRC.size]
        if _CRC.unpack(data[-_CRC.size :])[0] != google_crc32c.extend(seed, content):
            return None
        _, count, interval, end_position, until, last_time = _HEADER.unpack_from(content)
        if len(content) != _HEADER.size + ENTRY_BYTES * count:
            return None
        index = cls(interval, start_position=end_position, base_sequence_number=until)
        index.last_time_ms = last_time
        for number, column in enumerate((index._sequence_numbers, index._times, index._positions)):
            start = _HEADER.size + 8 * count * number
            column.frombytes(content[start : start + 8 * count])
        return index
