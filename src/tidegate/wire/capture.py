"""Capture files as Event Hubs writes them: the Avro schema, an event's record, and the file's name.

Source of the schema: Azure "Capture streaming events through Azure Event Hubs", explore the captured files
(article of 2017-08-21; the same in captured files that people show up to 2023). Files there are not
compressed (``avro.codec`` null), and a time reads ``6/12/2020 6:32:34 PM``. What that page leaves open is our
choice and says so. Pure: nothing here writes anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from tidegate.amqp.encode import encode_value
from tidegate.model.capture import NAME_FIELDS
from tidegate.model.events import EventContents, PropertyValue
from tidegate.wire.names import PARTITION_KEY

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

AvroValue = int | float | str | bytes
CaptureRecord = dict[str, int | str | bytes | dict[str, AvroValue]]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONG_MIN, _LONG_END = -(2**63), 2**63


def capture_record(sequence_number: int, enqueued_time: str, contents: EventContents) -> CaptureRecord:
    """One event as a record of ``AVRO_SCHEMA``.

    enqueued_time: as ``enqueued_time_text`` gives it. The offset is the one that receivers are given.
    """
    properties = contents.properties
    return {
        "SequenceNumber": sequence_number,
        "Offset": str(sequence_number),
        "EnqueuedTimeUtc": enqueued_time,
        "SystemProperties": _system_properties(contents),
        "Properties": _avro_properties(properties) if properties else {},
        "Body": contents.body if contents.body_value is None else _value_body(contents.body_value),
    }


def undecodable_record(sequence_number: int, enqueued_time: str, stored: bytes) -> CaptureRecord:
    """The record of an event that is no AMQP message: the bytes that the log has, as the body.

    Our choice: the service stores events without looking into them, and Capture loses none.
    """
    return {
        "SequenceNumber": sequence_number,
        "Offset": str(sequence_number),
        "EnqueuedTimeUtc": enqueued_time,
        "SystemProperties": {},
        "Properties": {},
        "Body": stored,
    }


def enqueued_time_text(time_ms: int) -> str:
    """Milliseconds since 1970-01-01 UTC as Capture writes them, cut to seconds: ``6/12/2020 6:32:34 PM``.

    It is the general date and time of .NET's invariant English (a captured file of 2020-06-12).
    """
    time = _EPOCH + timedelta(milliseconds=time_ms)
    half = "AM" if time.hour < 12 else "PM"
    return (
        f"{time.month}/{time.day}/{time.year} {time.hour % 12 or 12}:{time.minute:02}:{time.second:02} {half}"
    )


def capture_file_name(
    name_format: str, *, namespace: str, event_hub: str, partition_id: str, time_s: int
) -> str:
    """The name of a file below its destination, ``.avro`` included.

    time_s: seconds since 1970-01-01 UTC when the file's window opened: Azure's own example
    (``…/1/2017/08/31/19/11/45.avro`` with a first event of 19:12:14 and a last of 19:12:44, "Azure Event Hubs
    as an Event Grid source", 2022-12-02) is named so. Month and what is smaller have two digits there.
    """
    time = _EPOCH + timedelta(seconds=time_s)
    values = (
        namespace,
        event_hub,
        partition_id,
        f"{time.year:04}",
        f"{time.month:02}",
        f"{time.day:02}",
        f"{time.hour:02}",
        f"{time.minute:02}",
        f"{time.second:02}",
    )
    return name_format.format_map(dict(zip(NAME_FIELDS, values, strict=True))) + FILE_SUFFIX


def _system_properties(contents: EventContents) -> dict[str, AvroValue]:
    # Our choice: what the sender set beside the application's properties, under the names that the official
    # SDKs give it. An event without any of it has an empty map there, as in Azure's files.
    values: dict[str, AvroValue] = {}
    if contents.partition_key is not None:
        values[str(PARTITION_KEY)] = contents.partition_key
    if contents.message_id is not None:
        values["message-id"] = contents.message_id
    if contents.correlation_id is not None:
        values["correlation-id"] = contents.correlation_id
    if contents.content_type is not None:
        values["content-type"] = contents.content_type
    return values


def _avro_properties(properties: Mapping[str, PropertyValue]) -> dict[str, AvroValue]:
    return {name: _avro_value(value) for name, value in properties.items()}


def _avro_value(value: object) -> AvroValue:
    """A property's value as one of the four types that the schema has.

    Our choice for the others: true and false as those words, nothing as an empty string, a time in ISO 8601,
    a UUID and an integer beyond 64 bits as text, a list or map in its AMQP encoding.
    """
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return int(value) if _LONG_MIN <= value < _LONG_END else str(value)
        case float() | str() | bytes():
            return value
        case None:
            return ""
        case datetime():
            return value.isoformat()
        case UUID():
            return str(value)
        case _:
            return encode_value(value)


def _value_body(value: object) -> bytes:
    """A body that is an AMQP value or sequence: text as UTF-8, binary as it is, all else AMQP-encoded.

    Our choice; the official SDKs send data sections unless asked for a raw AMQP message.
    """
    if isinstance(value, str):
        return value.encode()
    return bytes(value) if isinstance(value, bytes) else encode_value(value)
