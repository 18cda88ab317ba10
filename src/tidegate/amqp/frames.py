"""Splits bytes into frames and protocol headers, and encodes them.

A splitter copies each read once, into bytes that payloads may be views of; frames are views of them.
Source: AMQP 1.0 part 2 sections 2.2 and 2.3.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from tidegate.amqp.decode import Buffer
from tidegate.amqp.errors import FramingError

AMQP_FRAME: Final = 0
SASL_FRAME: Final = 1
"""Values of a frame's type."""

FRAME_BYTES_MIN: Final = 512
"""Every peer must accept frames of this size (``MIN-MAX-FRAME-SIZE``, part 2 section 2.8.19)."""

FRAME_HEADER_BYTES: Final = 8

EMPTY_FRAME: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"
"""Keeps a connection from timing out (part 2 section 2.4.5)."""


class ProtocolHeader(NamedTuple):
    """The eight bytes that start each layer: ``AMQP``, protocol id, version."""

    protocol_id: int
    """0 AMQP, 2 TLS, 3 SASL."""
    major: int
    minor: int
    revision: int

    def encode(self) -> bytes:
        return b"AMQP" + bytes(self)


AMQP_HEADER: Final = ProtocolHeader(0, 1, 0, 0)
SASL_HEADER: Final = ProtocolHeader(3, 1, 0, 0)


class Frame(NamedTuple):
    """One frame. ``body`` is a view of immutable bytes."""

    frame_type: int
    channel: int
    body: memoryview
    """The performative and a transfer's payload; empty in a frame that only keeps the connection alive."""


_OTHERS: Final = (
    (b"\x16\x03", "TLS"),  # a handshake
    (b"\x15\x03", "TLS"),  # an alert
    *((method, "HTTP") for method in (b"HTTP", b"GET ", b"POST", b"PUT ", b"HEAD")),
)
"""How what is mistaken for AMQP begins."""

_EMPTY_FRAMES: Final = tuple(EMPTY_FRAME * count for count in (4096, 64, 1))

_frame_header = struct.Struct(">IBBH").unpack_from
_pack_frame_header = struct.Struct(">IBBH").pack


def encode_frame(channel: int, body: bytes | bytearray, frame_type: int = AMQP_FRAME) -> bytes:
    """A frame with an encoded body."""
    return _pack_frame_header(len(body) + FRAME_HEADER_BYTES, 2, frame_type, channel) + body


class FrameSplitter:
    """Splits a byte stream into protocol headers and frames.

    Call ``feed`` with the bytes of a read, ``next_header`` or ``next_frame`` until it returns None, then
    ``release`` to drop these bytes. The buffer given to ``feed`` may be reused immediately.
    """

    def __init__(self, *, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        """The largest frame that the peer may send, header included. May change between frames."""
        self._buffer: memoryview = memoryview(b"")
        self._position = 0
        # An incomplete frame, in one piece: an object for each of thousands of reads takes far more memory
        # than their bytes.
        self._kept = bytearray()
        self._needed_bytes = FRAME_HEADER_BYTES  # of the frame that _kept starts with

    def feed(self, data: Buffer) -> None:
        """Add the bytes of one read. Earlier bytes that were not consumed are kept (copied)."""
        self.release()
        if self._kept and len(self._kept) + len(data) < self._needed_bytes:
            self._kept += data
        else:
            # At most one copy: joining a single bytes object does not copy it.
            self._buffer = memoryview(b"".join((self._kept, data) if self._kept else (data,)))
            self._kept = bytearray()

    def release(self) -> None:
        """Copy the bytes that were not consumed, and drop the fed buffer."""
        rest = bytes(self._buffer[self._position :])
        self._buffer = memoryview(b"")
        self._position = 0
        if rest:
            self._needed_bytes = FRAME_HEADER_BYTES
            if len(rest) >= FRAME_HEADER_BYTES and rest[:4] != b"AMQP":
                size = int.from_bytes(rest[:4], "big")
                if size <= self.frame_bytes_max:  # else next_frame refuses it by its header
                    self._needed_bytes = max(FRAME_HEADER_BYTES, size)
            self._kept += rest

    def drop(self) -> None:
        """Discard everything that was fed."""
        self._buffer = memoryview(b"")
        self._position = 0
        self._kept = bytearray()

    def next_header(self) -> ProtocolHeader | None:
        """The expected protocol header; None until its eight bytes have arrived.

        Raises FramingError as soon as the bytes cannot become one.
        """
        start = self._position
        piece = bytes(self._buffer[start : start + 8])
        if piece[:4] != b"AMQP"[: len(piece)]:
            what = next((f", but {name}" for start, name in _OTHERS if piece.startswith(start)), "")
            raise FramingError(f"The peer does not speak plain AMQP{what}: it sent {piece.hex(' ')}.")
        if len(piece) < 8:
            return None
        self._position = start + 8
        return ProtocolHeader(*piece[4:])

    def next_frame(self) -> Frame | None:
        """The next whole frame; None until there is one.

        Raises FramingError if the bytes are not a frame, or one larger than ``frame_bytes_max``.
        """
        buffer, start = self._buffer, self._position
        available = len(buffer) - start
        if available < FRAME_HEADER_BYTES:
            return None
        size, data_offset, frame_type, channel = _frame_header(buffer, start)
        body_offset = data_offset * 4
        if size > self.frame_bytes_max or body_offset < FRAME_HEADER_BYTES or body_offset > size:
            raise self._garbled(size, data_offset)
        if available < size:
            return None
        self._position = start + size
        return Frame(frame_type, channel, buffer[start + body_offset : start + size])

    def skip_empty_frames(self) -> int:
        """Skip the empty frames that are next, many per comparison, and return their number."""
        data, start = self._buffer.obj, self._position
        assert type(data) is bytes
        position = start
        for block in _EMPTY_FRAMES:
            while data.startswith(block, position):
                position += len(block)
        self._position = position
        return (position - start) // len(EMPTY_FRAME)

    def peek(self) -> tuple[memoryview, int]:
        """The fed bytes, and the next frame's position in them, for callers that parse frames themselves."""
        return self._buffer, self._position

    def skip_to(self, position: int) -> None:
        """Consume the whole frames before ``position`` in what ``peek`` returned."""
        self._position = position

    @property
    def buffered_bytes(self) -> int:
        """Bytes that were fed and not consumed."""
        return len(self._kept) + len(self._buffer) - self._position

    def _garbled(self, size: int, data_offset: int) -> FramingError:
        if size > self.frame_bytes_max and data_offset == 2:
            return FramingError(
                f"A frame of {size} bytes exceeds the negotiated maximum of {self.frame_bytes_max}."
            )
        return FramingError(f"A frame of {size} bytes with its data at byte {data_offset * 4} is malformed.")
