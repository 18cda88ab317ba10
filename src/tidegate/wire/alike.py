"""Whether all clients can decode an encoded event, and find the same values in it.

**Other values.** The service finds the end of a list, map or array by its size. Others go by its count, and
read the rest as the next sections: the official Python client (azure-eventhub 5.15.1,
``_pyamqp/_decode.py``), JavaScript's (rhea 3.0.5, ``lib/types.js``) and Go's (go-amqp 1.5.0,
``internal/encoding/decode.go``). So an event with a size that disagrees with its count can hide annotations
that replace the service's: another offset, another publisher. The clients' decoders also have mistakes of
their own, found by comparing what they read:

    Python     leaves the last key of an odd count unread, and so an empty array's constructor
    Java       reads the fields of the protocol's own outcome "accepted" as what follows it (proton-j 0.34)
    Rust       reads what is beyond the fields of a header or of properties as the next section, and the
               second list in an array from its size (fe2o3-amqp 0.16, serde_amqp)

**No values.** A client that cannot decode an event receives neither it nor those after it: it asks for the
same position again, or, like Python's, waits without an error. Found by giving each decoder every type in
every place:

    Python     has no char, decimal32 and decimal64; some decimal128s raise, and so do a header or properties
               that are null, and a map's key that Python cannot hash
    JavaScript refuses application properties or a footer that are null, and data after a value of null
    Go         has no char and no decimals, panics at a map's key of binary, checks the types of fields and of
               application properties' keys, and takes only a string for a partition key
    Java       checks strings for UTF-8, and takes only symbols for keys of annotations
    Rust       checks symbols for UTF-8, the types of ids, and that a boolean is 0 or 1

Such events are delivered as bodies. Only .NET's and Java's SDKs write chars and decimals (Python's writes
decimal128); no SDK writes the others. One kind is delivered as it was sent, because the SDKs for Python,
JavaScript, Go and Java write and read it: a list, map or array as an application property, which the
standard rules out (part 3 section 3.2.5) and Rust's decoder refuses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Final

from tidegate.amqp.decode import DEPTH_MAX
from tidegate.amqp.encode import encode_value
from tidegate.amqp.errors import DecodeError
from tidegate.amqp.message import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Section,
)
from tidegate.wire.names import PARTITION_KEY

_VALUES_MAX: Final = 20_000
"""Values of an event that are walked one by one (our choice: 20 ms at most)."""
_LIST_STEPS: Final = 4
"""Values that a list or map with values in it counts as."""
_RUN: Final = 64
"""Short plain values that one match skips."""
_RUN_PER_VALUE: Final = 12
_PLAIN_PER_VALUE: Final = 2
"""Short plain values that count as one: in lists those that are skipped in runs (240,000 numbers take 6 ms),
and others, which a regular expression finds one by one (40,000 take 13 ms)."""
_SEARCHED_BYTES: Final = 1024
"""Bytes that are searched for all values that they hold. In more, only as many are looked for as there should
be: the count may be a lie."""
_PROPERTIES_MAX: Final = 1_000
"""Keys and values of application properties that are only searched; more are counted."""

_NULL: Final = 0x40
_BOOLEAN: Final = 0x56
_LIST_0: Final = 0x45
_FIXED: Final = {
    **dict.fromkeys(range(0x40, 0x46), 0),
    **dict.fromkeys(range(0x50, 0x57), 1),
    **dict.fromkeys((0x60, 0x61), 2),
    **dict.fromkeys(range(0x70, 0x73), 4),
    **dict.fromkeys(range(0x80, 0x84), 8),
    0x98: 16,
}
"""Bytes after the constructor of a value of fixed width (AMQP 1.0 part 1 section 1.6)."""
_UNREADABLE: Final = {0x73: "char", 0x74: "decimal32", 0x84: "decimal64", 0x94: "decimal128"}
"""The values of fixed width that are missing above."""
_VARIABLE: Final = {0xA0: 1, 0xA1: 1, 0xA3: 1, 0xB0: 4, 0xB1: 4, 0xB3: 4}
_COMPOUND: Final = {0xC0: 1, 0xC1: 1, 0xD0: 4, 0xD1: 4}
_ARRAY: Final = {0xE0: 1, 0xF0: 4}
"""Bytes of the size, and of the count where there is one."""

_BINARY: Final = frozenset((0xA0, 0xB0))
_STRING: Final = frozenset((0xA1, 0xB1))
_SYMBOL: Final = frozenset((0xA3, 0xB3))
_LIST: Final = frozenset((_LIST_0, 0xC0, 0xD0))
_MAP: Final = frozenset((0xC1, 0xD1))
_UINT: Final = frozenset((0x43, 0x52, 0x70))
_TIMESTAMP: Final = frozenset((0x83,))
_FLAG: Final = frozenset((0x41, 0x42, _BOOLEAN))
_ID: Final = _BINARY | _STRING | {0x44, 0x53, 0x80, 0x98}
_NESTED_KEYS: Final = frozenset((*_FIXED, *_STRING, *_SYMBOL)) - {_LIST_0}

_SECTIONS: Final = {
    HEADER: _LIST,
    DELIVERY_ANNOTATIONS: _MAP | {_NULL},
    MESSAGE_ANNOTATIONS: _MAP | {_NULL},
    PROPERTIES: _LIST,
    APPLICATION_PROPERTIES: _MAP,
    DATA: _BINARY,
    AMQP_SEQUENCE: _LIST,
    FOOTER: _MAP,
}
"""Constructors of the sections' values (part 3 section 3.2). Annotations that are null are not delivered."""
_KEYS: Final = {
    DELIVERY_ANNOTATIONS: _SYMBOL,
    MESSAGE_ANNOTATIONS: _SYMBOL,
    APPLICATION_PROPERTIES: _STRING,
    FOOTER: _SYMBOL,
}
_FIELDS: Final[dict[int, tuple[frozenset[int], ...]]] = {
    HEADER: (_FLAG, frozenset((0x50,)), _UINT, _FLAG, _UINT),
    PROPERTIES: (
        *(_ID, _BINARY, _STRING, _STRING, _STRING, _ID, _SYMBOL, _SYMBOL),
        *(_TIMESTAMP, _TIMESTAMP, _STRING, _UINT, _STRING),
    ),
}
"""Constructors of the fields of sections that are lists (part 3 sections 3.2.1, 3.2.4). Any may be null."""

