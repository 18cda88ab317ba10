"""Encodes Python values as AMQP, each in its shortest encoding.

``append_value`` is the entry point. It dispatches on the exact type, so the subclasses in ``types`` select
the AMQP type. Source: AMQP 1.0 part 1 section 1.6.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any
from uuid import UUID

from tidegate.amqp.errors import EncodeError
from tidegate.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal,
    Described,
    Encoded,
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

_pack_u16 = struct.Struct(">BH").pack
_pack_u32 = struct.Struct(">BI").pack
_pack_u64 = struct.Struct(">BQ").pack
_pack_s8 = struct.Struct(">Bb").pack
_pack_s16 = struct.Struct(">Bh").pack
_pack_s32 = struct.Struct(">Bi").pack
_pack_s64 = struct.Struct(">Bq").pack
_pack_float = struct.Struct(">Bf").pack
_pack_double = struct.Struct(">Bd").pack
_pack_compound8 = struct.Struct(">BBB").pack
_pack_compound32 = struct.Struct(">BII").pack

_DECIMAL_CODES = {4: 0x74, 8: 0x84, 16: 0x94}


def encode_value(value: object) -> bytes:
    """Encode one value, with its constructor. Raises EncodeError if AMQP has no encoding for it."""
    output = bytearray()
    append_value(output, value)
    return bytes(output)


def append_value(output: bytearray, value: object) -> None:
    """Append an encoded value to ``output``.

    Raises EncodeError if AMQP has no encoding for it; bytes already appended stay in ``output``.
    """
    encoder = _ENCODERS.get(type(value)) or _encoder_for_subclass(type(value))
    try:
        encoder(output, value)
    except (struct.error, OverflowError, UnicodeEncodeError) as exc:
        raise EncodeError(
            f"A {type(value).__name__} value does not fit AMQP's type of that name: {exc}."
        ) from exc
    except RecursionError as exc:
        raise EncodeError("A value is nested too deeply, or contains itself.") from exc


def append_list(output: bytearray, encoded_items: bytes | bytearray, count: int) -> None:
    """Append a list of ``count`` encoded items, with its header; never ``list0``."""
    _append_compound(output, 0xC0, 0xD0, encoded_items, count)


def append_binary(output: bytearray, value: bytes | bytearray | memoryview) -> None:
    length = len(value)
    output += bytes((0xA0, length)) if length < 256 else _pack_u32(0xB0, length)
    output += value


def append_string(output: bytearray, value: str) -> None:
    encoded = value.encode()
    length = len(encoded)
    output += bytes((0xA1, length)) if length < 256 else _pack_u32(0xB1, length)
    output += encoded


def append_symbol(output: bytearray, value: str) -> None:
    """Append a symbol. Characters outside ASCII are sent as UTF-8, as other clients do."""
    encoded = value.encode()
    length = len(encoded)
    output += bytes((0xA3, length)) if length < 256 else _pack_u32(0xB3, length)
    output += encoded


def _append_compound(
    output: bytearray, code8: int, code32: int, items: bytes | bytearray, count: int
) -> None:
    size = len(items)
    if size < 255 and count < 256:
        output += _pack_compound8(code8, size + 1, count)
    else:
        output += _pack_compound32(code32, size + 4, count)
    output += items


def _append_null(output: bytearray, value: None) -> None:
    output.append(0x40)


def _append_bool(output: bytearray, value: bool) -> None:
    output.append(0x41 if value else 0x42)


def _append_ubyte(output: bytearray, value: int) -> None:
    output += struct.pack(">BB", 0x50, value)


def _append_ushort(output: bytearray, value: int) -> None:
    output += _pack_u16(0x60, value)


def _append_uint(output: bytearray, value: int) -> None:
    if value == 0:
        output.append(0x43)
    elif 0 < value < 256:
        output += bytes((0x52, value))
    else:
        output += _pack_u32(0x70, value)


def _append_ulong(output: bytearray, value: int) -> None:
    if value == 0:
        output.append(0x44)
    elif 0 < value < 256:
        output += bytes((0x53, value))
    else:
        output += _pack_u64(0x80, value)


def _append_byte(output: bytearray, value: int) -> None:
    output += _pack_s8(0x51, value)


def _append_short(output: bytearray, value: int) -> None:
    output += _pack_s16(0x61, value)


def _append_int(output: bytearray, value: int) -> None:
    output += _pack_s8(0x54, value) if -128 <= value < 128 else _pack_s32(0x71, value)


def _append_long(output: bytearray, value: int) -> None:
    output += _pack_s8(0x55, value) if -128 <= value < 128 else _pack_s64(0x81, value)


def _append_timestamp(output: bytearray, value: int) -> None:
    output += _pack_s64(0x83, value)


def _append_float(output: bytearray, value: float) -> None:
    output += _pack_float(0x72, value)


def _append_double(output: bytearray, value: float) -> None:
    output += _pack_double(0x82, value)


def _append_char(output: bytearray, value: str) -> None:
    if len(value) != 1:
        raise EncodeError(f"A char is one character, not {len(value)}.")
    output += _pack_u32(0x73, ord(value))


def _append_uuid(output: bytearray, value: UUID) -> None:
    output.append(0x98)
    output += value.bytes


def _append_decimal(output: bytearray, value: bytes) -> None:
    code = _DECIMAL_CODES.get(len(value))
    if code is None:
        raise EncodeError(f"A decimal has 4, 8 or 16 bytes, not {len(value)}.")
    output.append(code)
    output += value


def _append_described(output: bytearray, value: Described) -> None:
    output.append(0)
    append_value(output, value.descriptor)
    append_value(output, value.value)


def _append_list_value(output: bytearray, value: Sequence[object]) -> None:
    if not value:
        output.append(0x45)
        return
    items = bytearray()
    for item in value:
        append_value(items, item)
    _append_compound(output, 0xC0, 0xD0, items, len(value))


def _append_map_value(output: bytearray, value: dict[object, object]) -> None:
    items = bytearray()
    for key, item in value.items():
        append_value(items, key)
        append_value(items, item)
    _append_compound(output, 0xC1, 0xD1, items, 2 * len(value))


_Encoder = Callable[[bytearray, Any], None]

_ENCODERS: dict[type, _Encoder] = {
    type(None): _append_null,
    bool: _append_bool,
    int: _append_long,
    float: _append_double,
    str: append_string,
    bytes: append_binary,
    bytearray: append_binary,
    memoryview: append_binary,
    Symbol: append_symbol,
    Char: _append_char,
    UByte: _append_ubyte,
    UShort: _append_ushort,
    UInt: _append_uint,
    ULong: _append_ulong,
    Byte: _append_byte,
    Short: _append_short,
    Int: _append_int,
    Timestamp: _append_timestamp,
    Float: _append_float,
    Decimal: _append_decimal,
    UUID: _append_uuid,
    Described: _append_described,
    list: _append_list_value,
    tuple: _append_list_value,
    dict: _append_map_value,
}


def _encoder_for_subclass(kind: type) -> _Encoder:
    """The nearest base class's encoder: a ``StrEnum`` member is a string, an ``IntEnum`` member a long."""
    if issubclass(kind, Enum) and not issubclass(kind, (str, int)):
        raise EncodeError(f"AMQP has no encoding for {kind.__name__}.")
    for base in kind.__mro__:
        if base in _ENCODERS:
            return _ENCODERS[base]
    raise EncodeError(f"AMQP has no encoding for {kind.__name__}.")


