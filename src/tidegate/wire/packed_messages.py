"""Encoded messages in one buffer, cut out only on access.

A batched delivery is such a buffer. Only code that needs single messages pays for cutting them out; code that
works on whole columns (Spark's) does not.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import overload

from tidegate.amqp.errors import DecodeError
from tidegate.wire.batch import DATA_SECTION_8, DATA_SECTION_32

_two_u32 = struct.Struct(">II").unpack_from
_HEADER_32_BYTES = 8
_HEADER_8_BYTES = 5
_WORD_32 = DATA_SECTION_32.to_bytes(4, "big")
_WORD_8 = DATA_SECTION_8.to_bytes(4, "big")


class PackedMessages(Sequence[bytes | memoryview]):
    """The messages ``payload[start:end]``, ascending, without overlap."""

    __slots__ = ("ends", "payload", "starts")

    def __init__(self, payload: bytes, starts: Sequence[int], ends: Sequence[int]) -> None:
        self.payload = payload
        self.starts = starts
        self.ends = ends

    @property
    def size_bytes(self) -> int:
        """The bytes of all messages, and of the section headers between them."""
        return self.ends[-1] - self.starts[0] if len(self.ends) else 0

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[bytes]:
        # Copies: small objects may outlive the delivery one by one, and are faster to work on than views.
        return map(self.payload.__getitem__, map(slice, self.starts, self.ends))

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> PackedMessages: ...
    def __getitem__(self, index: int | slice) -> bytes | PackedMessages:
        if isinstance(index, slice):
            return PackedMessages(self.payload, self.starts[index], self.ends[index])
        return self.payload[self.starts[index] : self.ends[index]]

    def __repr__(self) -> str:
        return f"<PackedMessages {len(self)} in {self.size_bytes} bytes>"

    @classmethod
    def joined(cls, parts: Sequence[PackedMessages]) -> PackedMessages:
        """All parts, in order, in a new buffer."""
        parts = [part for part in parts if len(part)]
        return _joined_of_equal_size(parts) or _joined_of_any_size(parts)


def _joined_of_equal_size(parts: Sequence[PackedMessages]) -> PackedMessages | None:
    """Joins parts whose messages, and headers before them, all have one size; else None."""
    shapes = {
        (part.starts.step, part.ends[0] - part.starts[0]) if isinstance(part.starts, range) else None
        for part in parts
    }
    shape = shapes.pop() if len(shapes) == 1 else None
    if shape is None:
        return None
    stride, header = shape[0], shape[0] - shape[1]
    if header not in (_HEADER_8_BYTES, _HEADER_32_BYTES):
        return None  # some messages between them are omitted
    payload = b"".join(memoryview(part.payload)[part.starts[0] - header : part.ends[-1]] for part in parts)
    return PackedMessages(
        payload, range(header, len(payload), stride), range(stride, len(payload) + 1, stride)
    )


def _joined_of_any_size(parts: Sequence[PackedMessages]) -> PackedMessages:
    pieces: list[memoryview] = []
    starts: list[int] = []
    ends: list[int] = []
    size = 0
    for part in parts:
        moved = size - part.starts[0]
        pieces.append(memoryview(part.payload)[part.starts[0] : part.ends[-1]])
        starts += [start + moved for start in part.starts]
        ends += [end + moved for end in part.ends]
        size += part.size_bytes
    return PackedMessages(b"".join(pieces), starts, ends)


def messages_of_sections(payload: bytes, at: int) -> PackedMessages:
    """The encoded messages in the data sections from ``at`` to the end.

    Raises DecodeError if the bytes are not whole data sections.
    """
    return _messages_of_equal_size(payload, at) or _messages_of_any_size(payload, at)


def _messages_of_equal_size(payload: bytes, at: int) -> PackedMessages | None:
    """Handles sections that all start with the first one's header, at equal distances; else None.

    Messages of one device often have one size; checking that costs one comparison per byte of the header.
    """
    word, size = payload[at : at + 4], payload[at + 4 : at + _HEADER_32_BYTES]
    if word == _WORD_32 and len(size) == 4:
        header = word + size
    elif word == _WORD_8:
        header, size = word + size[:1], size[:1]
    else:
        return None
    stride = len(header) + int.from_bytes(size, "big")
    count, rest = divmod(len(payload) - at, stride)
    if rest or stride == len(header):
        return None
    for index in range(len(header)):
        if payload[at + index :: stride] != header[index : index + 1] * count:
            return None
    return PackedMessages(
        payload,
        range(at + len(header), len(payload), stride),
        range(at + stride, len(payload) + 1, stride),
    )


def _messages_of_any_size(payload: bytes, at: int) -> PackedMessages:
    starts: list[int] = []
    ends: list[int] = []
    add_start, add_end, unpack, until = starts.append, ends.append, _two_u32, len(payload)
    while at < until:
        try:
            word, size = unpack(payload, at)
        except struct.error:
            word, size = _last_header(payload, at)
        if word == DATA_SECTION_32:
            at += _HEADER_32_BYTES
        elif word == DATA_SECTION_8:
            at, size = at + _HEADER_8_BYTES, size >> 24
        else:
            raise DecodeError(f"Byte {at} of a batched delivery does not start a data section.")
        add_start(at)
        at += size
        add_end(at)
    if at != until:
        raise DecodeError(f"A batched delivery ends {at - until} bytes before its last event does.")
    return PackedMessages(payload, starts, ends)


def _last_header(payload: bytes, at: int) -> tuple[int, int]:
    """A section's first eight bytes if the delivery ends within them, as after a very short event."""
    try:
        word, size = _two_u32(payload[at:] + b"\0\0\0")
    except struct.error as exc:
        raise DecodeError("A batched delivery ends inside the header of a section.") from exc
    return word, size


def packed(messages: Sequence[bytes | memoryview]) -> PackedMessages:
    """The messages in one buffer: unchanged if they share one, else copied end to end."""
    if isinstance(messages, PackedMessages):
        return messages
    ends: list[int] = []
    at = 0
    for message in messages:
        at += len(message)
        ends.append(at)
    return PackedMessages(b"".join(messages), list(chain((0,), ends[:-1])) if ends else [], ends)
