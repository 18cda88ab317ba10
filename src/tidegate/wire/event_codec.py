"""Single events: encodes ``EventData``, and decodes messages to bodies or whole contents.

Hot paths: the shapes that our client and the official ones write are handled here, anything else (rarer
encodings, bodies of several parts) by the general codec. An integer property is encoded as an int if it fits,
else as a long, as the official Python client does. Our messages have no header section.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from itertools import repeat
from types import ModuleType
from typing import Any, Final, cast
from uuid import UUID

from tidegate.amqp.decode import (
    CONTENT_LIMITS,
    PROTOCOL_LIMITS,
    Buffer,
    Limits,
    check_key,
    decode_value,
)
from tidegate.amqp.encode import encode_value
from tidegate.amqp.errors import DecodeError, EncodeError
from tidegate.amqp.message import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Properties,
    iter_sections,
)
from tidegate.amqp.performatives import encode_composite
from tidegate.amqp.types import Decimal, Symbol, Timestamp
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import EventContents, EventData, PropertyValue, ReceivedEvent
from tidegate.model.times import milliseconds_of, time_of
from tidegate.wire.batch import DATA_SECTION_8, DATA_SECTION_32
from tidegate.wire.names import PARTITION_KEY

try:
    from tidegate.wire import _usual_events  # type: ignore[attr-defined]
except ImportError:  # not compiled: no compiler, or no wheel of this platform
    _usual_events = None
usual_events: ModuleType | None = _usual_events
"""The extension, which does what this module does for usual events, and returns None for others."""

_two_u32 = struct.Struct(">II").unpack_from
_u32 = struct.Struct(">I").unpack_from
_s8 = struct.Struct(">b").unpack_from
_s32 = struct.Struct(">i").unpack_from
_s64 = struct.Struct(">q").unpack_from
_double = struct.Struct(">d").unpack_from
_pack_u32 = struct.Struct(">BI").pack
_pack_section32 = struct.Struct(">III").pack
_pack_data32 = struct.Struct(">II").pack
_pack_s8 = struct.Struct(">Bb").pack
_pack_s32 = struct.Struct(">Bi").pack
_pack_s64 = struct.Struct(">Bq").pack
_pack_double = struct.Struct(">Bd").pack

_KEPT_NAME_CHARACTERS_MAX: Final = 128

_PROPERTIES_MAP_8: Final = b"\x00\x53\x74\xc1"
_PROPERTIES_MAP_32: Final = 0x005374D1


# --- encoding ------------------------------------------------------------------------------------------


def encode_event(event: EventData, partition_key: str | None = None) -> bytes:
    """The event as an encoded AMQP message, ready for ``batch.wrap_event``.

    Raises InvalidArgumentError, naming the property, for a value that an event cannot hold.
    """
    key_section = b""
    if partition_key is not None:
        try:
            key_section = _kept_key_section(partition_key)
        except _LongNameError:
            key_section = encode_key(partition_key)
    try:
        has_standard = not (event.content_type is event.message_id is event.correlation_id is None)
    except AttributeError as error:
        raise InvalidArgumentError(
            f"An event to send is an EventData, not {type(event).__name__}.",
            next_step="Write EventData(body).",
        ) from error
    if usual_events is not None and not has_standard:
        encoded: bytes | None = usual_events.encode_usual(key_section, event.properties, event.body)
        if encoded is not None:
            return encoded
    parts: list[bytes] = [key_section]
    if has_standard:
        content = None if event.content_type is None else Symbol(event.content_type)
        standard = Properties(
            message_id=event.message_id, correlation_id=event.correlation_id, content_type=content
        )
        parts.append(encode_composite(standard))
    if event.properties:
        parts += _application_properties(event.properties)
    body = event.body
    length = len(body)
    if length < 256:
        parts += (b"\x00\x53\x75\xa0", bytes((length,)), body)
    else:
        parts += (_pack_data32(DATA_SECTION_32, length), body)
    return b"".join(parts)


@lru_cache(maxsize=65536)  # does not keep exceptions
def _kept_key_section(partition_key: str) -> bytes:
    if not isinstance(partition_key, str):
        raise InvalidArgumentError(f"A partition key must be a string, got {type(partition_key).__name__}.")
    if len(partition_key) > _KEPT_NAME_CHARACTERS_MAX:
        raise _LongNameError
    return encode_key(partition_key)


def encode_key(partition_key: str) -> bytes:
    """The section that ``encode_event`` begins with for this partition key; it is not cached."""
    return b"\x00\x53\x72" + encode_value({PARTITION_KEY: partition_key})


def _application_properties(properties: Mapping[str, PropertyValue]) -> tuple[bytes, bytes]:
    """The section's first bytes, and its entries."""
    entries: list[bytes] = []
    append, encoded_key = entries.append, _encoded_key
    for key, value in properties.items():
        try:
            try:
                append(encoded_key(key))
            except _LongNameError:
                append(encode_value(str(key)))
            if type(value) is str:
                text = value.encode()
                length = len(text)
                append(b"\xa1%c%b" % (length, text) if length < 256 else _pack_u32(0xB1, length) + text)
            else:
                encoder = _PROPERTY_ENCODERS.get(type(value)) or _property_encoder(key, value)
                append(encoder(value))
        except (struct.error, EncodeError, OverflowError, UnicodeEncodeError) as exc:
            raise InvalidArgumentError(
                f"The property {key[:80]!r} cannot be encoded in AMQP: {exc}."
            ) from exc
    joined = b"".join(entries)
    size, count = len(joined), 2 * len(properties)
    if size < 255 and count < 256:
        return _PROPERTIES_MAP_8 + bytes((size + 1, count)), joined
    return _pack_section32(_PROPERTIES_MAP_32, size + 4, count), joined


