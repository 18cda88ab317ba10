"""Encodes and decodes the frames that come by the million: transfers, what accepts them, and flows.

Everything else uses ``performatives``, as does what is unusual in these. An encoded transfer always has
eleven fields (the official Python client finds the payload at index 11), in one layout. Decoded: that
layout in one ``struct`` call, other usual encodings field by field, and any other by the general decoder,
which also raises the errors.
Source: AMQP 1.0 part 2 sections 2.7.4 to 2.7.6.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from tidegate.amqp.errors import DecodeError
from tidegate.amqp.events import Delivery
from tidegate.amqp.frames import encode_frame
from tidegate.amqp.performatives import (
    ROLE_RECEIVER,
    Accepted,
    Disposition,
    Flow,
    Transfer,
    decode_performative,
    encode_performative,
)

Payload = bytes | bytearray | memoryview
"""Bytes to send; must not change until ``data_to_send`` returned them."""

DELIVERY_TAG_BYTES_MAX: Final = 32
"""AMQP 1.0 part 2 section 2.8.7."""

BATCH_HEAD_BYTES: Final = 42
"""Frame header and performative of a transfer with a tag of four bytes, as ``batch_head`` packs it."""

batch_head: Final = struct.Struct(">I16sI2sI12s").pack
"""(frame size, ``batch_front``, delivery id, ``TAG_OF_4``, tag, ``batch_tail``) -> a delivery's head."""

TAG_OF_4: Final = b"\xa0\x04"

_FLOW: Final = b"\x00\x53\x13"
_TRANSFER: Final = b"\x00\x53\x14"
_LAST_FIELDS: Final = b"\x40\x40\x42\x42\x42"
"""rcv-settle-mode and state null; resume, aborted, batchable false."""

_ACCEPTED_START: Final = b"\x00\x53\x15\xc0\x12\x06\x41\x70"
_ACCEPTED_END: Final = b"\x41\x00\x53\x24\x45\x42"
"""Around the ids: the role of a receiver; settled, accepted, not batchable."""

_accepted_frame = struct.Struct(">IBBH8sIBI6s").pack
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


def accepted_frame(channel: int, first: int, last: int) -> bytes:
    """The disposition that accepts and settles deliveries that were received; both ids included."""
    if first < 256 or last < 256:  # a shorter encoding
        accepted = Disposition(role=ROLE_RECEIVER, first=first, last=last, settled=True, state=Accepted())
        return encode_frame(channel, encode_performative(accepted))
    return _accepted_frame(31, 2, 0, channel, _ACCEPTED_START, first, 0x70, last, _ACCEPTED_END)


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

_USUAL_START: Final = _TRANSFER + b"\xc0"
_USUAL_FRAME: Final = struct.Struct(">I4s4sBBB")
"""Frame size, the bytes up to the performative, ``_USUAL_START``, bytes and number of the fields, and the
first one's encoding."""
_USUAL_BYTES_MIN: Final = 32
"""A shorter frame is not looked at: its fields could end after the data."""

Run = tuple[int, list[Delivery]]
"""A handle, and consecutive deliveries on its link."""


def is_own_transfer(data: bytes, position: int) -> bool:
    """Whether the frame at ``position`` starts like ``batch_head``'s: worth trying ``take_run``."""
    return data[position + 8 : position + 15] == _OWN_START


def is_usual_transfer(data: bytes, position: int) -> bool:
    """Whether the frame at ``position`` starts like any client's transfers: worth trying ``take_usual``."""
    return data[position + 8 : position + 12] == _USUAL_START


def run_address(data: bytes, position: int) -> tuple[int, int]:
    """Channel and, if ``is_own_transfer``, handle of the frame at ``position``; else arbitrary numbers."""
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