_BODY: Final = (DATA, AMQP_SEQUENCE, AMQP_VALUE)

_PARTITION_KEYS: Final = (
    encode_value(PARTITION_KEY),
    b"\xb3" + len(PARTITION_KEY).to_bytes(4, "big") + PARTITION_KEY.encode(),
)

_FIELD_BYTES_MAX: Final = 48
_VALUE_BYTES_MAX: Final = 128
"""Lengths from which binary, strings and symbols are not short (our choice: patterns compile in 25 ms)."""


def _sized(constructors: Iterable[int], content: bytes, length_max: int) -> bytes:
    """A pattern of values that a byte with their length precedes."""
    lengths = b"|".join(b"\\x%02x%b{%d}" % (length, content, length) for length in range(length_max))
    return _any_of(constructors) + b"(?:%b)" % lengths


def _any_of(constructors: Iterable[int]) -> bytes:
    return b"[%b]" % b"".join(b"\\x%02x" % constructor for constructor in sorted(constructors))


_SHORT_BINARY: Final = frozenset((0xA0,))
_SHORT_TEXT: Final = frozenset((0xA1, 0xA3))
_ASCII: Final = b"[\\x00-\\x7f]"


def _plain(constructors: Iterable[int], text: bytes, length_max: int = _VALUE_BYTES_MAX) -> bytes:
    """A pattern of values of these types; long ones are left out."""
    wanted = frozenset(constructors)
    parts = [b"\\x56[\\x00\\x01]"] if _BOOLEAN in wanted else []
    for width in sorted({_FIXED[each] for each in wanted & _FIXED.keys()}):
        same = [each for each in wanted - {_BOOLEAN} if _FIXED.get(each) == width]
        if same:
            parts.append(_any_of(same) + b".{%d}" % width)
    for short, content in ((_SHORT_TEXT, text), (_SHORT_BINARY, b".")):
        if wanted & short:
            parts.append(_sized(wanted & short, content, length_max))
    return b"|".join(parts)


def _fields(kinds: Iterable[Iterable[int]]) -> bytes:
    """A pattern of the first so many fields of a list, each a group."""
    pattern = b""
    for kind in reversed([*kinds]):
        pattern = b"(?:(%b)%b)?" % (_plain({_NULL, *kind}, _ASCII, _FIELD_BYTES_MAX), pattern)
    return pattern


def _finder(pattern: bytes) -> re.Pattern[bytes]:
    """Finds matches that follow each other, and b"" as the last if the next bytes do not match."""
    return re.compile(b"(%b)|.+" % pattern, re.DOTALL)


_ANY: Final = frozenset((*_FIXED, *_VARIABLE))


# Made when they are first used: they would take a tenth of the time in which a service or client starts.
@cache
def _values() -> re.Pattern[bytes]:
    return _finder(_plain(_ANY, b"."))


@cache
def _properties() -> re.Pattern[bytes]:
    return _finder(b"%b(?:%b)" % (_sized((0xA1,), _ASCII, _VALUE_BYTES_MAX), _plain(_ANY, _ASCII)))