class EncodedProperty(bytes):
    """A property's value in its AMQP encoding: one that ``EventData`` cannot hold, as a list or a map."""


class _LongNameError(Exception):
    """A name or key too long for the cache: those chosen by remote senders must not fill the memory."""


@lru_cache(maxsize=1024)  # does not keep exceptions
def _encoded_key(key: str) -> bytes:
    if not isinstance(key, str):
        raise InvalidArgumentError(f"A property name must be a string, got {type(key).__name__}.")
    if len(key) > _KEPT_NAME_CHARACTERS_MAX:
        raise _LongNameError
    return encode_value(str(key))


def _encode_integer(value: int) -> bytes:
    if -128 <= value < 128:
        return _pack_s8(0x54, value)
    return _pack_s32(0x71, value) if -(2**31) <= value < 2**31 else _pack_s64(0x81, value)


def _encode_time(value: datetime) -> bytes:
    if value.tzinfo is None:
        raise EncodeError(f"The time {value!r} has no time zone.")
    return encode_value(Timestamp(milliseconds_of(value)))


_PROPERTY_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda value: b"\x40",
    bool: lambda value: b"\x41" if value else b"\x42",
    int: _encode_integer,
    float: lambda value: _pack_double(0x82, value),
    bytes: encode_value,
    UUID: encode_value,
    datetime: _encode_time,
    EncodedProperty: lambda value: value,
}


def _property_encoder(key: str, value: object) -> Callable[[Any], bytes]:
    """The encoder for a subclass of a known type (``StrEnum``, ``IntEnum``, pandas' Timestamp)."""
    for kind, encoder in _PROPERTY_ENCODERS.items():
        if kind is not bool and isinstance(value, kind):
            return encoder
    if isinstance(value, str):
        return lambda text: encode_value(str(text))
    raise InvalidArgumentError(
        f"The property {key[:80]!r} has the unsupported type {type(value).__name__}.",
        next_step="Use None, bool, int, float, str, bytes, datetime or UUID.",
    )


# --- decoding: when it is needed -------------------------------------------------------------------------


def received_events(
    partition_id: str,
    sequence_numbers: Iterable[int],
    offsets: Iterable[str],
    enqueued_times_ms: Iterable[int],
    messages: Iterable[bytes | memoryview],
) -> list[ReceivedEvent]:
    """The events of these columns, which have one length; each is decoded when it is first used."""
    columns = sequence_numbers, offsets, enqueued_times_ms, messages
    if usual_events is not None:
        events: list[ReceivedEvent] = usual_events.received_events(
            partition_id, *columns, decode_event, event_body
        )
        return events
    # ``map`` with positional arguments costs half as much as a comprehension with keywords.
    return [*map(ReceivedEvent, repeat(partition_id), *columns, repeat(decode_event), repeat(event_body))]


