"""The bytes of a capture file: identical whenever sync marker and events are the same.

So a file that is written again after a crash equals the one that it replaces. Does no I/O.
"""

from __future__ import annotations

import time
from array import array
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BytesIO
from typing import NamedTuple

from fastavro.write import Writer

from tidegate.amqp.errors import DecodeError, EncodeError
from tidegate.wire.batch import unwrap
from tidegate.wire.capture import (
    AVRO_SCHEMA,
    capture_record,
    enqueued_time_text,
    system_properties,
    undecodable_record,
)
from tidegate.wire.event_codec import decode_event

_BLOCK_BYTES = 64_000
"""Our choice: four times Avro's usual block, for bodies of some hundred bytes."""
_PIECE_EVENTS = 50
"""Our choice: 1 to 2 ms."""
_WORK_S = 0.004
"""Our choice: after this time the thread sleeps as long as it has encoded. So the event loop, which needs the
same interpreter lock, never waits longer for it, and Capture uses at most half a core."""
_PROPERTIES_AT_ONCE = 1_000
"""Our choice: an event's properties that C code writes without letting another thread run, in less than a
millisecond. An event may have 170,000."""


class AvroEncoder:
    """Makes a file of events, block by block: ``append``, ``take`` now and then, ``finish``."""

    def __init__(self, sync_marker: bytes) -> None:
        """sync_marker: between the file's blocks; 16 bytes that no event has."""
        self.event_count = 0
        self.undecodable_count = 0
        """Events that are not AMQP messages: the file has them as stored."""
        self._buffer = BytesIO()
        # Not parsed here: fastavro would then write the namespace as part of the name, unlike Azure.
        schema = dict(AVRO_SCHEMA)
        self._writer = Writer(self._buffer, schema, sync_interval=_BLOCK_BYTES, sync_marker=sync_marker)

    def append(
        self, start_sequence_number: int, enqueued_time_ms: int, payload: memoryview, lengths: Sequence[int]
    ) -> None:
        """Add events enqueued together. payload: stored sections, end to end; lengths: of each event."""
        time, write = enqueued_time_text(enqueued_time_ms), self._writer.write
        at = 0
        for number, length in enumerate(lengths, start_sequence_number):
            section = payload[at : at + length]
            at += length
            try:
                message = unwrap(section)
                system = system_properties(message, enqueued_time_ms)
                record = capture_record(number, time, decode_event(message), system)
            except (DecodeError, EncodeError):
                self.undecodable_count += 1
                record = undecodable_record(number, time, bytes(section), enqueued_time_ms=enqueued_time_ms)
            properties = record["Properties"]
            if isinstance(properties, dict) and len(properties) > _PROPERTIES_AT_ONCE:
                # fastavro reads any mapping but a dict through its methods, here Python code.
                write(record | {"Properties": UserDict(properties)})
            else:
                write(record)
        self.event_count += len(lengths)

    def take(self) -> bytes:
        """The bytes that are ready and not yet taken."""
        data = self._buffer.getvalue()
        self._buffer.seek(0)
        self._buffer.truncate()
        return data

    def finish(self) -> bytes:
        """The rest of the file."""
        self._writer.flush()
        return self.take()


class StoredEvents(NamedTuple):
    """Events enqueued together, as ``AvroEncoder.append`` gets them."""

    start_sequence_number: int
    enqueued_time_ms: int
    payload: memoryview
    lengths: array[int]

    def pieces(self) -> Iterator[StoredEvents]:
        """Of ``_PIECE_EVENTS``."""
        at = 0
        for first in range(0, len(self.lengths), _PIECE_EVENTS):
            lengths = self.lengths[first : first + _PIECE_EVENTS]
            until = at + sum(lengths)
            yield StoredEvents(
                self.start_sequence_number + first, self.enqueued_time_ms, self.payload[at:until], lengths
            )
            at = until


class Encoding:
    """Appends events to a file in a thread, with pauses (``_WORK_S``)."""

    def __init__(self, encoder: AvroEncoder, events: Iterable[StoredEvents]) -> None:
        self._encoder = encoder
        self._pieces = (piece for each in events for piece in each.pieces())
        self.is_done = False

    def run(self, is_wanted: Callable[[], bool]) -> bytes:
        """Append what is left, but after a pause only if the thread is not wanted for others.

        Returns the file's bytes that are ready.
        """
        begun_s = time.monotonic()
        for piece in self._pieces:
            self._encoder.append(*piece)
            worked_s = time.monotonic() - begun_s
            if worked_s >= _WORK_S:
                time.sleep(worked_s)
                if is_wanted():
                    break
                begun_s = time.monotonic()
        else:
            self.is_done = True
            time.sleep(time.monotonic() - begun_s)
        return self._encoder.take()
