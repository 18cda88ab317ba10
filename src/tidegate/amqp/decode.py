"""Decodes AMQP values, and skips values without creating them.

Input is hostile: every declared size is checked against the available bytes before anything of that size is
allocated, nesting is limited, and any error is a DecodeError. Time and memory grow in proportion to a value's
bytes: no byte creates more than a few objects, and map keys are of types whose hashes a peer cannot make
collide (``KEY_TYPES``).
Source: AMQP 1.0 part 1 section 1.6.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn
from uuid import UUID

from tidegate.amqp.errors import DecodeError
from tidegate.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

Buffer = bytes | bytearray | memoryview

DEPTH_MAX: Final = 32
"""Levels of nesting (our choice: Event Hubs clients send fewer than 8)."""

ZERO_WIDTH_ELEMENTS_MAX: Final = 8
"""Elements of an array whose elements have no bytes (our choice: no client sends such arrays, and a count
alone must not cost memory and time)."""

ARRAY_DESCRIPTOR_BYTES_MAX: Final = 128
"""Encoded length of the one descriptor that an array's elements may share (our choice: the longest of the
standard has 40). Each decoded element holds it again."""

KEY_TYPES: Final = frozenset({Symbol, str, bytes, int, UByte, UShort, UInt, ULong, Byte, Short, Int})
"""Types of a map's keys: those of the protocol's own maps, and of properties that clients set.

