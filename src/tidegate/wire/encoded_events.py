"""Events before decoding, as a consumer holds them: positions beside encoded messages.

Created from either kind of delivery (``wire.delivery``). Batches stay cheap: sequence numbers are a range,
and offsets and messages are created on access.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import overload

from tidegate.amqp.decode import Buffer, decode_value
from tidegate.amqp.errors import DecodeError
from tidegate.amqp.message import MESSAGE_ANNOTATIONS, iter_sections
from tidegate.wire.annotations import ANNOTATIONS_32
from tidegate.wire.delivery import (
    ENQUEUED_TIME_KEY,
    HEADER_8,
    OFFSET_KEY,
    SEQUENCE_NUMBER_KEY,
)
from tidegate.wire.names import ENQUEUED_TIME, EVENT_COUNT, OFFSET, SEQUENCE_NUMBER
from tidegate.wire.packed_messages import PackedMessages, messages_of_sections

_two_u32 = struct.Struct(">II").unpack_from
_s64 = struct.Struct(">q").unpack_from


class _OffsetsOf(Sequence[str]):
    """The offsets of this service's events: their sequence numbers as text."""

    __slots__ = ("_numbers",)

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[str]:
        return map(str, self._numbers)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return _OffsetsOf(self._numbers[index])
        return str(self._numbers[index])

    def __repr__(self) -> str:
        return f"<offsets of {self._numbers!r}>"


@dataclass(frozen=True, slots=True)
class EncodedEvents:
    """Consecutive events of one partition, as columns of equal length. Every column is fast to iterate."""

    sequence_numbers: Sequence[int] = ()
    enqueued_times_ms: Sequence[int] = ()
    """Milliseconds since 1970-01-01 UTC."""
    offsets: Sequence[str] = ()
    """Opaque."""
    messages: Sequence[bytes | memoryview] = ()
    """For ``event_codec.decode_event``."""

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def size_bytes(self) -> int:
        """The bytes of all messages; of packed ones including the bytes between them."""
        if isinstance(self.messages, PackedMessages):
            return self.messages.size_bytes
        return sum(map(len, self.messages))

    def __getitem__(self, part: slice) -> EncodedEvents:
        return EncodedEvents(
            self.sequence_numbers[part], self.enqueued_times_ms[part], self.offsets[part], self.messages[part]
        )

    @classmethod
    def joined(cls, parts: Sequence[EncodedEvents]) -> EncodedEvents:
        """All parts as one, in order."""
        if len(parts) == 1:
            return parts[0]
        numbers = _joined_numbers([part.sequence_numbers for part in parts])
        return cls(
            numbers,
            list(chain.from_iterable(part.enqueued_times_ms for part in parts)),
            _OffsetsOf(numbers)
            if all(isinstance(part.offsets, _OffsetsOf) for part in parts)
            else list(chain.from_iterable(part.offsets for part in parts)),
            _joined_messages([part.messages for part in parts]),
        )


def _joined_numbers(parts: Sequence[Sequence[int]]) -> Sequence[int]:
    """A range if the parts are consecutive ranges; else a list."""
    ranges = [part for part in parts if isinstance(part, range) and part.step == 1]
    if len(ranges) == len(parts) > 0 and all(a.stop == b.start for a, b in pairwise(ranges)):
        return range(ranges[0].start, ranges[-1].stop)
    return list(chain.from_iterable(parts))


def _joined_messages(parts: Sequence[Sequence[bytes | memoryview]]) -> Sequence[bytes | memoryview]:
    packed = [part for part in parts if isinstance(part, PackedMessages)]
    return PackedMessages.joined(packed) if len(packed) == len(parts) else [*chain.from_iterable(parts)]


def events_of_batch(payload: bytes) -> EncodedEvents:
    """The events of one batched delivery.

    Raises DecodeError if the bytes are not such a delivery, or hold another number of events than stated.
    """
    annotations: dict[object, object] = {}
    at = 0
    for code, start, value_start, end in iter_sections(payload):
        if code != MESSAGE_ANNOTATIONS:
            at = start
            break
        annotations, at = _annotations(payload, value_start), end
    first = _integer(annotations, SEQUENCE_NUMBER)
    time_ms = _integer(annotations, ENQUEUED_TIME)
    messages = messages_of_sections(payload, at)
    if len(messages) != _integer(annotations, EVENT_COUNT):
        raise DecodeError(
            f"A batched delivery declares {annotations[EVENT_COUNT]} events, and has {len(messages)}."
        )
    numbers = range(first, first + len(messages))
    return EncodedEvents(numbers, [time_ms] * len(messages), _OffsetsOf(numbers), messages)


def events_of_deliveries(payloads: Iterable[bytes]) -> EncodedEvents:
    """The events of deliveries of one event each, as any Event Hubs service sends them.

    Raises DecodeError if one of them is not a message, or lacks its position in the partition.
    """
    numbers: list[int] = []
    times_ms: list[int] = []
    offsets: list[str] = []
    messages: list[bytes | memoryview] = []
    for payload in payloads:
        messages.append(payload)
        position = _position_by_layout(payload)
        if position is not None:
            numbers.append(position[0])
            times_ms.append(position[1])
            offsets.append(position[2])
            continue
        annotations: dict[object, object] = {}
        for code, _, value_start, _ in iter_sections(payload):
            if code == MESSAGE_ANNOTATIONS:
                annotations = _annotations(payload, value_start)
                break
        numbers.append(_integer(annotations, SEQUENCE_NUMBER))
        times_ms.append(_integer(annotations, ENQUEUED_TIME))
        offsets.append(str(annotations.get(OFFSET, "")))
    return EncodedEvents(numbers, times_ms, offsets, messages)


def _position_by_layout(payload: bytes) -> tuple[int, int, str] | None:
    """Sequence number, enqueued time and offset, if they are laid out as ``delivery.event_deliveries`` does.

    None for any other layout. They must be the last entries of the annotations, up to the map's very end, so
    that nothing a producer wrote can be mistaken for them.
    """
    try:
        word, size = _two_u32(payload)
        at = 0
        if word == HEADER_8:
            at = 5 + (size >> 24)
            word, size = _two_u32(payload, at)
        if word != ANNOTATIONS_32:
            return None
        # Find our first entry; the other two must follow, up to the end.
        end = at + 8 + size
        time_at = payload.rfind(ENQUEUED_TIME_KEY, at, end) + len(ENQUEUED_TIME_KEY)
        number_at = time_at + 8 + len(SEQUENCE_NUMBER_KEY)
        offset_at = number_at + 8 + len(OFFSET_KEY)
        if (
            time_at < len(ENQUEUED_TIME_KEY)
            or offset_at + 1 + payload[offset_at] != end
            or not payload.startswith(SEQUENCE_NUMBER_KEY, time_at + 8)
            or not payload.startswith(OFFSET_KEY, number_at + 8)
        ):
            return None
        offset = str(payload[offset_at + 1 : end], "utf-8")
        return _s64(payload, number_at)[0], _s64(payload, time_at)[0], offset
    except (struct.error, IndexError, UnicodeDecodeError):
        return None


def _annotations(payload: Buffer, value_start: int) -> dict[object, object]:
    value, _ = decode_value(payload, value_start)
    if not isinstance(value, dict):
        raise DecodeError(f"The message annotations hold a {type(value).__name__}.")
    return value


def _integer(annotations: dict[object, object], name: str) -> int:
    value = annotations.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise DecodeError(f"A delivery lacks its annotation {name}.")
    return int(value)
