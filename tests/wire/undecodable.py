"""Events that an official client does not decode, most of them valid AMQP."""

from __future__ import annotations

from typing import Final

from tests.wire.hiding import BODY, map_of

from tidegate.amqp.encode import encode_value
from tidegate.amqp.types import Symbol

_NULL: Final = b"\x40"
_UNKNOWN: Final = {
    "char": b"\x73\x00\x00\x00A",
    "decimal32": b"\x74" + bytes(4),
    "decimal64": b"\x84" + bytes(8),
    "decimal128": b"\x94" + bytes(16),
    "boolean of 2": b"\x56\x02",
    "string that is not UTF-8": b"\xa1\x02\xc3\x28",
    "long string that is not UTF-8": b"\xb1\x00\x00\x00\x01\xff",
    "symbol that is not UTF-8": b"\xa3\x01\xff",
    "map with a key of binary": map_of(b"\xa0\x01k\x41", 2),
    "map with a list as key": map_of(b"\x45\x41", 2),
    "map with a char": map_of(b"\xa1\x01k\x73\x00\x00\x00A", 2),
    "list with a decimal32": b"\xc0\x06\x01\x74" + bytes(4),
    "array of char": b"\xe0\x06\x01\x73\x00\x00\x00A",
    "array of booleans of 2": b"\xe0\x03\x01\x56\x02",
    "array of strings that are not UTF-8": b"\xe0\x04\x01\xa1\x01\xff",
    "described char": b"\x00\xa3\x01d\x73\x00\x00\x00A",
}
"""Values that a client does not decode anywhere."""

_SYMBOL: Final = encode_value(Symbol("k"))
_STRING: Final = encode_value("k")
_INTEGER: Final = encode_value(1)


def _section(code: int, value: bytes) -> bytes:
    return bytes((0, 0x53, code)) + value


def _fields(code: int, *fields: bytes) -> bytes:
    values = b"".join(fields)
    return _section(code, b"\xc0" + bytes((len(values) + 1, len(fields))) + values)


def _unknown(name: str, value: bytes) -> dict[str, bytes]:
    return {
        f"{name} in delivery annotations": _section(0x71, map_of(_SYMBOL + value, 2)) + BODY,
        f"{name} in annotations": _section(0x72, map_of(_SYMBOL + value, 2)) + BODY,
        f"{name} as a property": _section(0x74, map_of(_STRING + value, 2)) + BODY,
        f"{name} beside a property": _section(0x74, map_of(_STRING + _INTEGER + _STRING + value, 4)) + BODY,
        f"{name} as an id": _fields(0x73, value) + BODY,
        f"{name} in a sequence": _fields(0x76, value),
        f"{name} as a value": _section(0x77, value),
        f"{name} in a footer": BODY + _section(0x78, map_of(_SYMBOL + value, 2)),
    }


_FIELDS: Final = {
    "header": (0x70, (_STRING, _INTEGER, _INTEGER, _STRING, _INTEGER)),
    "properties": (
        0x73,
        (
            *(_INTEGER, _STRING, _INTEGER, _SYMBOL, _SYMBOL, _SYMBOL, _STRING, _STRING),
            *(_INTEGER, _INTEGER, _SYMBOL, _INTEGER, _SYMBOL),
        ),
    ),
}
"""For each field a value of a type that it does not have."""
_WRONG_FIELDS: Final = {
    f"field {index} of {name}": _fields(code, *(_NULL,) * index, value) + BODY
    for name, (code, values) in _FIELDS.items()
    for index, value in enumerate(values)
}
_SECTIONS: Final = {
    f"{kind} as {name}": _section(code, value) + BODY
    for name, code, values in (
        ("header", 0x70, {"null": _NULL, "map": map_of(b"", 0), "string": _STRING}),
        ("delivery annotations", 0x71, {"list": b"\x45", "string": _STRING}),
        ("annotations", 0x72, {"list": b"\x45", "string": _STRING}),
        ("properties", 0x73, {"null": _NULL, "map": map_of(b"", 0), "integer": _INTEGER}),
        ("application properties", 0x74, {"null": _NULL, "list": b"\x45", "string": _STRING}),
        ("data", 0x75, {"null": _NULL, "string": _STRING, "list": b"\x45"}),
        ("sequence", 0x76, {"null": _NULL, "map": map_of(b"", 0), "array": b"\xe0\x03\x01\x50\x01"}),
        ("footer", 0x78, {"null": _NULL, "list": b"\x45", "string": _STRING}),
    )
    for kind, value in values.items()
}
_KEYS: Final = {
    f"{kind} as a key of {name}": _section(code, map_of(key + b"\x41", 2)) + BODY
    for name, code, keys in (
        ("delivery annotations", 0x71, {"string": _STRING, "ulong": b"\x53\x01", "binary": b"\xa0\x01k"}),
        ("annotations", 0x72, {"string": _STRING, "ulong": b"\x53\x01", "binary": b"\xa0\x01k"}),
        (
            "application properties",
            0x74,
            {"symbol": _SYMBOL, "integer": _INTEGER, "null": _NULL, "map": map_of(b"", 0), "list": b"\x45"},
        ),
        ("footer", 0x78, {"string": _STRING, "map": map_of(b"", 0), "list": b"\x45"}),
    )
    for kind, key in keys.items()
}
_PARTITION_KEYS: Final = {
    f"{kind} as partition key": _section(0x72, map_of(name + value, 2)) + BODY
    for name in (encode_value(Symbol("x-opt-partition-key")),)
    for kind, value in (
        ("integer", _INTEGER),
        ("symbol", _SYMBOL),
        ("null", _NULL),
        ("string that is not UTF-8", b"\xa1\x01\xff"),
    )
} | {
    "integer as partition key of a long name": _section(
        0x72, map_of(b"\xb3\x00\x00\x00\x13x-opt-partition-key" + _INTEGER, 2)
    )
    + BODY
}
UNDECODABLE: Final[dict[str, bytes]] = {
    **{name: event for kind, value in _UNKNOWN.items() for name, event in _unknown(kind, value).items()},
    **_WRONG_FIELDS,
    **_SECTIONS,
    **_KEYS,
    **_PARTITION_KEYS,
    "a body after a value of null": _section(0x77, _NULL) + BODY,
    "two values": _section(0x77, _NULL) * 2,
    "a sequence after data": BODY + _section(0x76, b"\x45"),
}