Python seeds the hashes of text and bytes per process, and at most nine 64-bit integers share a hash. Of
UUIDs, floats, described values and arrays a peer can send any number with one hash, and a map of n such keys
takes n² comparisons (480 KB took 29 s).
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one call of ``decode_value``."""

    map_entries_max: int
    """Per map."""
    values_max: int
    """Elements of all lists, maps (keys and values) and arrays, at all levels together."""


PROTOCOL_LIMITS: Final = Limits(map_entries_max=1000, values_max=4096)
"""For the protocol's own values: performatives, annotations, requests (our choice: Event Hubs clients send
fewer than 100)."""

CONTENT_LIMITS: Final = Limits(map_entries_max=2**32, values_max=2**32)
"""For bodies and application properties, which belong to the application: only their size limits them."""

_u16 = struct.Struct(">H").unpack_from
_u32 = struct.Struct(">I").unpack_from
_u64 = struct.Struct(">Q").unpack_from
_s8 = struct.Struct(">b").unpack_from
_s16 = struct.Struct(">h").unpack_from
_s32 = struct.Struct(">i").unpack_from
_s64 = struct.Struct(">q").unpack_from
_float = struct.Struct(">f").unpack_from
_double = struct.Struct(">d").unpack_from


class Room:
    """What is left of the limits, for one value or for several together."""

    __slots__ = ("depth", "map_entries_max", "values", "values_max")

    def __init__(self, limits: Limits) -> None:
        self.map_entries_max = limits.map_entries_max
        self.values = self.values_max = limits.values_max
        self.depth = DEPTH_MAX

    def enter(self, count: int) -> None:
        """Enter a value with ``count`` others inside; the caller raises ``depth`` again at its end."""
        if self.depth == 0:
            raise DecodeError(f"Values are nested more than {DEPTH_MAX} deep.")
        self.depth -= 1
        self.values -= count
        if self.values < 0:
            raise DecodeError(f"There are more than {self.values_max} values inside one.")


_Decoder = Callable[[Buffer, int, Room], tuple[object, int]]
"""(data, offset after the constructor, remaining limits) -> (value, end)."""


def decode_value(data: Buffer, offset: int = 0, limits: Limits = PROTOCOL_LIMITS) -> tuple[object, int]:
    """The value at ``offset``, and the offset after it.

    Raises DecodeError if the bytes are not an AMQP value, are truncated, or hold more than ``limits``.
    """
    try:
        return _DECODERS[data[offset]](data, offset + 1, Room(limits))
    except (IndexError, struct.error) as exc:
        raise DecodeError(f"The data ends inside the value at byte {offset}.") from exc


def decode_value_until(data: Buffer, offset: int, end: int, room: Room) -> object:
    """The value that starts at ``offset`` and must end at ``end``.

    Raises DecodeError as ``decode_value``, and if it ends elsewhere.
    """
    try:
        value, value_end = _DECODERS[data[offset]](data, offset + 1, room)
    except (IndexError, struct.error) as exc:
        raise DecodeError(f"The data ends inside the value at byte {offset}.") from exc
    if value_end != end:
        raise DecodeError(f"A value ends at byte {value_end}, and its size says {end}.")
    return value


def skip_value(data: Buffer, offset: int = 0) -> int:
    """The offset after the value at ``offset``, from sizes alone: contents are not examined.

    Raises DecodeError if the constructor is unknown or the value is truncated.
    """
    try:
        descriptors = 0
        while data[offset] == 0:  # a described value: skip its descriptor
            descriptors += 1
            if descriptors > DEPTH_MAX:
                raise DecodeError(f"Descriptors are nested more than {DEPTH_MAX} deep.")
            if data[offset + 1] == 0:
                _refuse_described_descriptor()
            offset = skip_value(data, offset + 1)
        code = data[offset]
        width = _WIDTHS[code]
        if width >= 0:
            end = offset + 1 + width
        elif width == -1:
            end = offset + 2 + data[offset + 1]
        elif width == -4:
            end = offset + 5 + _u32(data, offset + 1)[0]
        else:
            raise DecodeError(f"0x{code:02x} is not an AMQP constructor (byte {offset}).")
    except (IndexError, struct.error) as exc:
        raise DecodeError(f"The data ends inside the value at byte {offset}.") from exc
    if end > len(data):
        raise DecodeError(f"The value at byte {offset} ends {end - len(data)} bytes after the data.")
    return end


def _refuse_described_descriptor() -> NoReturn:
    raise DecodeError("A descriptor is itself described, which is not supported.")


def _make_widths() -> list[int]:
    """Bytes after the constructor; -1 and -4: given by a size field of that width; -9: not a constructor.

    The high half of a constructor gives the width (part 1 section 1.2).
    """
    widths = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16, 0xA: -1, 0xB: -4}
    widths |= {0xC: -1, 0xD: -4, 0xE: -1, 0xF: -4}
    return [widths.get(code >> 4, -9) for code in range(256)]


_WIDTHS = _make_widths()


def _end_of(data: Buffer, start: int, size: int) -> int:
    end = start + size
    if end > len(data):
        raise DecodeError(f"A value of {size} bytes at byte {start} ends after the data ({len(data)} bytes).")
    return end


# --- fixed width ---------------------------------------------------------------------------------------


def _decode_described(data: Buffer, offset: int, room: Room) -> tuple[object, int]:
    room.enter(1)
    descriptor, offset = _decode_descriptor(data, offset, room)
    value, offset = _DECODERS[data[offset]](data, offset + 1, room)
    room.depth += 1
    return Described(descriptor, value), offset


def _decode_descriptor(data: Buffer, offset: int, room: Room) -> tuple[object, int]:
    """The standard has symbols and ulongs; clients' other integers and strings are accepted (section 1.2)."""
    if data[offset] == 0:
        _refuse_described_descriptor()
    descriptor, end = _DECODERS[data[offset]](data, offset + 1, room)
    if not isinstance(descriptor, (str, int)):
        raise DecodeError(f"A descriptor is a {type(descriptor).__name__}, not a symbol or a ulong.")
    return descriptor, end


def _decode_bool_byte(data: Buffer, offset: int, room: Room) -> tuple[object, int]:
    value = data[offset]
    if value > 1:
        raise DecodeError(f"0x{value:02x} is not a boolean.")
    return value == 1, offset + 1


def _decode_char(data: Buffer, offset: int, room: Room) -> tuple[object, int]:
    code = _u32(data, offset)[0]
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise DecodeError(f"0x{code:x} is not a Unicode character.")
    return Char(chr(code)), offset + 4


def _decode_uuid(data: Buffer, offset: int, room: Room) -> tuple[object, int]:
    end = _end_of(data, offset, 16)
    return UUID(bytes=bytes(data[offset:end])), end


def _constant(value: object) -> _Decoder:
    return lambda data, offset, room: (value, offset)


def _list0(data: Buffer, offset: int, room: Room) -> tuple[object, int]:
    return [], offset


def _small(kind: type[int]) -> _Decoder:
    return lambda data, offset, room: (kind(data[offset]), offset + 1)


