"""Encodes and decodes transfer frames without a dataclass each.

Transfers are the only frames that come by the million; everything else uses ``performatives``. Encoded:
always eleven fields (the official Python client finds the payload at index 11), in one layout. Decoded: that
layout in one ``struct`` call, other usual encodings field by field, and any other by the general decoder,
which also raises the errors.
Source: AMQP 1.0 part 2 section 2.7.5.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tidegate.amqp.errors import DecodeError
from tidegate.amqp.events import Delivery
from tidegate.amqp.performatives import Transfer, decode_performative

Payload = bytes | bytearray | memoryview
"""Bytes to send; must not change until ``data_to_send`` returned them."""

DELIVERY_TAG_BYTES_MAX: Final = 32
"""AMQP 1.0 part 2 section 2.8.7."""

BATCH_HEAD_BYTES: Final = 42
"""Frame header and performative of a transfer with a tag of four bytes, as ``batch_head`` packs it."""

batch_head: Final = struct.Struct(">I16sI2sI12s").pack
"""(frame size, ``batch_front``, delivery id, ``TAG_OF_4``, tag, ``batch_tail``) -> a delivery's head."""

TAG_OF_4: Final = b"\xa0\x04"

_TRANSFER: Final = b"\x00\x53\x14"
_LAST_FIELDS: Final = b"\x40\x40\x42\x42\x42"
"""rcv-settle-mode and state null; resume, aborted, batchable false."""

_u32 = struct.Struct(">I").unpack_from
_pack_u32 = struct.Struct(">I").pack
_pack_frame_header = struct.Struct(">IBBH").pack


def batch_front(channel: int, handle: int) -> bytes:
    """The bytes between frame size and delivery id in every transfer of a link (16 bytes)."""
    return struct.pack(">BBH3sBBBBIB", 2, 0, channel, _TRANSFER, 0xC0, 0x1D, 11, 0x70, handle, 0x70)


def batch_tail(message_format: int, *, settled: bool) -> bytes:
    """The bytes between tag and payload of a delivery in one frame (12 bytes)."""
    return b"\x70" + _pack_u32(message_format) + (b"\x41\x42" if settled else b"\x42\x42") + _LAST_FIELDS


def transfer_head(
    delivery_id: int, delivery_tag: bytes, message_format: int, handle: int, *, settled: bool, more: bool
) -> bytes:
    fields = b"".join(
        (
            b"\x70",
            _pack_u32(handle),
            b"\x70",
            _pack_u32(delivery_id),
            bytes((0xA0, len(delivery_tag))),
            delivery_tag,
            b"\x70",
            _pack_u32(message_format),
            b"\x41" if settled else b"\x42",
            b"\x41" if more else b"\x42",
            _LAST_FIELDS,
        )
    )
    return _TRANSFER + bytes((0xC0, len(fields) + 1, 11)) + fields


def split_delivery(
    buffers: Sequence[Payload],
    *,
    channel: int,
    handle: int,
    delivery_id: int,
    delivery_tag: bytes,
    message_format: int,
    settled: bool,
    frame_bytes_max: int,
) -> list[list[Payload]]:
    """The frames of one delivery, each a list of buffers; the payload is sliced, not copied."""
    head = transfer_head(delivery_id, delivery_tag, message_format, handle, settled=settled, more=False)
    room = frame_bytes_max - 8 - len(head)
    total = sum(map(len, buffers))
    if total <= room:
        return [[_pack_frame_header(8 + len(head) + total, 2, 0, channel) + head, *buffers]]
    head_with_more = transfer_head(
        delivery_id, delivery_tag, message_format, handle, settled=settled, more=True
    )
    frames: list[list[Payload]] = []
    for piece in _pieces(buffers, room):
        total -= room
        size = 8 + len(head) + sum(map(len, piece))
        start = _pack_frame_header(size, 2, 0, channel) + (head_with_more if total > 0 else head)
        frames.append([start, *piece])
    return frames


def _pieces(buffers: Sequence[Payload], room: int) -> Iterator[list[Payload]]:
    """Lists of slices, ``room`` bytes each; the last may be shorter."""
    piece: list[Payload] = []
    left = room
    for buffer in buffers:
        view = memoryview(buffer)
        while len(view) > left:
            piece.append(view[:left])
            view = view[left:]
            yield piece
            piece, left = [], room
        piece.append(view)
        left -= len(view)
    if piece:
        yield piece


class IncomingTransfer(NamedTuple):
    """The fields of a transfer that are used here."""

    handle: int
    delivery_id: int | None
    delivery_tag: bytes | None
    message_format: int | None
    settled: bool | None
    more: bool
    is_aborted: bool
    payload_start: int


_OWN_FRAME: Final = struct.Struct(">I16sI2s4s12s")
"""``batch_head``'s layout: frame size, ``batch_front``, delivery id, ``TAG_OF_4``, tag, ``batch_tail``."""

_OWN_START: Final = _TRANSFER + b"\xc0\x1d\x0b\x70"
_OWN_END: Final = b"\x41\x42" + _LAST_FIELDS


