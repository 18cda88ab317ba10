"""Whether all clients find the same values in an encoded event.

The service finds the end of a list, map or array by its size. Others go by its count, and read the rest as
the next sections: the official Python client (azure-eventhub 5.15.1, ``_pyamqp/_decode.py``), JavaScript's
(rhea 3.0.5, ``lib/types.js``) and Go's (go-amqp 1.5.0, ``internal/encoding/decode.go``). So an event with a
size that disagrees with its count can hide annotations that replace the service's: another offset, another
publisher. The clients' decoders also have mistakes of their own, found by comparing what they read:

    Python     leaves the last key of an odd count unread, and so an empty array's constructor
    Java       reads the fields of the protocol's own outcome "accepted" as what follows it (proton-j 0.34)
    Rust       reads what is beyond the fields of a header or of properties as the next section, and the
               second list in an array from its size (fe2o3-amqp 0.16, serde_amqp)

No SDK writes such events; they are delivered as bodies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from tidegate.amqp.decode import DEPTH_MAX
from tidegate.amqp.errors import DecodeError
from tidegate.amqp.message import HEADER, PROPERTIES, Section

_VALUES_MAX: Final = 20_000
"""Values of an event that are walked one by one (our choice: 10 ms at most). Not counted are those of lists
and maps with nothing but short plain values, which a regular expression finds."""

_FIXED: Final = {
    **dict.fromkeys(range(0x40, 0x46), 0),
    **dict.fromkeys(range(0x50, 0x57), 1),
    **dict.fromkeys((0x60, 0x61), 2),
    **dict.fromkeys(range(0x70, 0x75), 4),
    **dict.fromkeys(range(0x80, 0x85), 8),
    **dict.fromkeys((0x94, 0x98), 16),
}
"""Bytes after the constructor of a value of fixed width (AMQP 1.0 part 1 section 1.6)."""
_VARIABLE: Final = {0xA0: 1, 0xA1: 1, 0xA3: 1, 0xB0: 4, 0xB1: 4, 0xB3: 4}
_COMPOUND: Final = {0xC0: 1, 0xC1: 1, 0xD0: 4, 0xD1: 4}
_ARRAY: Final = {0xE0: 1, 0xF0: 4}
"""Bytes of the size, and of the count where there is one."""
_MAPS: Final = (0xC1, 0xD1)

FIELDS_MAX: Final = {HEADER: 5, PROPERTIES: 13}
"""Fields of the sections that are lists (part 3 sections 3.2.1 and 3.2.4)."""


def _short_plain_value() -> bytes:
    """A pattern of every value of fixed width, and of binary, strings and symbols of less than 128 bytes."""
    widths: dict[int, list[bytes]] = {}
    for constructor, width in _FIXED.items():
        widths.setdefault(width, []).append(b"\\x%02x" % constructor)
    fixed = [b"[%b].{%d}" % (b"".join(constructors), width) for width, constructors in widths.items()]
    sized = b"|".join(b"\\x%02x.{%d}" % (size, size) for size in range(128))
    return b"|".join((*fixed, b"[\\xa0\\xa1\\xa3](?:%b)" % sized))


_find_plain: Final = re.compile(_short_plain_value(), re.DOTALL).findall


def are_plain(data: bytes, at: int, end: int, count: int) -> bool:
    """Whether exactly ``count`` values fill a range, all of them short and plain. False is not certain."""
    found = _find_plain(data, at, end)
    return len(found) == count and len(b"".join(found)) == end - at


def check_alike(message: bytes, sections: Iterable[Section]) -> None:
    """Raise DecodeError if clients may find other values in these sections, or other sections, than we do."""
    walk = _Walk(message)
    for code, _, value_start, end in sections:
        walk.check(value_start, end, 1)
        if code in FIELDS_MAX:
            walk.check_fields(value_start, FIELDS_MAX[code])


class _Walk:
    """Follows the values of one event by size and by count."""

    __slots__ = ("_data", "_depth", "_values")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._depth = 0
        self._values = 0

    def check(self, at: int, end: int, count: int) -> None:
        """Raise DecodeError unless exactly ``count`` values fill a range, and so on inside each."""
        for _ in range(count):
            at = self._value_end(at, end)
        if at != end:
            raise DecodeError(f"Values end at byte {at}, and the size around them says {end}.")

    def check_fields(self, at: int, fields_max: int) -> None:
        """Raise DecodeError unless the value at ``at``, which was checked, is a list of so many or fewer."""
        constructor = self._data[at]
        width = _COMPOUND.get(constructor)
        if width is None or constructor in _MAPS:
            is_list = constructor in (0x40, 0x45)
        else:
            is_list = self._number(at + 1 + width, width) <= fields_max
        if not is_list:
            raise DecodeError(f"The section at byte {at} is not a list of {fields_max} fields or less.")

    def _value_end(self, at: int, end: int) -> int:
        if at >= end:
            raise DecodeError(f"A count includes values after byte {end}, where its size ends.")
        return self._content_end(self._data[at], at + 1, end)

    def _content_end(self, constructor: int, at: int, end: int) -> int:
        """Where a value ends whose constructor stands before ``at``, or before the array that it is in."""
        self._values += 1
        if self._values > _VALUES_MAX:
            raise DecodeError(f"An event has more than {_VALUES_MAX:,} values.")
        if (width := _FIXED.get(constructor)) is not None:
            return at + width
        if (width := _VARIABLE.get(constructor)) is not None:
            return at + width + self._number(at, width)
        if self._depth == DEPTH_MAX:
            raise DecodeError(f"Values are nested more than {DEPTH_MAX} deep.")
        self._depth += 1
        value_end = self._nested_end(constructor, at, end)
        self._depth -= 1
        return value_end

    def _nested_end(self, constructor: int, at: int, end: int) -> int:
        if constructor == 0:
            self._check_descriptor(at, end)
            return self._value_end(self._value_end(at, end), end)
        width = _COMPOUND.get(constructor) or _ARRAY.get(constructor)
        if width is None:
            raise DecodeError(f"0x{constructor:02x} at byte {at - 1} is not an AMQP constructor.")
        value_end = at + width + self._number(at, width)
        count = self._number(at + width, width)
        at += 2 * width
        if value_end > end:
            raise DecodeError(f"A value ends at byte {value_end}, after the {end} of what it is in.")
        if constructor in _MAPS and count % 2:
            raise DecodeError(f"A map at byte {at} has a key without a value.")
        if constructor in _ARRAY:
            self._check_array(at, value_end, count)
        elif not are_plain(self._data, at, value_end, count):
            self.check(at, value_end, count)
        return value_end

    def _check_descriptor(self, at: int, end: int) -> None:
        """Refuse the descriptors of the protocol's own types: clients make objects of them, each its own way.

        Others are symbols of other names, or numbers with a vendor's id in the upper half (part 1 section
        1.3): the SDKs' time spans, dates and URIs are symbols.
        """
        data, constructor = self._data, self._data[at] if at < end else 0
        width = {0xA3: 1, 0xB3: 4}.get(constructor)
        if width is not None:
            start = at + 1 + width
            name = bytes(byte & 0x7F for byte in data[start : start + 5])  # as JavaScript reads symbols
            is_others = name.lower() != b"amqp:"
        else:
            is_others = constructor == 0x80 and any(data[at + 1 : at + 5])
        if not is_others:
            raise DecodeError(f"Clients read the described value at byte {at - 1} differently.")

    def _check_array(self, at: int, end: int, count: int) -> None:
        element = self._data[at] if at < end else 0
        if count == 0 or not (_FIXED.get(element) or element in _VARIABLE):
            raise DecodeError(f"Clients read the array at byte {at} differently.")
        at += 1
        if (width := _FIXED.get(element)) is not None:
            at += width * count
        else:
            for _ in range(count):
                at = self._content_end(element, at, end)
        self.check(at, end, 0)

    def _number(self, at: int, width: int) -> int:
        number = self._data[at : at + width]
        if len(number) < width:
            raise DecodeError(f"The data ends inside the value at byte {at - 1}.")
        return int.from_bytes(number, "big")
