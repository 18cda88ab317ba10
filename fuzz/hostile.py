"""Inputs that are made to be expensive: as much time or memory as their bytes can ask of a decoder.

``SHAPES`` are single values of about so many bytes; ``PLACES`` puts a value where a peer may send one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from fuzz.targets import TARGETS
from tidegate.wire.batch import batch_envelope, wrap_event

_HASH_MODULUS: Final = 2**61 - 1
"""Python's hash of an integer is its rest by this, and a UUID's is that of its integer."""


def plain_list(size: int) -> bytes:
    """What any decoder has to take: a list of small integers. The others are measured beside it."""
    return _list(size, lambda number: b"\x50\x01")


def _compound(constructor: int, count: int, content: bytes) -> bytes:
    return struct.pack(">BII", constructor, len(content) + 4, count) + content


def _list(size: int, item: Callable[[int], bytes]) -> bytes:
    count = max(1, size // len(item(1)))
    return _compound(0xD0, count, b"".join(map(item, range(count))))


def _map(size: int, key: Callable[[int], bytes], value: bytes = b"\x40") -> bytes:
    count = max(1, size // len(key(1) + value))
    return _compound(0xD1, 2 * count, b"".join(key(number) + value for number in range(count)))


def _uuid(number: int) -> bytes:
    return b"\x98" + (number * _HASH_MODULUS).to_bytes(16, "big")


def _long(number: int) -> bytes:
    """Longs in groups that share a hash, as many as 64 bits have room for."""
    group, place = divmod(number, 8)
    return b"\x81" + struct.pack(">q", group + (place - 4) * _HASH_MODULUS)


def _array_of_zero_width(size: int) -> bytes:
    return _list(size, lambda number: b"\xe0\x02\x40\x45")


def _array(size: int, descriptors: bytes) -> bytes:
    content = descriptors + b"\x50" + bytes(size)
    return _compound(0xF0, size, content)


def _nested_maps(size: int) -> bytes:
    """Maps in maps as deep as is allowed, side by side."""
    value = b"\x40"
    for _ in range(28):
        value = _compound(0xD1, 2, b"\xa3\x01k" + value)
    return _list(size, lambda number: value)


SHAPES: Final[dict[str, Callable[[int], bytes]]] = {
    "map-of-uuid": lambda size: _map(size, _uuid),
    "map-of-described": lambda size: _map(size, lambda number: b"\x00\x53\x01" + _uuid(number)),
    "map-of-array": lambda size: _map(size, lambda number: b"\xe0\x12\x01" + _uuid(number)),
    "map-of-colliding-longs": lambda size: _map(size, _long),
    "map-of-doubles": lambda size: _map(size, lambda number: b"\x82" + struct.pack(">d", number)),
    "map-of-decimals": lambda size: _map(size, lambda number: b"\x94" + bytes(16)),
    "map-of-strings": lambda size: _map(size, lambda number: b"\xa1\x08%08d" % number),
    "map-of-one-symbol": lambda size: _map(size, lambda number: b"\xa3\x01k"),
    "map-of-null": lambda size: _map(size, lambda number: b"\x40"),
    "nested-maps": _nested_maps,
    "maps-of-uuid": lambda size: _list(size, lambda number: _map(2000, _uuid)),
    "list-of-empty-lists": lambda size: _list(size, lambda number: b"\x45"),
    "list-of-empty-maps": lambda size: _list(size, lambda number: b"\xc1\x01\x00"),
    "list-of-empty-arrays": lambda size: _list(size, lambda number: b"\xe0\x01\x00"),
    "list-of-uuid": lambda size: _list(size, _uuid),
    "list-of-symbols": lambda size: _list(size, lambda number: b"\xa3\x01s"),
    "list-of-described": lambda size: _list(size, lambda number: b"\x00\x53\x01\x40"),
    "arrays-of-no-width": _array_of_zero_width,
    "array-of-described": lambda size: _array(size, b"\x00\x53\x01"),
    "array-of-32-descriptors": lambda size: _array(size, b"\x00\x45" * 32),
    "array-of-a-long-descriptor": lambda size: _array(
        size // 2, b"\x00\xb3" + struct.pack(">I", size // 2) + b"s" * (size // 2)
    ),
}


def _open(value: bytes) -> bytes:
    fields = b"\xa1\x01c" + b"\x40" * 8 + value
    return b"\x00\x53\x10" + _compound(0xD0, 10, fields)


def _attach(value: bytes) -> bytes:
    source = b"\x00\x53\x28" + _compound(0xD0, 8, b"\xa1\x01a" + b"\x40" * 6 + value)
    return b"\x00\x53\x12" + _compound(0xD0, 6, b"\xa1\x01n\x43\x41\x40\x40" + source)


def _section(code: int, value: bytes) -> bytes:
    return bytes((0, 0x53, code)) + value


_BODY = b"\x00\x53\x75\xa0\x01x"


PLACES: Final[dict[str, tuple[str, Callable[[bytes], bytes]]]] = {
    "open": ("performative", _open),
    "attach": ("performative", _attach),
    "value": ("value", lambda value: value),
    "annotations": ("message", lambda value: _section(0x72, value) + _BODY),
    "delivery-annotations": ("message", lambda value: _section(0x71, value) + _BODY),
    "properties": ("message", lambda value: _section(0x74, value) + _BODY),
    "body": ("message", lambda value: _section(0x77, value)),
    "request": ("message", lambda value: _section(0x74, b"\xc1\x01\x00") + _section(0x77, value)),
    "batch": ("batch", lambda value: batch_envelope() + wrap_event(_section(0x72, value) + _BODY)),
    "batch-body": ("batch", lambda value: batch_envelope() + wrap_event(_section(0x77, value))),
}
"""The target of ``targets.TARGETS`` that takes such bytes, and what goes around the value."""

MANY: Final[dict[str, tuple[str, Callable[[int], bytes]]]] = {
    "sequences": ("message", lambda size: _section(0x76, b"\x45") * (size // 4)),
    "footers": ("message", lambda size: _section(0x78, b"\x40") * (size // 4)),
    "data": ("message", lambda size: _section(0x75, b"\xa0\x00") * (size // 5)),
    "annotations": ("message", lambda size: _section(0x72, b"\xc1\x01\x00") * (size // 6)),
    "events": ("batch", lambda size: wrap_event(b"") * (size // 5)),
    "odd-events": ("batch", lambda size: b"\x00\x80\0\0\0\0\0\0\0\x75\xa0\x00" * (size // 12)),
    "events-of-annotations": ("batch", lambda size: wrap_event(b"\x00\x53\x72\xc1\x01\x00") * (size // 11)),
}
"""Inputs that consist of many small parts instead of one large value."""


def hostile_inputs(size: int) -> dict[str, tuple[str, bytes]]:
    """Name to target and bytes, of about ``size`` bytes each."""
    found = {
        f"{place}-{shape}": (target, around(make(size)))
        for place, (target, around) in PLACES.items()
        for shape, make in SHAPES.items()
    }
    found |= {f"many-{name}": (target, make(size)) for name, (target, make) in MANY.items()}
    assert {target for target, _ in found.values()} <= TARGETS.keys()
    return found