# --- decoding: the body alone --------------------------------------------------------------------------


def event_body(encoded: Buffer) -> bytes | memoryview:
    """The body of an encoded event. Everything before it is skipped, not decoded.

    Several data sections are joined; a body of another kind (value, sequence) and a missing one are empty.
    Raises DecodeError if the bytes are not a message.
    """
    if usual_events is not None:
        body: bytes | None = usual_events.body_of_usual(encoded)
        if body is not None:
            return body
    view = memoryview(encoded)
    bounds = _only_data_section(view, len(view))
    return view[bounds[0] : bounds[1]] if bounds is not None else memoryview(_joined_data(view))


def _only_data_section(data: Buffer, until: int) -> tuple[int, int] | None:
    """The range of the only data section's content; None if the general codec must decide."""
    at = 0
    last_word = until - 8
    while at <= last_word:
        word, size = _two_u32(data, at)
        if word == DATA_SECTION_8:
            start = at + 5
            end = start + (size >> 24)
        elif word == DATA_SECTION_32:
            start = at + 8
            end = start + size
        elif 0x005370 <= word >> 8 <= 0x005374 and word & 0xC0 == 0xC0:
            at += 8 + size if word & 0x10 else 5 + (size >> 24)
            continue
        else:
            return None
        return (start, end) if end == until else None  # more data may follow, or a footer
    return None


def _joined_data(data: Buffer) -> bytes:
    parts: list[bytes] = []
    for code, _, value_start, _ in iter_sections(data):
        if code == DATA:
            value, _ = decode_value(data, value_start)
            if not isinstance(value, bytes):
                raise DecodeError(f"A data section holds a {type(value).__name__}.")
            parts.append(value)
    return b"".join(parts)


# --- decoding: everything ------------------------------------------------------------------------------


def decode_event(encoded: bytes | memoryview) -> EventContents:
    """Everything in an encoded event.

    Property values become plain Python values: a symbol is a ``str``, a timestamp a ``datetime`` in UTC (or
    milliseconds, beyond the range of datetime), any integer an ``int``.
    Raises DecodeError if the bytes are not a message.
    """
    data = encoded if isinstance(encoded, bytes) else bytes(encoded)
    usual: EventContents | None = None if usual_events is None else usual_events.decode_usual(data)
    usual = usual or _decode_usual(data)
    if usual is not None:
        return usual
    # Any other shape: section by section.
    bodies: list[bytes] = []
    body_value: object = None
    properties: dict[str, PropertyValue] = {}
    partition_key: str | None = None
    standard: list[object] = []
    sequences: list[object] = []
    for code, _, value_start, end in iter_sections(data):
        if code == DATA and data[value_start] == 0xA0:
            bodies.append(data[value_start + 2 : end])
        elif code == DATA and data[value_start] == 0xB0:
            bodies.append(data[value_start + 5 : end])
        elif code == APPLICATION_PROPERTIES:
            properties = _decode_properties(data, value_start, end)
        elif code == MESSAGE_ANNOTATIONS:
            annotations = _decoded(data, value_start, end, PROTOCOL_LIMITS)
            if isinstance(annotations, dict) and isinstance(annotations.get(PARTITION_KEY), str):
                partition_key = annotations[PARTITION_KEY]
        elif code == PROPERTIES:
            value = _decoded(data, value_start, end, PROTOCOL_LIMITS)
            standard = value if isinstance(value, list) else []
        elif code == AMQP_VALUE:
            body_value = _decoded(data, value_start, end)
        elif code == AMQP_SEQUENCE:
            sequences.append(_decoded(data, value_start, end))
            body_value = sequences
        elif code == DATA:
            raise DecodeError("A data section is not binary.")
    return EventContents(
        body=bodies[0] if len(bodies) == 1 else b"".join(bodies),
        properties=properties,
        partition_key=partition_key,
        content_type=_standard_text(standard, 6),
        message_id=_standard_text(standard, 0),
        correlation_id=_standard_text(standard, 5),
        body_value=body_value,
    )


