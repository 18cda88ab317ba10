"""Capture files as Event Hubs writes them: the Avro schema, an event's record, and the file name.

Source of the schema: Azure "Capture streaming events through Azure Event Hubs", explore the captured files
(article of 2017-08-21; captured files published up to 2023 have the same). Azure's files are not compressed
(``avro.codec`` null), and a time reads ``6/12/2020 6:32:34 PM``. Where that page is silent, the choice is
ours and marked as such. The schema lacks milliseconds, booleans and null: ``SystemProperties`` holds them
under additional names, from which the original event is restored. Azure's files have only integers, floats,
text and bytes, so a boolean property is text in them; the contents of their ``SystemProperties`` are not
documented, so every name that is not a standard property is treated as an annotation. No I/O here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any, Final, cast
from uuid import UUID

from tidegate.amqp.decode import CONTENT_LIMITS, decode_value
from tidegate.amqp.encode import encode_value
from tidegate.amqp.errors import DecodeError, EncodeError
from tidegate.amqp.message import (
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Message,
    Properties,
    decode_message,
    encode_message,
    iter_sections,
)
from tidegate.amqp.types import Array, Described, Symbol, Timestamp, UInt, ULong
from tidegate.model.capture import NAME_FIELDS
from tidegate.model.events import EventContents, EventData, PropertyValue
from tidegate.model.times import milliseconds_of, time_of
from tidegate.wire.batch import unwrap
from tidegate.wire.event_codec import EncodedProperty, encode_event
from tidegate.wire.event_texts import (
    DECODE_ERROR_PROPERTY,
    cached,
    cached_when_short,
    standard_properties,
    text_of,
)
from tidegate.wire.names import ENQUEUED_TIME, OFFSET, PARTITION_KEY, SEQUENCE_NUMBER

FILE_SUFFIX: Final = ".avro"
SYNC_MARKER_BYTES: Final = 16

_PROPERTY_MAP: Final = {"type": "map", "values": ["long", "double", "string", "bytes"]}

AVRO_SCHEMA: Final[Mapping[str, object]] = {
    "type": "record",
    "name": "EventData",
    "namespace": "Microsoft.ServiceBus.Messaging",
    "fields": [
        {"name": "SequenceNumber", "type": "long"},
        {"name": "Offset", "type": "string"},
        {"name": "EnqueuedTimeUtc", "type": "string"},
        {"name": "SystemProperties", "type": _PROPERTY_MAP},
        {"name": "Properties", "type": _PROPERTY_MAP},
        {"name": "Body", "type": ["null", "bytes"]},
    ],
}
"""The schema of every capture file."""

PROPERTY_TYPES: Final = "tidegate:property-types"
"""In ``SystemProperties``: a JSON object of the application properties whose type the schema lacks, each with
its name in ``_RESTORE``."""

AvroValue = int | float | str | bytes
Values = Mapping[str, AvroValue]
CaptureRecord = dict[str, int | str | bytes | dict[str, AvroValue]]

_LONG_MIN, _LONG_END = -(2**63), 2**63
_ENQUEUED_TIME = str(ENQUEUED_TIME)
_STANDARD: Final = {item.name.replace("_", "-"): item.name for item in fields(Properties)}
_OUR_NAMES: Final = frozenset(
    (str(SEQUENCE_NUMBER), str(OFFSET), str(ENQUEUED_TIME), PROPERTY_TYPES, DECODE_ERROR_PROPERTY, *_STANDARD)
)
_TEXT_ONLY = (Timestamp, dict, list)
_NOTHING_BEFORE = (b"\x00\x53\x74", b"\x00\x53\x75")
"""The first bytes of an event without annotations and standard properties."""


def capture_record(
    sequence_number: int,
    enqueued_time: str,
    contents: EventContents,
    system_properties: Mapping[str, AvroValue] | None = None,
) -> CaptureRecord:
    """An event as a record of ``AVRO_SCHEMA``.

    enqueued_time: from ``enqueued_time_text``. system_properties: from ``system_properties``. The offset is
    the one that receivers get.
    """
    system = dict(system_properties or ())
    properties: dict[str, AvroValue] = {}
    types: dict[str, str] = {}
    for name, value in contents.properties.items():
        properties[name], kind = _avro_value(value)
        if kind is not None:
            types[name] = kind
    if types:
        # Not the map at once: that is C code, which lets no other thread run before its end.
        pairs = (f'{json.dumps(name)}:"{kind}"' for name, kind in types.items())
        system[PROPERTY_TYPES] = f"{{{','.join(pairs)}}}"
    return {
        "SequenceNumber": sequence_number,
        "Offset": str(sequence_number),
        "EnqueuedTimeUtc": enqueued_time,
        "SystemProperties": system,
        "Properties": properties,
        "Body": contents.body if contents.body_value is None else _value_body(contents.body_value),
    }


def system_properties(encoded: bytes | memoryview, enqueued_time_ms: int) -> dict[str, AvroValue]:
    """The ``SystemProperties`` of an encoded event: all but its body and application properties.

    Our choice: what the sender set, under the names that receivers see (``x-opt-partition-key``,
    ``message-id``, …), and the enqueued time in milliseconds, which ``EnqueuedTimeUtc`` lacks.
    """
    values: dict[str, AvroValue] = {_ENQUEUED_TIME: enqueued_time_ms}
    if bytes(encoded[:3]) in _NOTHING_BEFORE:
        return values
    sections = [
        bytes(encoded[start:end])
        for code, start, _, end in iter_sections(encoded)
        if code in (MESSAGE_ANNOTATIONS, PROPERTIES)
    ]
    if sections:
        values |= _decoded_system_properties(b"".join(sections))
    return values


def undecodable_record(
    sequence_number: int, enqueued_time: str, stored: bytes, *, enqueued_time_ms: int
) -> CaptureRecord:
    """The record of an event that is not an AMQP message: its body is the stored bytes.

    Our choice: the service stores events without decoding them, and Capture must not lose any.
    """
    try:
        decode_message(unwrap(stored))
        error = "Its value cannot be represented in Avro."
    except DecodeError as refused:
        error = str(refused)
    system: Values = {_ENQUEUED_TIME: enqueued_time_ms, DECODE_ERROR_PROPERTY: error}
    return capture_record(sequence_number, enqueued_time, EventContents(stored), system)


def enqueued_time_text(time_ms: int) -> str:
    """Format milliseconds since 1970-01-01 UTC as Capture does, to the second: ``6/12/2020 6:32:34 PM``.

    This is the general format of .NET's invariant culture (seen in a captured file of 2020-06-12).
    """
    time = time_of(time_ms)
    half = "AM" if time.hour < 12 else "PM"
    return (
        f"{time.month}/{time.day}/{time.year} {time.hour % 12 or 12}:{time.minute:02}:{time.second:02} {half}"
    )


def capture_file_name(
    name_format: str, *, namespace: str, event_hub: str, partition_id: str, time_s: int
) -> str:
    """The name of a file below its destination, with ``.avro``.

    time_s: when the file's window opened, in seconds since 1970-01-01 UTC, as in Azure's example
    (``…/1/2017/08/31/19/11/45.avro`` with a first event of 19:12:14 and a last of 19:12:44, "Azure Event Hubs
    as an Event Grid source", 2022-12-02). There, month to second have two digits.
    """
    time = time_of(1000 * time_s)
    values = (namespace, event_hub, partition_id, *f"{time:%Y %m %d %H %M %S}".split())
    return name_format.format_map(dict(zip(NAME_FIELDS, values, strict=True))) + FILE_SUFFIX


def guessable_marker(file_name: str) -> bytes:
    """The sync marker of a file that Capture planned before markers were random.

    A sender can compute it from the name, and put it into an event of the file.
    """
    return hashlib.sha256(file_name.encode()).digest()[:SYNC_MARKER_BYTES]


def _decode_system_properties(sections: bytes) -> Mapping[str, AvroValue]:
    """Annotations and standard properties, decoded once for all events that share them.

    A sender's annotations do not take the names of what is written here.
    """
    message = decode_message(sections)
    values: dict[str, object] = {
        str(name): value for name, value in message.message_annotations.items() if str(name) not in _OUR_NAMES
    }
    if message.properties is not None:
        values |= standard_properties(message.properties)
    # Types that the schema lacks become the text that table columns show.
    return {
        name: text_of(value) or "" if isinstance(value, _TEXT_ONLY) else _avro_value(value)[0]
        for name, value in values.items()
    }


# In the service: 4,096 sections of 512 bytes would decode to 104 MB, which no limit counts; these to 6 MB.
_decoded_system_properties = cached(_decode_system_properties, count=1024, bytes_max=128)


def _avro_value(value: object) -> tuple[AvroValue, str | None]:
    """A property's value as one of the schema's four types, and the type to note if it is none of them.

    Our choice for those: booleans as words, null as an empty string, a time in ISO 8601, a UUID and an
    integer beyond 64 bits as text, a list or map in its AMQP encoding.
    """
    match value:
        case bool():
            return "true" if value else "false", "boolean"
        case int() if _LONG_MIN <= value < _LONG_END:
            return int(value), None
        case int():
            return str(value), "integer"
        case float():
            return float(value), None
        case str():
            return str(value), None
        case bytes():
            return bytes(value), None
        case None:
            return "", "null"
        case datetime():
            return value.isoformat(), "timestamp"
        case UUID():
            return str(value), "uuid"
        case _:
            return encode_value(value), "amqp"


def _value_body(value: object) -> bytes:
    """A body that is an AMQP value or sequence: text as UTF-8, binary unchanged, all else AMQP-encoded.

    Our choice; the official SDKs send data sections unless asked for a raw AMQP message.
    """
    if isinstance(value, str):
        return value.encode()
    return bytes(value) if isinstance(value, bytes) else encode_value(value)


# --- from records to events -----------------------------------------------------------------------------

NOT_OF_THE_EVENT: Final = frozenset({str(SEQUENCE_NUMBER), str(OFFSET), str(ENQUEUED_TIME), PROPERTY_TYPES})
"""Names in ``SystemProperties`` that describe the event or its record, and are not part of it."""

_KEY: Final = str(PARTITION_KEY)
_SIMPLE: Final = frozenset({_KEY, "message-id", "correlation-id", "content-type"})
_RESTORE: Final[Mapping[str, Callable[[Any], object]]] = {
    "null": lambda value: None,
    "boolean": lambda value: value == "true",
    "integer": int,
    "timestamp": datetime.fromisoformat,
    "uuid": UUID,
    "amqp": lambda value: decode_value(value, 0, CONTENT_LIMITS)[0],
}


def typed_properties(properties: Values, system_properties: Values) -> Mapping[str, PropertyValue]:
    """A record's application properties with their original types, as far as the record has them."""
    types_text = system_properties.get(PROPERTY_TYPES)
    if not isinstance(types_text, str):
        return properties
    typed = cast(dict[str, object], dict(properties))
    for name, kind in _types(types_text).items():
        restore = _RESTORE.get(kind) if isinstance(kind, str) else None
        if restore is not None and name in typed:
            try:
                typed[name] = restore(typed[name])
            except (ValueError, TypeError, AttributeError, OverflowError, DecodeError):
                continue  # not what our writer notes: the file is another program's
    return cast(Mapping[str, PropertyValue], typed)


@cached_when_short
def _types(text: str) -> Mapping[str, object]:
    try:
        types = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return types if isinstance(types, dict) else {}


def encoded_event(body: bytes | None, properties: Values, system_properties: Values) -> bytes:
    """A record as an encoded event for ``event_codec.decode_event``. A body of None is empty."""
    system = {name: value for name, value in system_properties.items() if name not in NOT_OF_THE_EVENT}
    typed = typed_properties(properties, system_properties)
    if typed is not properties:
        typed = {name: _encodable(value, properties[name]) for name, value in typed.items()}
    if system.keys() == {DECODE_ERROR_PROPERTY}:
        return _as_stored(body or b"")
    if _SIMPLE.issuperset(system) and all(type(value) is str for value in system.values()):
        strings = cast(Mapping[str, str], system)
        event = EventData(
            body or b"",
            typed,
            content_type=strings.get("content-type"),
            message_id=strings.get("message-id"),
            correlation_id=strings.get("correlation-id"),
        )
        return encode_event(event, strings.get(_KEY))
    standard = {_STANDARD[name]: value for name, value in system.items() if name in _STANDARD}
    annotations: dict[object, object] = {
        Symbol(name): value for name, value in system.items() if name not in _STANDARD
    }
    before = encode_message(Message(message_annotations=annotations, properties=_standard(standard)))
    # The event codec encodes properties and body: it knows the encoding of each Python type.
    return before + encode_event(EventData(body or b"", typed))


def _encodable(value: object, recorded: AvroValue) -> PropertyValue:
    """A property's value for the event codec, which does not know all that a sender over AMQP can write.

    Returns ``recorded`` for a value that AMQP does not have: the file is another program's.
    """
    if isinstance(value, int) and not _LONG_MIN <= value < _LONG_END:
        value = ULong(value)
    elif isinstance(value, datetime) and value.tzinfo is None:
        return recorded
    elif not isinstance(value, (dict, list, Array, Described)):
        return cast(PropertyValue, value)
    try:
        return EncodedProperty(encode_value(value))
    except EncodeError:
        return recorded


def _as_stored(stored: bytes) -> bytes:
    """An event that is not an AMQP message: its record has the stored section."""
    try:
        return bytes(unwrap(stored))
    except DecodeError:
        return stored


def _standard(values: Mapping[str, AvroValue]) -> Properties | None:
    if not values:
        return None
    typed: dict[str, Any] = {}
    for name, value in values.items():
        if name in ("content_type", "content_encoding"):
            typed[name] = Symbol(str(value))
        elif name in ("absolute_expiry_time", "creation_time"):
            typed[name] = _timestamp(value)
        elif name == "group_sequence":
            typed[name] = UInt(value) if isinstance(value, int) and 0 <= value < 1 << 32 else None
        elif name == "user_id":
            typed[name] = value if isinstance(value, bytes) else str(value).encode()
        elif name in ("message_id", "correlation_id"):
            typed[name] = value if isinstance(value, int | bytes) else str(value)
        else:
            typed[name] = str(value)
    return Properties(**typed)


def _timestamp(value: AvroValue) -> Timestamp | None:
    try:
        if isinstance(value, int):
            return Timestamp(value)
        time = datetime.fromisoformat(str(value))
        return Timestamp(milliseconds_of(time))
    except (ValueError, TypeError):
        return None
