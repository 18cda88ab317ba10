"""An event as a record, as ``receive --nl`` writes it, and back, as ``send --nl`` reads it."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

import orjson

from tidegate.amqp import types as amqp
from tidegate.amqp.encode import encode_value
from tidegate.amqp.errors import DecodeError, EncodeError
from tidegate.cli.shell.render import Record, remark
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import EventData, PropertyValue, ReceivedEvent
from tidegate.wire.event_codec import EncodedProperty, typed_properties
from tidegate.wire.event_texts import json_value

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
    "decode_error",
)

_OWN_TYPES: Final = (
    *(amqp.UByte, amqp.UShort, amqp.UInt, amqp.ULong, amqp.Byte, amqp.Short),
    *(amqp.Float, amqp.Char, amqp.Symbol, amqp.Decimal),
)
"""AMQP types of properties that Python has no type for."""
_TYPE_NAMES: Final[Mapping[type, str]] = {
    bytes: "binary",
    datetime: "timestamp",
    amqp.Timestamp: "timestamp",
    UUID: "uuid",
    **{kind: kind.__name__.lower() for kind in _OWN_TYPES},
}
"""Of properties that JSON's value alone would not give back."""

_INT_MIN: Final = -(2**31)
_INT_END: Final = 2**31


def _encoded(kind: type) -> Callable[[Any], PropertyValue]:
    """Reads a value of an AMQP type that ``EventData`` cannot hold."""

    def read(value: object) -> PropertyValue:
        if any(issubclass(kind, base) and type(value) is not base for base in (int, str)):
            raise TypeError(f"{value!r} is not of the type {kind.__name__.lower()}")
        return EncodedProperty(encode_value(kind(value)))

    return read


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _uuid(value: object) -> PropertyValue:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not of the type uuid")
    return UUID(value)


def _time(value: str | int) -> PropertyValue:
    """An integer: milliseconds since 1970, of a time that datetime cannot hold."""
    return datetime.fromisoformat(value) if isinstance(value, str) else _encoded(amqp.Timestamp)(value)


_PARSERS: Final[Mapping[str, Callable[[Any], PropertyValue]]] = {
    **{kind.__name__.lower(): _encoded(kind) for kind in _OWN_TYPES},
    "long": _encoded(int),
    "binary": _bytes,
    "decimal": lambda text: _encoded(amqp.Decimal)(_bytes(text)),
    "timestamp": _time,
    "uuid": _uuid,
    "double": float,
}


def event_record(event: ReceivedEvent) -> Record:
    """An event as a record, see ``EventContents.record``.

    property_types has the AMQP types of properties that their JSON values do not show; None if there are
    none. A number is a double if it has a fraction or exponent, else an int if it fits, else a long.
    An event that is not a valid AMQP message has a decode_error, and its encoded bytes in body_base64.
    """
    place = {
        "partition": event.partition_id,
        "sequence_number": event.sequence_number,
        "offset": event.offset,
        "enqueued_time": event.enqueued_time,
    }
    encoded = event.encoded
    try:
        contents = event.decode()
        types = _types(contents.properties, encoded) if contents.properties else {}
    except DecodeError as error:
        assert encoded is not None
        found = {"body_base64": base64.b64encode(encoded).decode(), "decode_error": error.message}
        return dict.fromkeys(COLUMNS) | place | {"properties": {}} | found
    doubles = [name for name, value in contents.properties.items() if _is_no_number(value)]
    return {
        **place,
        "message_id": contents.message_id,
        "correlation_id": contents.correlation_id,
        "content_type": contents.content_type,
        "property_types": dict.fromkeys(doubles, "double") | types or None,
        **contents.record(),
        "properties": {name: shown_property(value) for name, value in contents.properties.items()},
        "decode_error": None,
    }


def shown_property(value: object) -> object:
    """A property's value as a record has it: as JSON can represent it."""
    if isinstance(value, amqp.Described):
        return {"descriptor": value.descriptor, "value": json_value(value.value)}
    if isinstance(value, dict | list | amqp.Array):
        return json_value(value)
    # JSON has null for these, which is another value.
    return str(value) if _is_no_number(value) else value


def remark_undecodable(record: Record) -> None:
    """Say on standard error which event is not a valid AMQP message, and why."""
    remark(
        f"Event {record['sequence_number']} of partition {record['partition']} is not a valid AMQP message: "
        f"{record['decode_error']}"
    )


def _types(properties: Mapping[str, object], encoded: bytes | memoryview | None) -> dict[str, str]:
    """encoded: the event; None: its integers are of an unknown type."""
    found: dict[str, str] = {}
    for name, value in (properties if encoded is None else typed_properties(encoded)).items():
        if (kind := type(value)) in _TYPE_NAMES:
            found[name] = _TYPE_NAMES[kind]
        elif kind is int and encoded is not None and _INT_MIN <= value < _INT_END:  # type: ignore[operator]
            found[name] = "long"
    return found


def _is_no_number(value: object) -> bool:
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
    if (problem := record.get("decode_error")) is not None:
        raise InvalidArgumentError(
            f"This event is not a valid AMQP message, so it cannot be sent ({problem}). "
            f"`jq -c 'select(.decode_error == null)'` leaves out such lines."
        )
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
    except (ValueError, KeyError, TypeError, EncodeError, binascii.Error) as error:
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
    return value if kind is None else _PARSERS[kind](value)  # type: ignore[index, return-value]