# --- arrays: one constructor for all elements, so each type has one fixed width here --------------------

_ARRAY_FORMATS: dict[type, tuple[int, str]] = {
    bool: (0x56, "?"),
    UByte: (0x50, "B"),
    UShort: (0x60, "H"),
    UInt: (0x70, "I"),
    ULong: (0x80, "Q"),
    Byte: (0x51, "b"),
    Short: (0x61, "h"),
    Int: (0x71, "i"),
    int: (0x81, "q"),
    Timestamp: (0x83, "q"),
    Float: (0x72, "f"),
    float: (0x82, "d"),
}

_ARRAY_VARIABLE: dict[type, tuple[int, int]] = {bytes: (0xA0, 0xB0), str: (0xA1, 0xB1), Symbol: (0xA3, 0xB3)}


def _append_encoded(output: bytearray, value: Encoded) -> None:
    output += value.data


def _append_array(output: bytearray, value: Array) -> None:
    for item in value.items:
        if type(item) is not value.element_type:
            raise EncodeError(
                f"An array of {value.element_type.__name__} holds a {type(item).__name__} element."
            )
    elements = _array_elements(value.element_type, value.items)
    _append_compound(output, 0xE0, 0xF0, elements, len(value.items))


def _array_elements(kind: type, items: Sequence[Any]) -> bytearray:
    """The shared constructor, then the elements without it."""
    if kind in _ARRAY_FORMATS:
        code, letter = _ARRAY_FORMATS[kind]
        return bytearray((code,)) + struct.pack(f">{len(items)}{letter}", *items)
    if kind in _ARRAY_VARIABLE:
        return _variable_elements(*_ARRAY_VARIABLE[kind], items)
    if kind is type(None):
        return bytearray((0x40,))
    if kind is Described:
        return _described_elements(items)
    if kind is Decimal and len({len(item) for item in items}) > 1:
        raise EncodeError("An array's decimals differ in width.")
    return _other_elements(kind, items)


def _variable_elements(code8: int, code32: int, items: Sequence[Any]) -> bytearray:
    encoded = [item if isinstance(item, bytes) else item.encode() for item in items]
    is_small = all(len(item) < 256 for item in encoded)
    elements = bytearray((code8 if is_small else code32,))
    for item in encoded:
        elements += len(item).to_bytes(1 if is_small else 4, "big")
        elements += item
    return elements


def _described_elements(items: Sequence[Described]) -> bytearray:
    if not items:
        return bytearray((0x40,))
    descriptor = encode_value(items[0].descriptor)
    kind = type(items[0].value)
    for item in items:
        if encode_value(item.descriptor) != descriptor or type(item.value) is not kind:
            raise EncodeError("An array's described elements differ in descriptor or type.")
    return bytearray((0,)) + descriptor + _array_elements(kind, [item.value for item in items])


def _other_elements(kind: type, items: Sequence[Any]) -> bytearray:
    """Compound values, uuids, decimals and characters: encode each, widen compounds, strip constructors."""
    if kind in (list, tuple, dict, Array):
        elements = bytearray(({list: 0xD0, tuple: 0xD0, dict: 0xD1, Array: 0xF0}[kind],))
        for item in items:
            elements += _wide_compound(item)
        return elements
    if not items:
        codes: dict[type, int] = {UUID: 0x98, Char: 0x73, Decimal: 0x94}
        return bytearray((codes.get(kind, 0x40),))
    encoded = [encode_value(item) for item in items]
    return bytearray(encoded[0][:1]) + b"".join(item[1:] for item in encoded)


def _wide_compound(value: object) -> bytes:
    """A list, map or array in its 32-bit form, without the constructor."""
    encoded = encode_value(value)
    if encoded[0] == 0x45:
        return struct.pack(">II", 4, 0)
    if encoded[0] & 0x10:
        return encoded[1:]
    return struct.pack(">II", encoded[1] + 3, encoded[2]) + encoded[3:]


_ENCODERS[Array] = _append_array
_ENCODERS[Encoded] = _append_encoded
