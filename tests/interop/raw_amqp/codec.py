"""AMQP 1.0's types and frames by hand, apart from the service's codec: a mistake there must not hide here.

A field is its encoded bytes. What is read becomes Python's plain values; a described value is a pair.
Source: AMQP 1.0 part 1 section 1.6 and part 2 sections 2.3 and 2.7.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
MECHANISMS, INIT, OUTCOME = 0x40, 0x41, 0x44
ERROR, ACCEPTED, REJECTED, RELEASED = 0x1D, 0x24, 0x25, 0x26
SOURCE, TARGET, COORDINATOR = 0x28, 0x29, 0x30

NULL: Final = b"\x40"
TRUE: Final = b"\x41"
FALSE: Final = b"\x42"
SENDER, RECEIVER = FALSE, TRUE
"""Values of ``role``."""
UNSETTLED, SETTLED, MIXED = (bytes([0x50, mode]) for mode in range(3))
"""Values of ``snd-settle-mode``."""


def ushort(value: int) -> bytes:
    """16 bits."""
    return struct.pack(">BH", 0x60, value)


def uint(value: int) -> bytes:
    """32 bits."""
    return struct.pack(">BI", 0x70, value)


def ulong(value: int) -> bytes:
    """64 bits."""
    return struct.pack(">BQ", 0x80, value)


def long(value: int) -> bytes:
    """64 bits with a sign."""
    return struct.pack(">Bq", 0x81, value)


def text(value: str) -> bytes:
    """A string."""
    return _variable(0xB1, value.encode())


def symbol(value: str) -> bytes:
    """A symbol."""
    return _variable(0xB3, value.encode())


def binary(value: bytes) -> bytes:
    """Bytes."""
    return _variable(0xB0, value)


def list_of(*fields: bytes) -> bytes:
    """A list."""
    return _compound(0xD0, fields)


def map_of(entries: dict[bytes, bytes]) -> bytes:
    """A map."""
    return _compound(0xD1, [part for entry in entries.items() for part in entry])


def described(code: int, *fields: bytes) -> bytes:
    """A composite: a performative, a source, an outcome."""
    return described_value(struct.pack(">BB", 0x53, code), list_of(*fields))


def described_value(descriptor: bytes, value: bytes) -> bytes:
    """Any described value."""
    return b"\x00" + descriptor + value


def frame(channel: int, body: bytes, *, kind: int = 0, extended_header: bytes = b"") -> bytes:
    """A frame. kind: 0 AMQP, 1 SASL."""
    size, offset = 8 + len(extended_header) + len(body), 2 + len(extended_header) // 4
    return struct.pack(">IBBH", size, offset, kind, channel) + extended_header + body


def data_section(body: bytes) -> bytes:
    """A message's body of bytes."""
    return described_value(b"\x53\x75", binary(body))


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame that came."""

    channel: int
    code: int
    """Of the performative; -1 in an empty frame."""
    fields: tuple[Any, ...] = ()
    payload: bytes = b""

    def field(self, index: int) -> Any:
        """None where the list ends before."""
        return self.fields[index] if index < len(self.fields) else None

    @property
    def condition(self) -> str | None:
        """Of the error in a detach, end or close."""
        error = self.field({DETACH: 2, END: 0, CLOSE: 0}[self.code])
        return None if error is None else str(error[1][0])

    @property
    def description(self) -> str:
        """Beside the condition."""
        return str(self.field({DETACH: 2, END: 0, CLOSE: 0}[self.code])[1][1])


def parse_frame(data: bytes) -> Frame:
    """A whole frame."""
    offset, channel = data[4] * 4, int.from_bytes(data[6:8], "big")
    if offset == len(data):
        return Frame(channel, -1)
    (code, fields), end = parse(data, offset)
    return Frame(channel, code, tuple(fields), data[end:])


def parse(data: bytes, at: int = 0) -> tuple[Any, int]:
    """The value at a position, and where it ends."""
    constructor = data[at]
    if constructor == 0:
        descriptor, at = parse(data, at + 1)
        value, at = parse(data, at)
        return (descriptor, value), at
    return _parse_as(constructor, data, at + 1)


_CONSTANTS: Final[dict[int, object]] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0, 0x45: []}
_FIXED = dict.fromkeys((0x50, 0x52, 0x53), ">B") | dict.fromkeys((0x51, 0x54, 0x55), ">b")
_FIXED |= {0x56: ">?", 0x60: ">H", 0x61: ">h", 0x70: ">I", 0x71: ">i", 0x72: ">f"}
_FIXED |= {0x80: ">Q", 0x81: ">q", 0x82: ">d", 0x83: ">q", 0x98: ">16s"}


def _parse_as(constructor: int, data: bytes, at: int) -> tuple[Any, int]:
    if constructor in _CONSTANTS:
        return _CONSTANTS[constructor], at
    if constructor in _FIXED:
        layout = struct.Struct(_FIXED[constructor])
        return layout.unpack_from(data, at)[0], at + layout.size
    width = 1 if constructor & 0x10 == 0 else 4
    size = int.from_bytes(data[at : at + width], "big")
    start, end = at + width, at + width + size
    if constructor in (0xA0, 0xB0):
        return data[start:end], end
    if constructor in (0xA1, 0xB1, 0xA3, 0xB3):
        return data[start:end].decode(), end
    count, at = int.from_bytes(data[start : start + width], "big"), start + width
    if constructor in (0xE0, 0xF0):
        return _parse_array(data, at, count), end
    values = []
    for _ in range(count):
        value, at = parse(data, at)
        values.append(value)
    if constructor in (0xC1, 0xD1):
        return dict(zip(values[::2], values[1::2], strict=True)), end
    assert constructor in (0xC0, 0xD0), f"the service sent the constructor {constructor:#x}"
    return values, end


def _parse_array(data: bytes, at: int, count: int) -> list[Any]:
    constructor, values = data[at], []
    at += 1
    for _ in range(count):
        value, at = _parse_as(constructor, data, at)
        values.append(value)
    return values


def _variable(constructor: int, value: bytes) -> bytes:
    return struct.pack(">BI", constructor, len(value)) + value


def _compound(constructor: int, parts: list[bytes] | tuple[bytes, ...]) -> bytes:
    body = b"".join(parts)
    return struct.pack(">BII", constructor, len(body) + 4, len(parts)) + body
