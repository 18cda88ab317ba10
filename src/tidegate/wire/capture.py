"""Capture files as Event Hubs writes them: the Avro schema, an event's record, and the file name.

Source of the schema: Azure "Capture streaming events through Azure Event Hubs", explore the captured files
(article of 2017-08-21; captured files published up to 2023 have the same). Azure's files are not compressed
(``avro.codec`` null), and a time reads ``6/12/2020 6:32:34 PM``. Where that page is silent, the choice is
ours and marked as such. The schema lacks milliseconds, booleans and null: ``SystemProperties`` holds them
under additional names, so that our files restore the original event (see ``capture_events``). No I/O here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from tidegate.amqp.encode import encode_value
from tidegate.amqp.errors import DecodeError
from tidegate.amqp.message import MESSAGE_ANNOTATIONS, PROPERTIES, decode_message, iter_sections
from tidegate.amqp.types import Timestamp
from tidegate.model.capture import NAME_FIELDS
from tidegate.model.events import EventContents
from tidegate.wire.batch import unwrap
from tidegate.wire.event_texts import (
    DECODE_ERROR_PROPERTY,
    cached_when_short,
    decode_whole,
    standard_properties,
    text_of,
)
from tidegate.wire.names import ENQUEUED_TIME, OFFSET, SEQUENCE_NUMBER

FILE_SUFFIX: Final = ".avro"

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
one of the ``TYPE_…`` below."""
TYPE_NULL: Final = "null"
TYPE_BOOLEAN: Final = "boolean"
TYPE_INTEGER: Final = "integer"
TYPE_TIMESTAMP: Final = "timestamp"
TYPE_UUID: Final = "uuid"
TYPE_ENCODED: Final = "amqp"

AvroValue = int | float | str | bytes
CaptureRecord = dict[str, int | str | bytes | dict[str, AvroValue]]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONG_MIN, _LONG_END = -(2**63), 2**63
_ENQUEUED_TIME = str(ENQUEUED_TIME)
_FROM_LOG = frozenset({SEQUENCE_NUMBER, OFFSET, ENQUEUED_TIME})
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
        system[PROPERTY_TYPES] = json.dumps(types, separators=(",", ":"))
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
        decoded, _ = decode_whole(unwrap(stored))
        error = (
            decoded.system_properties.get(DECODE_ERROR_PROPERTY) or "Its value cannot be represented in Avro."
        )
    except DecodeError as refused:
        error = str(refused)
    return {
        "SequenceNumber": sequence_number,
        "Offset": str(sequence_number),
        "EnqueuedTimeUtc": enqueued_time,
        "SystemProperties": {_ENQUEUED_TIME: enqueued_time_ms, DECODE_ERROR_PROPERTY: error},
        "Properties": {},
        "Body": stored,
    }


def enqueued_time_text(time_ms: int) -> str:
    """Format milliseconds since 1970-01-01 UTC as Capture does, to the second: ``6/12/2020 6:32:34 PM``.

    This is the general format of .NET's invariant culture (seen in a captured file of 2020-06-12).
    """
    time = _EPOCH + timedelta(milliseconds=time_ms)
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
    time = _EPOCH + timedelta(seconds=time_s)
    values = (namespace, event_hub, partition_id, *f"{time:%Y %m %d %H %M %S}".split())
    return name_format.format_map(dict(zip(NAME_FIELDS, values, strict=True))) + FILE_SUFFIX


@cached_when_short
def _decoded_system_properties(sections: bytes) -> Mapping[str, AvroValue]:
    """Annotations and standard properties, decoded once for all events that share them."""
    message = decode_message(sections)
    values: dict[str, object] = {
        str(name): value for name, value in message.message_annotations.items() if name not in _FROM_LOG
    }
    if message.properties is not None:
        values |= standard_properties(message.properties)
    # Types that the schema lacks become the text that table columns show.
    return {
        name: text_of(value) or "" if isinstance(value, _TEXT_ONLY) else _avro_value(value)[0]
        for name, value in values.items()
    }


def _avro_value(value: object) -> tuple[AvroValue, str | None]:
    """A property's value as one of the schema's four types, and the type to note if it is none of them.

    Our choice for those: booleans as words, null as an empty string, a time in ISO 8601, a UUID and an
    integer beyond 64 bits as text, a list or map in its AMQP encoding.
    """
    match value:
        case bool():
            return "true" if value else "false", TYPE_BOOLEAN
        case int() if _LONG_MIN <= value < _LONG_END:
            return int(value), None
        case int():
            return str(value), TYPE_INTEGER
        case float():
            return float(value), None
        case str():
            return str(value), None
        case bytes():
            return bytes(value), None
        case None:
            return "", TYPE_NULL
        case datetime():
            return value.isoformat(), TYPE_TIMESTAMP
        case UUID():
            return str(value), TYPE_UUID
        case _:
            return encode_value(value), TYPE_ENCODED


def _value_body(value: object) -> bytes:
    """A body that is an AMQP value or sequence: text as UTF-8, binary unchanged, all else AMQP-encoded.

    Our choice; the official SDKs send data sections unless asked for a raw AMQP message.
    """
    if isinstance(value, str):
        return value.encode()
    return bytes(value) if isinstance(value, bytes) else encode_value(value)
