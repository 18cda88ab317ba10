"""Encoded events become Arrow columns: by whole columns, never through a Python object per event.

Theory of operation. An encoded event is a prefix (annotations, properties) and a body, mostly one data
section. The prefix is looked at as bytes: events of one producer share theirs, or differ in a partition key,
so each distinct prefix is decoded once per batch and its columns are spread over the events with ``take``.
Bodies are cut out and laid end to end in one buffer. Only an event of another shape (a value body, a footer,
several data sections) is decoded by itself.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.amqp.errors import DecodeError
from tidegate.spark.schema import ENCODED_EVENT_ARROW_SCHEMA, EVENT_ARROW_SCHEMA
from tidegate.wire.batch import DATA_SECTION_8, DATA_SECTION_32
from tidegate.wire.encoded_events import EncodedEvents
from tidegate.wire.event_texts import EventTexts, decode_whole

_BINARY_BYTES_MAX = 2**31 - 1

if TYPE_CHECKING:
    Column = pa.Array[Any]


def event_batch(partition_id: str, events: EncodedEvents) -> pa.RecordBatch:
    """The columns of ``EVENT_SCHEMA``."""
    contents = _Contents()
    for message in events.messages:
        contents.add(message)
    return pa.RecordBatch.from_arrays(
        [
            contents.body_column(),
            *_position_columns(partition_id, events),
            contents.spread([item.publisher for item in contents.distinct], pa.string()),
            contents.spread([item.partition_key for item in contents.distinct], pa.string()),
            contents.spread(
                [list(item.properties.items()) for item in contents.distinct],
                EVENT_ARROW_SCHEMA.field("properties").type,
            ),
            contents.spread(
                [list(item.system_properties.items()) for item in contents.distinct],
                EVENT_ARROW_SCHEMA.field("systemProperties").type,
            ),
        ],
        schema=EVENT_ARROW_SCHEMA,
    )


def encoded_event_batch(partition_id: str, events: EncodedEvents) -> pa.RecordBatch:
    """The columns of ``ENCODED_EVENT_SCHEMA``."""
    return pa.RecordBatch.from_arrays(
        [*_position_columns(partition_id, events), binary_column(events.messages)],
        schema=ENCODED_EVENT_ARROW_SCHEMA,
    )


def binary_column(values: Sequence[bytes | memoryview]) -> Column:
    """Values laid end to end in one buffer, together less than 2 GiB."""
    lengths = np.fromiter(map(len, values), dtype=np.int64, count=len(values))
    return _binary_from_buffer(lengths, b"".join(values))


@dataclass(slots=True)
class _Contents:
    """Bodies, and for each the number of its prefix among the distinct ones."""

    bodies: list[bytes | memoryview | None] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    distinct: list[EventTexts] = field(default_factory=list)
    _numbers: dict[bytes, int] = field(default_factory=dict)

    def add(self, message: bytes | memoryview) -> None:
        """Take one encoded event apart."""
        place = find_body(message)
        if place is None:
            self._add_decoded(message)
            return
        prefix_end, start = place
        prefix = bytes(message[:prefix_end])
        number = self._numbers.get(prefix)
        if number is None:
            try:
                decoded = EventTexts.decode(prefix)
            except (DecodeError, ValueError, OverflowError):  # garbage, or a time that no calendar has
                self._add_decoded(message)
                return
            number = self._numbers[prefix] = len(self.distinct)
            self.distinct.append(decoded)
        self.indices.append(number)
        self.bodies.append(message[start:])

    def _add_decoded(self, message: bytes | memoryview) -> None:
        self.indices.append(len(self.distinct))
        prefix, body = decode_whole(message)
        self.distinct.append(prefix)
        self.bodies.append(body)

    def body_column(self) -> Column:
        """The bodies; null for those that could not be decoded."""
        if None in self.bodies:
            return pa.array([None if body is None else bytes(body) for body in self.bodies], type=pa.binary())
        return binary_column([body for body in self.bodies if body is not None])

    def spread(self, values: Sequence[object], data_type: pa.DataType) -> Column:
        """A column from a value per distinct prefix."""
        column = pa.array(values, type=data_type)
        if len(values) == len(self.indices):
            return column  # each event brought its own: the numbers are 0, 1, 2, …
        return column.take(pa.array(self.indices, type=pa.int32()))


_Place = tuple[int, int]
_two_u32 = struct.Struct(">II").unpack_from


def find_body(message: bytes | memoryview) -> _Place | None:
    """(end of the prefix, start of the body) of an event whose body is one data section and its last section.

    None for every other shape, garbled ones included: those are for the full decoder.
    Source: AMQP 1.0 part 1 section 1.6 (sizes of binary, list and map), part 3 section 3.2.
    """
    at, until = 0, len(message)
    last_word = until - 8
    while at <= last_word:
        word, size = _two_u32(message, at)
        if word == DATA_SECTION_32:
            return (at, at + 8) if at + 8 + size == until else None
        if word == DATA_SECTION_8:
            return (at, at + 5) if at + 5 + (size >> 24) == until else None
        if not 0x005370 <= word >> 8 <= 0x005374 or word & 0xC0 != 0xC0:
            return None
        # A list or a map with a size of one byte or, where bit 4 is set, of four.
        at += 8 + size if word & 0x10 else 5 + (size >> 24)
    return None


def _position_columns(partition_id: str, events: EncodedEvents) -> list[Column]:
    """partition, offset, sequenceNumber, enqueuedTime."""
    count = len(events.messages)
    sequence_numbers = np.fromiter(events.sequence_numbers, dtype=np.int64, count=count)
    times_us = np.fromiter(events.enqueued_times_ms, dtype=np.int64, count=count) * 1000
    return [
        pa.repeat(pa.scalar(partition_id, pa.string()), count),
        _offset_column(events),
        pa.array(sequence_numbers),
        pa.array(times_us).cast(EVENT_ARROW_SCHEMA.field("enqueuedTime").type),
    ]


def _offset_column(events: EncodedEvents) -> Column:
    numbers = events.sequence_numbers
    if (
        isinstance(numbers, range)
        and events.offsets[0] == str(numbers[0])
        and (events.offsets[-1] == str(numbers[-1]))
    ):
        # Batched deliveries come from Tidegate only, whose offsets are its sequence numbers.
        return pa.array(np.arange(numbers.start, numbers.stop)).cast(pa.string())
    return pa.array(events.offsets, type=pa.string())


def _binary_from_buffer(lengths: npt.NDArray[np.int64], data: bytes) -> Column:
    assert len(data) <= _BINARY_BYTES_MAX
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.Array.from_buffers(
        pa.binary(), len(lengths), [None, pa.py_buffer(offsets.data), pa.py_buffer(data)]
    )
