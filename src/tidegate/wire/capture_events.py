"""Restores events from the records of capture files: typed properties, and encoded messages.

The reverse of ``capture``. Files of Tidegate restore the original events. Azure's have only integers, floats,
text and bytes, so a boolean property is text in them; the contents of their ``SystemProperties`` are not
documented, so every name that is not a standard property is treated as an annotation. No I/O here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, cast
from uuid import UUID

from tidegate.amqp.decode import CONTENT_LIMITS, decode_value
from tidegate.amqp.errors import DecodeError
from tidegate.amqp.message import Message, Properties, encode_message
from tidegate.amqp.types import Symbol, Timestamp, UInt
from tidegate.model.events import EventData, PropertyValue
from tidegate.wire.batch import unwrap
from tidegate.wire.capture import (
    PROPERTY_TYPES,
    TYPE_BOOLEAN,
    TYPE_ENCODED,
    TYPE_INTEGER,
    TYPE_NULL,
    TYPE_TIMESTAMP,
    TYPE_UUID,
    AvroValue,
)
from tidegate.wire.event_codec import encode_event
from tidegate.wire.event_texts import DECODE_ERROR_PROPERTY
from tidegate.wire.names import ENQUEUED_TIME, OFFSET, PARTITION_KEY, SEQUENCE_NUMBER

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

NOT_OF_THE_EVENT: Final = frozenset({str(SEQUENCE_NUMBER), str(OFFSET), str(ENQUEUED_TIME), PROPERTY_TYPES})
"""Names in ``SystemProperties`` that describe the event or its record, and are not part of it."""

_KEY: Final = str(PARTITION_KEY)
_STANDARD: Final = {item.name.replace("_", "-"): item.name for item in fields(Properties)}
_SIMPLE: Final = frozenset({_KEY, "message-id", "correlation-id", "content-type"})
_RESTORE: Final[Mapping[str, Callable[[Any], object]]] = {
    TYPE_NULL: lambda value: None,
    TYPE_BOOLEAN: lambda value: value == "true",
    TYPE_INTEGER: int,
    TYPE_TIMESTAMP: datetime.fromisoformat,
    TYPE_UUID: UUID,
    TYPE_ENCODED: lambda value: decode_value(value, 0, CONTENT_LIMITS)[0],
}

Values = Mapping[str, AvroValue]


def typed_properties(properties: Values, system_properties: Values) -> Mapping[str, PropertyValue]:
    """A record's application properties with their original types, as far as the record has them."""
    types_text = system_properties.get(PROPERTY_TYPES)
    if not isinstance(types_text, str):
        return properties
    typed = cast(dict[str, object], dict(properties))
    for name, kind in _types(types_text).items():
        restore = _RESTORE.get(kind)
        if restore is not None and name in typed:
            try:
                typed[name] = restore(typed[name])
            except (ValueError, TypeError, DecodeError):
                continue  # an application's property that happens to have this name
    return cast(Mapping[str, PropertyValue], typed)


@lru_cache(maxsize=1024)
def _types(text: str) -> Mapping[str, str]:
    try:
        types = json.loads(text)
    except ValueError:
        return {}
    return types if isinstance(types, dict) else {}


def encoded_event(body: bytes | None, properties: Values, system_properties: Values) -> bytes:
    """A record as an encoded event for ``event_codec.decode_event``. A body of None is empty."""
    system = {name: value for name, value in system_properties.items() if name not in NOT_OF_THE_EVENT}
    typed = typed_properties(properties, system_properties)
    if DECODE_ERROR_PROPERTY in system:
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
            typed[name] = UInt(int(value))
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
        return Timestamp((time - _EPOCH) // timedelta(milliseconds=1))
    except (ValueError, TypeError):
        return None
