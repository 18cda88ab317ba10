"""An event as a record, as ``receive --nl`` writes it, and back, as ``send --nl`` reads it."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

import orjson

from tidegate.cli.shell.render import Record
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import EventData, PropertyValue, ReceivedEvent

COLUMNS: Final = (
    "partition",
    "sequence_number",
    "offset",
    "enqueued_time",
    "partition_key",
    "message_id",
    "correlation_id",
    "content_type",
    "properties",
    "property_types",
    "body",
    "body_base64",
)

_TYPE_NAMES: Final[Mapping[type, str]] = {bytes: "binary", datetime: "timestamp", UUID: "uuid"}
"""AMQP types of properties that JSON has no value for."""
_PARSERS: Final[Mapping[str, Callable[[str], PropertyValue]]] = {
    "binary": lambda text: base64.b64decode(text, validate=True),
    "timestamp": datetime.fromisoformat,
    "uuid": UUID,
    "double": float,
}


def event_record(event: ReceivedEvent) -> Record:
    """An event as a record, see ``EventContents.record``.

    property_types has the AMQP types of properties that are strings only because JSON knows no better; None
    if there are none.
    """
    contents = event.contents
    types = {
        name: _TYPE_NAMES[type(value)]
        for name, value in contents.properties.items()
        if type(value) in _TYPE_NAMES
    }
    record = contents.record()
    # JSON has null for these, which is another value.
    texts = {name: str(value) for name, value in contents.properties.items() if _is_no_number(value)}
    if texts:
        types |= dict.fromkeys(texts, "double")
        record["properties"] = {**contents.properties, **texts}
    return {
        "partition": event.partition_id,
        "sequence_number": event.sequence_number,
        "offset": event.offset,
        "enqueued_time": event.enqueued_time,
        "message_id": contents.message_id,
        "correlation_id": contents.correlation_id,
        "content_type": contents.content_type,
        "property_types": types or None,
        **record,
    }


def _is_no_number(value: PropertyValue) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


class ParsedRecord(NamedTuple):
    """What a record says of an event; the rest is assigned by the service."""

    event: EventData
    partition_key: str | None
    partition_id: str | None


def parse_record(line: bytes) -> ParsedRecord:
    """An event from a record as a JSON object.

    Raises InvalidArgumentError.
    """
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise InvalidArgumentError(f"Invalid JSON: {error}.") from error
    if not isinstance(record, dict):
        raise InvalidArgumentError("This is not a JSON object, as `receive --nl` writes it.")
    if not {"body", "body_base64"} & record.keys():
        raise InvalidArgumentError(
            "There is neither body nor body_base64, as `receive --nl` writes them.",
            next_step="Without --nl, `send` sends each line as it is.",
        )
    properties = record.get("properties") or {}
    types = record.get("property_types") or {}
    if not isinstance(properties, dict) or not isinstance(types, dict):
        raise InvalidArgumentError("properties and property_types must be objects.")
    encoded = _text(record, "body_base64")
    try:
        body = (_text(record, "body") or "").encode() if encoded is None else _PARSERS["binary"](encoded)
        event = EventData(
            body,  # type: ignore[arg-type]
            properties={name: _property(value, types.get(name)) for name, value in properties.items()},
            content_type=_text(record, "content_type"),
            message_id=_text(record, "message_id"),
            correlation_id=_text(record, "correlation_id"),
        )
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise InvalidArgumentError(f"A value is not of its type: {error}.") from error
    return ParsedRecord(event, _text(record, "partition_key"), _text(record, "partition"))


def _text(record: Mapping[str, object], name: str) -> str | None:
    value = record.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidArgumentError(f"{name} must be a string.")
    return value


def _property(value: object, kind: object) -> PropertyValue:
    if isinstance(value, dict | list):
        raise InvalidArgumentError("A property must be a string, a number, true, false or null.")
    return value if kind is None else _PARSERS[kind](value)  # type: ignore[index, arg-type, return-value]