@cache
def _run() -> re.Pattern[bytes]:
    return re.compile(b"(?:%b){%d}+" % (_plain(_ANY, _ASCII), _RUN), re.DOTALL)


@cache
def _fields_of(code: int) -> re.Pattern[bytes]:
    return re.compile(_fields(_FIELDS[code]), re.DOTALL)


def are_plain_fields(data: bytes, at: int, end: int, count: int, code: int = PROPERTIES) -> bool:
    """Whether exactly the first ``count`` fields of properties, or of a header (code: HEADER), fill a range,
    all short. False is unsure.
    """
    found = _fields_of(code).fullmatch(data, at, end)
    return found is not None and (found.lastindex or 0) == count


def are_plain_properties(data: bytes, at: int, end: int, count: int) -> bool:
    """As ``are_plain_fields``, for the keys and values of application properties."""
    if end - at <= _SEARCHED_BYTES:
        found = _properties().findall(data, at, end)
    elif count <= _PROPERTIES_MAX:
        found = _first(_properties(), data, at, end, count // 2)
    else:
        return False
    if 2 * len(found) == count and len(b"".join(found)) == end - at:
        return True
    values = _plain_values(data, at, end, count)
    return values is not None and count % 2 == 0 and _are_keys(values[::2], _STRING)


def _plain_values(data: bytes, at: int, end: int, count: int) -> list[bytes] | None:
    """The values that fill a range, if there are ``count``, all of them short and plain."""
    if end - at <= _SEARCHED_BYTES:
        found = _values().findall(data, at, end)
    else:
        found = _first(_values(), data, at, end, count)
    if len(found) != count or len(b"".join(found)) != end - at:
        return None
    # Joined by a byte that no sequence of UTF-8 contains, they are checked in one step.
    texts = b"\0".join([value[2:] for value in found if value[0] in _SHORT_TEXT])
    return found if is_text(texts) else None


def _first(finder: re.Pattern[bytes], data: bytes, at: int, end: int, count: int) -> list[bytes]:
    """The first so many matches, and one more if there is."""
    return [match[1] or b"" for match in islice(finder.finditer(data, at, end), count + 1)]


def _are_keys(values: Iterable[bytes], kinds: frozenset[int]) -> bool:
    return kinds.issuperset([value[0] for value in values])


def is_text(encoded: bytes) -> bool:
    """Whether clients that check strings find UTF-8."""
    if encoded.isascii():
        return True
    try:
        encoded.decode()
    except UnicodeDecodeError:
        return False
    return True


@dataclass(slots=True)
class Steps:
    """Counts what checks of events cost: a step takes a microsecond or two."""

    taken: int = 0


def check_alike(message: bytes, sections: Iterable[Section], steps: Steps | None = None) -> None:
    """Raise DecodeError if clients may find other values or sections than we do, or cannot decode one.

    steps: adds those of this event, also of one that is refused.
    """
    walk = _Walk(message)
    try:
        _check_sections(walk, sections)
    finally:
        if steps is not None:
            steps.taken += walk.values


def _check_sections(walk: _Walk, sections: Iterable[Section]) -> None:
    body = 0
    for code, _, value_start, end in sections:
        walk.check_section(code, value_start, end)
        if code in _BODY:
            if body and (code != body or code == AMQP_VALUE):
                raise DecodeError(
                    f"The section at byte {value_start} is the body of another kind, or a second."
                )
            body = code


class _Walk:
    """Follows the values of one event by size and by count."""

    __slots__ = ("_data", "_depth", "values")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._depth = 0
        self.values = 0
        """Found so far, as ``_VALUES_MAX`` counts them."""

    def check_section(self, code: int, at: int, end: int) -> None:
        """Raise DecodeError unless the value of a section fills a range, and every client decodes it."""
        constructor = self._data[at]
        if constructor not in _SECTIONS.get(code, (constructor,)):
            raise DecodeError(f"Not every client decodes 0x{constructor:02x} as section 0x{code:x}.")
        if self._content_end(constructor, at + 1, end, _KEYS.get(code, _NESTED_KEYS)) != end:
            raise DecodeError(f"The section at byte {at} does not end at byte {end}.")
        if code in _FIELDS and constructor != _LIST_0:
            self._check_fields(_FIELDS[code], constructor, at, end)

    def _check_fields(self, kinds: Sequence[frozenset[int]], constructor: int, at: int, end: int) -> None:
        width = _COMPOUND[constructor]
        if self._number(at + 1 + width, width) > len(kinds):
            raise DecodeError(f"The section at byte {at} has more than {len(kinds)} fields.")
        at += 1 + 2 * width
        for kind in kinds:
            if at == end:
                break
            if self._data[at] != _NULL and self._data[at] not in kind:
                raise DecodeError(
                    f"Not every client decodes 0x{self._data[at]:02x} as the field at byte {at}."
                )
            at = self._value_end(at, end)

    def _check_values(self, at: int, end: int, count: int) -> None:
        for _ in range(count):
            at = self._value_end(at, end)
        self._check_end(at, end)

    def _check_entries(self, at: int, end: int, count: int, keys: frozenset[int]) -> None:
        for _ in range(count // 2):
            value_at = self._value_end(at, end)
            if self._data[at] not in keys:
                raise DecodeError(f"Not every client decodes 0x{self._data[at]:02x} as the key at byte {at}.")
            is_partition_key = keys is _SYMBOL and self._data[at:value_at] in _PARTITION_KEYS
            at = self._value_end(value_at, end)
            if is_partition_key and self._data[value_at] not in _STRING:
                raise DecodeError(f"The partition key at byte {value_at} is not a string.")
        self._check_end(at, end)

    def _check_end(self, at: int, end: int) -> None:
        if at != end:
            raise DecodeError(f"Values end at byte {at}, and the size around them says {end}.")

    def _value_end(self, at: int, end: int) -> int:
        if at >= end:
            raise DecodeError(f"A count includes values after byte {end}, where its size ends.")
        return self._content_end(self._data[at], at + 1, end)

    def _content_end(self, constructor: int, at: int, end: int, keys: frozenset[int] = _NESTED_KEYS) -> int:
        """Where a value ends whose constructor stands before ``at``, or before the array that it is in."""
        self.values += 1
        if self.values > _VALUES_MAX:
            raise _too_many()
        if (width := _FIXED.get(constructor)) is not None:
            if constructor == _BOOLEAN:
                self._check_booleans(at, at + 1)
            return at + width
        if (width := _VARIABLE.get(constructor)) is not None:
            value_end = at + width + self._number(at, width)
            if constructor not in _BINARY and not is_text(self._data[at + width : value_end]):
                raise DecodeError(f"The text at byte {at + width} is not UTF-8.")
            return value_end
        if constructor in _UNREADABLE:
            raise DecodeError(f"Not every client decodes the {_UNREADABLE[constructor]} at byte {at - 1}.")
        if self._depth == DEPTH_MAX:
            raise DecodeError(f"Values are nested more than {DEPTH_MAX} deep.")
        self._depth += 1
        value_end = self._nested_end(constructor, at, end, keys)
        self._depth -= 1
        return value_end

    def _nested_end(self, constructor: int, at: int, end: int, keys: frozenset[int]) -> int:
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
        if constructor in _ARRAY:
            self._check_array(at, value_end, count)
            return value_end
        self.values += _LIST_STEPS - 1
        if constructor in _LIST:
            at, count = self._skip_runs(at, value_end, count)
        if value_end - at > _RUN_PER_VALUE:
            searched = max(count, min(value_end - at, _SEARCHED_BYTES) // 2)
            self.values += searched // _PLAIN_PER_VALUE
            if self.values > _VALUES_MAX:
                raise _too_many()
        if constructor in _LIST:
            if _plain_values(self._data, at, value_end, count) is None:
                self._check_values(at, value_end, count)
        elif count % 2:
            raise DecodeError(f"A map at byte {at} has a key without a value.")
        else:
            values = _plain_values(self._data, at, value_end, count)
            if values is None or not _are_keys(values[::2], keys) or _PARTITION_KEYS[0] in values:
                self._check_entries(at, value_end, count, keys)
        return value_end

    def _skip_runs(self, at: int, end: int, count: int) -> tuple[int, int]:
        """Skip short plain values with text in ASCII; returns where the others begin, and their count."""
        while count >= _RUN and (run := _run().match(self._data, at, end)) is not None:
            at, count = run.end(), count - _RUN
            self.values += _RUN // _RUN_PER_VALUE
            if self.values > _VALUES_MAX:
                raise _too_many()
        return at, count

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
            if element == _BOOLEAN:
                self._check_booleans(at, at + count)
            at += width * count
        else:
            for _ in range(count):
                at = self._content_end(element, at, end)
        self._check_end(at, end)

    def _check_booleans(self, at: int, end: int) -> None:
        if self._data[at:end].strip(b"\x00\x01"):
            raise DecodeError(f"Not every client decodes the boolean at byte {at}.")

    def _number(self, at: int, width: int) -> int:
        if width == 1 and at < len(self._data):
            return self._data[at]
        number = self._data[at : at + width]
        if len(number) < width:
            raise DecodeError(f"The data ends inside the value at byte {at - 1}.")
        return int.from_bytes(number, "big")


def _too_many() -> DecodeError:
    return DecodeError(f"An event has more than {_VALUES_MAX:,} values.")