def _number(
    kind: Callable[..., object] | None, unpack: Callable[..., tuple[object, ...]], width: int
) -> _Decoder:
    if kind is None:
        return lambda data, offset, room: (unpack(data, offset)[0], offset + width)
    return lambda data, offset, room: (kind(unpack(data, offset)[0]), offset + width)


def _decimal(width: int) -> _Decoder:
    def decode(data: Buffer, offset: int, room: Room) -> tuple[object, int]:
        end = _end_of(data, offset, width)
        return Decimal(data[offset:end]), end

    return decode


# --- variable width ------------------------------------------------------------------------------------


def _decode_binary8(data: Buffer, offset: int, room: Room) -> tuple[object, int]:
    end = _end_of(data, offset + 1, data[offset])
    return bytes(data[offset + 1 : end]), end


def _decode_binary32(data: Buffer, offset: int, room: Room) -> tuple[object, int]:
    end = _end_of(data, offset + 4, _u32(data, offset)[0])
    return bytes(data[offset + 4 : end]), end


def _text(data: Buffer, start: int, end: int) -> str:
    try:
        return str(data[start:end], "utf-8")
    except UnicodeDecodeError as exc:
        raise DecodeError(f"The string at byte {start} is not UTF-8.") from exc


def _decode_string8(data: Buffer, offset: int, room: Room) -> tuple[object, int]:
    end = _end_of(data, offset + 1, data[offset])
    return _text(data, offset + 1, end), end


def _decode_string32(data: Buffer, offset: int, room: Room) -> tuple[object, int]:
    end = _end_of(data, offset + 4, _u32(data, offset)[0])
    return _text(data, offset + 4, end), end


def _decode_symbol8(data: Buffer, offset: int, room: Room) -> tuple[object, int]:
    end = _end_of(data, offset + 1, data[offset])
    return Symbol(_text(data, offset + 1, end)), end


def _decode_symbol32(data: Buffer, offset: int, room: Room) -> tuple[object, int]:
    end = _end_of(data, offset + 4, _u32(data, offset)[0])
    return Symbol(_text(data, offset + 4, end)), end


# --- compound ------------------------------------------------------------------------------------------


def _compound_bounds(data: Buffer, offset: int, width: int) -> tuple[int, int, int]:
    """(number of elements, their start, their required end) of a list, map or array."""
    if width == 1:
        size, count = data[offset], data[offset + 1]
    else:
        size, count = _u32(data, offset)[0], _u32(data, offset + 4)[0]
    end = _end_of(data, offset + width, size)
    start = offset + 2 * width
    if start > end:
        raise DecodeError(f"A compound value of {size} bytes has no room for its count.")
    return count, start, end


def _list_items(data: Buffer, offset: int, room: Room, width: int) -> tuple[list[object], int]:
    count, offset, end = _compound_bounds(data, offset, width)
    if count > end - offset:
        raise DecodeError(f"A list of {count} elements has {end - offset} bytes.")
    room.enter(count)
    items: list[object] = []
    for _ in range(count):
        item, offset = _DECODERS[data[offset]](data, offset + 1, room)
        items.append(item)
    room.depth += 1
    if offset != end:
        raise DecodeError(f"A list's elements end at byte {offset}, and its size says {end}.")
    return items, end