def is_own_transfer(data: bytes, position: int) -> bool:
    """Whether the frame at ``position`` starts like ``batch_head``'s: worth trying ``take_run``."""
    return data[position + 8 : position + 15] == _OWN_START


def run_address(data: bytes, position: int) -> tuple[int, int]:
    """Channel and handle of the frame at ``position``, if ``is_own_transfer``; else arbitrary numbers."""
    return int.from_bytes(data[position + 6 : position + 8], "big"), int.from_bytes(
        data[position + 15 : position + 19], "big"
    )


def take_run(
    data: bytes, position: int, frame_bytes_max: int, count_max: int, bytes_max: int
) -> tuple[list[Delivery], int]:
    """Consecutive settled deliveries of one link, each in one whole frame with the layout of ``batch_head``.

    Starts at ``position``; returns them, and the position after them. Ends before the first frame that
    differs, after ``count_max`` deliveries, or after the one that reaches ``bytes_max``.
    """
    deliveries: list[Delivery] = []
    limit = len(data)
    # The bytes that all frames of a run share, before and after delivery id and tag.
    front, tail = data[position + 4 : position + 20], data[position + 30 : position + 42]
    if front[:2] != b"\x02\x00" or front[15:] != b"\x70" or tail[:1] != b"\x70" or tail[5:] != _OWN_END:
        return deliveries, position
    message_format = int.from_bytes(tail[1:5], "big")
    unpack, tag_of_4, new, head_bytes = _OWN_FRAME.unpack_from, TAG_OF_4, tuple.__new__, BATCH_HEAD_BYTES
    append = deliveries.append
    last_start = min(limit - head_bytes, position + bytes_max - 1)
    while position <= last_start and count_max:
        size, frame_front, delivery_id, tag_code, tag, frame_tail = unpack(data, position)
        end = position + size
        if (
            frame_front != front
            or frame_tail != tail
            or tag_code != tag_of_4
            or end > limit
            or not head_bytes <= size <= frame_bytes_max
        ):
            break
        append(new(Delivery, (delivery_id, tag, message_format, True, data[position + head_bytes : end])))
        position = end
        count_max -= 1
    return deliveries, position


def is_transfer(data: bytes, start: int) -> bool:
    """Whether the performative at ``start`` is a transfer with the usual descriptor."""
    return data[start : start + 3] == _TRANSFER


def parse_transfer(data: bytes, start: int, until: int) -> IncomingTransfer:
    """The transfer whose performative starts at ``start`` in a frame that ends at ``until``.

    Raises DecodeError if it is invalid.
    """
    parsed = _parse_usual(data, start, until)
    if parsed is not None:
        return parsed
    performative, end = decode_performative(memoryview(data)[start:until])
    if not isinstance(performative, Transfer):
        raise DecodeError(f"Expected a transfer, got {type(performative).__name__}.")
    return IncomingTransfer(
        performative.handle,
        performative.delivery_id,
        performative.delivery_tag,
        performative.message_format,
        performative.settled,
        performative.more,
        performative.aborted,
        start + end,
    )


def _parse_usual(data: bytes, start: int, until: int) -> IncomingTransfer | None:
    """Decodes usual encodings; None for any other, which the general decoder checks."""
    try:
        # The list's header, with a size of 8 or 32 bits.
        code = data[start + 3]
        if code == 0xC0:
            end, count, position = start + 5 + data[start + 4], data[start + 5], start + 6
        elif code == 0xD0:
            end, count, position = (
                start + 8 + _u32(data, start + 4)[0],
                _u32(data, start + 8)[0],
                start + 12,
            )
        else:
            return None
        if end > until or count > 11:
            return None
        values: list[int | bytes | bool | None] = []
        # The fields: null, false, true, integers, binary.
        for _ in range(count):
            code = data[position]
            position += 1
            if code == 0x40:
                values.append(None)
            elif code == 0x42:
                values.append(False)
            elif code == 0x41:
                values.append(True)
            elif code == 0x43:
                values.append(0)
            elif code == 0x52 or code == 0x50:
                values.append(data[position])
                position += 1
            elif code == 0x70:
                values.append(_u32(data, position)[0])
                position += 4
            elif code == 0xA0:
                length = data[position]
                values.append(data[position + 1 : position + 1 + length])
                position += 1 + length
            else:
                return None
    except (IndexError, struct.error):
        return None
    if position != end:
        return None
    return _checked(values, end)


def _checked(values: list[int | bytes | bool | None], payload_start: int) -> IncomingTransfer | None:
    """The fields, if each has its type; else None."""
    values += [None] * (11 - len(values))
    handle, delivery_id, delivery_tag, message_format, settled, more, _, state, _, aborted, _ = values
    if (
        type(handle) is int
        and (delivery_id is None or type(delivery_id) is int)
        and (delivery_tag is None or type(delivery_tag) is bytes)
        and (message_format is None or type(message_format) is int)
        and (settled is None or type(settled) is bool)
        and (more is None or type(more) is bool)
        and (aborted is None or type(aborted) is bool)
        and state is None
    ):
        return IncomingTransfer(
            handle,
            delivery_id,
            delivery_tag,
            message_format,
            settled,
            more is True,
            aborted is True,
            payload_start,
        )
    return None