def _decode_usual(data: bytes) -> EventContents | None:
    """Handles small application properties and one data section, which most events are; else None."""
    if not data.startswith(_PROPERTIES_MAP_8) or len(data) < 8:
        return None
    properties_end = 5 + data[4]
    try:
        word, size = _two_u32(data, properties_end)
    except struct.error:
        return None
    if word == DATA_SECTION_32:
        start = properties_end + 8
    elif word == DATA_SECTION_8:
        start, size = properties_end + 5, size >> 24
    else:
        return None
    if start + size != len(data):
        return None
    return EventContents(data[start:], _decode_properties(data, 3, properties_end))


def _decoded(data: bytes, value_start: int, end: int, limits: Limits = CONTENT_LIMITS) -> object:
    value, value_end = decode_value(data, value_start, limits)
    if value_end != end:
        raise DecodeError(f"A section's value ends at byte {value_end}, and its size says {end}.")
    return value


def _standard_text(standard: list[object], index: int) -> str | None:
    """A standard property as text: an id may also be an integer, a uuid or bytes."""
    value = standard[index] if index < len(standard) else None
    if isinstance(value, bytes):
        return value.hex()
    return str(value) if isinstance(value, (str, int, UUID)) else None


def _decode_properties(data: bytes, at: int, end: int) -> dict[str, PropertyValue]:
    """The application properties; common types bypass the general decoder."""
    constructor = data[at]
    if constructor == 0xC1:
        at += 3
    elif constructor == 0xD1:
        at += 9
    elif constructor == 0x40:
        return {}
    else:
        raise DecodeError(f"The application properties are not a map (0x{constructor:02x}).")
    properties: dict[str, PropertyValue] = {}
    try:
        while at < end:
            if data[at] == 0xA1:
                value_at = at + 2 + data[at + 1]
                key = str(data[at + 2 : value_at], "utf-8")
            else:
                other, value_at = decode_value(data, at)
                check_key(other)
                key = str(other)
            constructor = data[value_at]
            if constructor == 0xA1:
                at = value_at + 2 + data[value_at + 1]
                properties[key] = str(data[value_at + 2 : at], "utf-8")
            elif constructor in _PLAIN_VALUES:
                unpack, width = _PLAIN_VALUES[constructor]
                properties[key] = unpack(data, value_at + 1)[0]
                at = value_at + 1 + width
            else:
                value, at = decode_value(data, value_at, CONTENT_LIMITS)
                properties[key] = _plain(value)
    except (IndexError, struct.error, UnicodeDecodeError) as exc:
        raise DecodeError("The application properties are invalid.") from exc
    if at != end:
        raise DecodeError(f"The application properties end at byte {at}, and their size says {end}.")
    return properties


def typed_properties(encoded: bytes | memoryview) -> dict[str, object]:
    """The application properties of an encoded event, with the types of ``amqp.types``.

    Raises DecodeError if the bytes are not a message.
    """
    data = encoded if isinstance(encoded, bytes) else bytes(encoded)
    for code, _, start, end in iter_sections(data):
        if code == APPLICATION_PROPERTIES:
            found = _decoded(data, start, end)
            return {str(name): value for name, value in found.items()} if isinstance(found, dict) else {}
    return {}


def decode_property(encoded: bytes) -> PropertyValue:
    """One application property's value, as ``decode_event`` gives it. Raises DecodeError."""
    return _plain(_decoded(encoded, 0, len(encoded)))


_PLAIN_VALUES: dict[int, tuple[Callable[..., tuple[Any, ...]], int]] = {
    0x54: (_s8, 1),
    0x55: (_s8, 1),
    0x71: (_s32, 4),
    0x81: (_s64, 8),
    0x82: (_double, 8),
    0x41: (lambda data, at: (True,), 0),
    0x42: (lambda data, at: (False,), 0),
    0x40: (lambda data, at: (None,), 0),
}


def _plain(value: object) -> PropertyValue:
    """A decoded value as a plain Python type."""
    if isinstance(value, Timestamp):
        try:
            return time_of(value)
        except OverflowError:
            return int(value)
    for kind in (bool, int, float, str, Decimal, bytes):
        if isinstance(value, kind):
            return cast(PropertyValue, bytes(value) if kind is Decimal else kind(value))  # type: ignore[arg-type]
    return cast(PropertyValue, value)  # None, a UUID; lists and maps, which the standard does not allow here