def _map_items(data: Buffer, offset: int, room: Room, width: int) -> tuple[dict[object, object], int]:
    count, offset, end = _compound_bounds(data, offset, width)
    if count > end - offset or count % 2:
        raise DecodeError(f"A map of {count} keys and values has {end - offset} bytes.")
    if count > 2 * room.map_entries_max:
        raise DecodeError(f"A map has {count // 2} entries; {room.map_entries_max} are allowed here.")
    room.enter(count)
    items: dict[object, object] = {}
    for _ in range(count // 2):
        key, offset = _DECODERS[data[offset]](data, offset + 1, room)
        value, offset = _DECODERS[data[offset]](data, offset + 1, room)
        check_key(key)
        items[key] = value
    room.depth += 1
    if offset != end:
        raise DecodeError(f"A map's elements end at byte {offset}, and its size says {end}.")
    return items, end


def check_key(key: object) -> None:
    """Raise DecodeError if a value must not be a map's key (``KEY_TYPES``)."""
    if type(key) not in KEY_TYPES:
        raise DecodeError(
            f"A map has a {type(key).__name__} as its key; symbols, strings, integers and binary are allowed."
        )


def _array_items(data: Buffer, offset: int, room: Room, width: int) -> tuple[Array, int]:
    count, offset, end = _compound_bounds(data, offset, width)
    if offset == end:
        if count:
            raise DecodeError(f"An array of {count} elements has no bytes.")
        return Array((), type(None)), end  # without a constructor: the official Python client sends this
    room.enter(count)
    # Described elements share one descriptor, before their constructor.
    is_described = data[offset] == 0
    descriptor: object = None
    if is_described:
        start = offset + 1
        descriptor, offset = _decode_descriptor(data, start, room)
        if offset - start > ARRAY_DESCRIPTOR_BYTES_MAX:
            raise DecodeError(f"The descriptor of an array's elements takes {offset - start} bytes.")
    code = data[offset]
    offset += 1
    if code == 0:
        raise DecodeError("The elements of an array have more than one descriptor, which is not supported.")
    if code not in _TYPES:
        raise DecodeError(f"0x{code:02x} is not an AMQP constructor (byte {offset - 1}).")
    if count > (end - offset if _WIDTHS[code] else ZERO_WIDTH_ELEMENTS_MAX):
        raise DecodeError(f"An array of {count} elements has {end - offset} bytes.")
    decoder = _DECODERS[code]
    items: list[object] = []
    for _ in range(count):
        item, offset = decoder(data, offset, room)
        items.append(Described(descriptor, item) if is_described else item)
    room.depth += 1
    if offset != end:
        raise DecodeError(f"An array's elements end at byte {offset}, and its size says {end}.")
    return Array(tuple(items), Described if is_described else _TYPES[code][0]), end


def _compound(items: Callable[[Buffer, int, Room, int], tuple[object, int]], width: int) -> _Decoder:
    return lambda data, offset, room: items(data, offset, room, width)


def _unknown(code: int) -> _Decoder:
    def refuse(data: Buffer, offset: int, room: Room) -> tuple[object, int]:
        raise DecodeError(f"0x{code:02x} is not an AMQP constructor (byte {offset - 1}).")

    return refuse


_TYPES: dict[int, tuple[type, _Decoder]] = {
    0x00: (Described, _decode_described),
    0x40: (type(None), _constant(None)),
    0x41: (bool, _constant(True)),
    0x42: (bool, _constant(False)),
    0x56: (bool, _decode_bool_byte),
    0x43: (UInt, _constant(UInt(0))),
    0x44: (ULong, _constant(ULong(0))),
    0x45: (list, _list0),
    0x50: (UByte, _small(UByte)),
    0x51: (Byte, _number(Byte, _s8, 1)),
    0x52: (UInt, _small(UInt)),
    0x53: (ULong, _small(ULong)),
    0x54: (Int, _number(Int, _s8, 1)),
    0x55: (int, _number(None, _s8, 1)),
    0x60: (UShort, _number(UShort, _u16, 2)),
    0x61: (Short, _number(Short, _s16, 2)),
    0x70: (UInt, _number(UInt, _u32, 4)),
    0x71: (Int, _number(Int, _s32, 4)),
    0x72: (Float, _number(Float, _float, 4)),
    0x73: (Char, _decode_char),
    0x74: (Decimal, _decimal(4)),
    0x80: (ULong, _number(ULong, _u64, 8)),
    0x81: (int, _number(None, _s64, 8)),
    0x82: (float, _number(None, _double, 8)),
    0x83: (Timestamp, _number(Timestamp, _s64, 8)),
    0x84: (Decimal, _decimal(8)),
    0x94: (Decimal, _decimal(16)),
    0x98: (UUID, _decode_uuid),
    0xA0: (bytes, _decode_binary8),
    0xB0: (bytes, _decode_binary32),
    0xA1: (str, _decode_string8),
    0xB1: (str, _decode_string32),
    0xA3: (Symbol, _decode_symbol8),
    0xB3: (Symbol, _decode_symbol32),
    0xC0: (list, _compound(_list_items, 1)),
    0xD0: (list, _compound(_list_items, 4)),
    0xC1: (dict, _compound(_map_items, 1)),
    0xD1: (dict, _compound(_map_items, 4)),
    0xE0: (Array, _compound(_array_items, 1)),
    0xF0: (Array, _compound(_array_items, 4)),
}


_DECODERS: list[_Decoder] = [_TYPES[code][1] if code in _TYPES else _unknown(code) for code in range(256)]