def take_usual(
    data: bytes, position: int, frame_bytes_max: int, count_max: int, bytes_max: int
) -> tuple[list[Run], int]:
    """Consecutive deliveries on one channel, each in one whole frame, with the fields that clients write.

    Otherwise as ``take_run``. A frame that differs may still be valid.
    """
    runs: list[Run] = []
    limit, front, last_handle = len(data), data[position + 4 : position + 8], -1
    if front[:2] != b"\x02\x00":
        return runs, position
    last_start = min(limit - _USUAL_BYTES_MIN, position + bytes_max - 1)
    unpack, u32, new = _USUAL_FRAME.unpack_from, _u32, tuple.__new__
    while position <= last_start and count_max:
        size, frame_front, start, fields_bytes, count, code = unpack(data, position)
        end, fields_end, at = position + size, position + 13 + fields_bytes, position + 15
        if (
            frame_front != front
            or start != _USUAL_START
            or not fields_end <= end <= limit
            or size > frame_bytes_max
        ):
            break
        # Handle and delivery id are unsigned integers, each in one of three encodings.
        if code == 0x70:
            handle, at = u32(data, at)[0], at + 4
        elif code == 0x52:
            handle, at = data[at], at + 1
        elif code == 0x43:
            handle = 0
        else:
            break
        code, at = data[at], at + 1
        if code == 0x70:
            delivery_id, at = u32(data, at)[0], at + 4
        elif code == 0x52:
            delivery_id, at = data[at], at + 1
        elif code == 0x43:
            delivery_id = 0
        else:
            break
        tag_end = at + 2 + data[at + 1]
        if data[at] != 0xA0 or tag_end > fields_end:
            break
        last_fields = _last_fields(count, data[tag_end:fields_end])
        if last_fields is None:
            break
        message_format, is_settled = last_fields
        payload = data[fields_end:end]
        delivery = new(Delivery, (delivery_id, data[at + 2 : tag_end], message_format, is_settled, payload))
        if handle == last_handle:
            runs[-1][1].append(delivery)
        else:
            runs.append((handle, [delivery]))
            last_handle = handle
        position = end
        count_max -= 1
    return runs, position


@lru_cache(maxsize=256)
def _last_fields(count: int, encoded: bytes) -> tuple[int, bool] | None:
    """Message format and settled flag among the fields after the delivery tag, all but three of ``count``.

    They are the same in all transfers of a link. None: unusual, or not a whole delivery.
    """
    fields = b"\x43\x43\xa0\x00" + encoded
    frame = _USUAL_START + bytes((len(fields) + 1, count)) + fields
    transfer = _parse_usual(frame, 0, len(frame))
    if transfer is None or transfer.more or transfer.is_aborted:
        return None
    return transfer.message_format or 0, transfer.settled is True


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


def parse_flow(data: bytes, start: int, until: int) -> Flow | None:
    """The flow that fills a frame from ``start`` to ``until``; None: another performative, or unusual."""
    if data[start : start + 3] != _FLOW:
        return None
    fields = _usual_fields(data, start, until)
    if fields is None or fields[1] != until:
        return None
    next_in, window, next_out, out_window, handle, count, credit, available, drain, echo, last = fields[0]
    if (
        (next_in is None or type(next_in) is int)
        and type(window) is int
        and type(next_out) is int
        and type(out_window) is int
        and (handle is None or type(handle) is int)
        and (count is None or type(count) is int)
        and (credit is None or type(credit) is int)
        and (available is None or type(available) is int)
        and (drain is None or type(drain) is bool)
        and (echo is None or type(echo) is bool)
        and last is None
    ):
        return Flow(
            next_incoming_id=next_in,
            incoming_window=window,
            next_outgoing_id=next_out,
            outgoing_window=out_window,
            handle=handle,
            delivery_count=count,
            link_credit=credit,
            available=available,
            drain=drain is True,
            echo=echo is True,
        )
    return None


def _parse_usual(data: bytes, start: int, until: int) -> IncomingTransfer | None:
    """Decodes usual encodings; None for any other, which the general decoder checks."""
    fields = _usual_fields(data, start, until)
    return None if fields is None else _checked(*fields)


_Values = list[int | bytes | bool | None]


def _usual_fields(data: bytes, start: int, until: int) -> tuple[_Values, int] | None:
    """The fields of a performative, up to eleven, and where they end; None for unusual encodings."""
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
        values: _Values = []
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
    values += [None] * (11 - count)
    return values, end


def _checked(values: _Values, payload_start: int) -> IncomingTransfer | None:
    """The fields, if each has its type; else None."""
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
