"""Everything around an event's body as text, for table columns.

The rules for partitionKey, publisher, properties and systemProperties, wherever events become columns.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import lru_cache
from typing import Final, TypeVar

import orjson

from tidegate.amqp.errors import DecodeError
from tidegate.amqp.message import (
    APPLICATION_PROPERTIES,
    NO_VALUE,
    Message,
    Properties,
    decode_message,
    iter_sections,
)
from tidegate.amqp.types import Array, Described, Timestamp
from tidegate.model.times import time_of
from tidegate.wire.event_codec import decode_event
from tidegate.wire.names import ENQUEUED_TIME, OFFSET, PARTITION_KEY, PUBLISHER, SEQUENCE_NUMBER

A = TypeVar("A", bytes, str)
T = TypeVar("T")

_KEPT_BYTES_MAX: Final = 512

PROPERTY_COLUMN_PREFIX: Final = "properties."
"""Prefix of a column that holds one application property."""

DECODE_ERROR_PROPERTY: Final = "tidegate-decode-error"
"""In ``systemProperties`` of an event that is not an AMQP message: the error. Its body is null."""

_NOT_SENDERS: Final = (
    *(ENQUEUED_TIME, OFFSET, PARTITION_KEY, PUBLISHER, SEQUENCE_NUMBER),  # with columns of their own
    DECODE_ERROR_PROPERTY,
)


def cached_when_short(decode: Callable[[A], T]) -> Callable[[A], T]:
    """Decorator that caches the latest 4,096 short arguments, so that what many events share is decoded once.
    Long arguments are not cached: at 2 KB each, what 4,096 decode to takes 200 MB, which no limit counts."""
    return cached(decode, count=4096, bytes_max=_KEPT_BYTES_MAX)


def cached(decode: Callable[[A], T], *, count: int, bytes_max: int) -> Callable[[A], T]:
    """``decode`` with a cache of the latest ``count`` arguments of at most ``bytes_max``."""
    kept = lru_cache(maxsize=count)(decode)
    return lambda data: kept(data) if len(data) <= bytes_max else decode(data)


def property_of(column: str) -> str | None:
    """The application property that a column ``properties.NAME`` holds as text (null if an event lacks it).

    None: another kind of column.
    """
    name = column.removeprefix(PROPERTY_COLUMN_PREFIX)
    return name if name and name != column else None


@dataclass(frozen=True, slots=True)
class EventTexts:
    """Everything around a body, as text."""

    partition_key: str | None = None
    publisher: str | None = None
    properties: Mapping[str, str | None] = field(default_factory=dict)
    system_properties: Mapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def decode(cls, prefix: bytes) -> EventTexts:
        """Decode what precedes a body; what events share of it is decoded once."""
        rest: list[bytes] = []
        properties: Mapping[str, str | None] = {}
        for code, start, _, end in iter_sections(prefix):
            if code == APPLICATION_PROPERTIES:
                properties = _decode_properties(bytes(prefix[start:end]))
            else:
                rest.append(prefix[start:end])
        around = _decode_rest(b"".join(rest))
        return cls(around.partition_key, around.publisher, properties, around.system_properties)

    @classmethod
    def of(cls, message: Message) -> EventTexts:
        """As ``decode``, for a decoded message."""
        annotations = message.message_annotations
        system = {
            str(name): text_of(value) for name, value in annotations.items() if name not in _NOT_SENDERS
        }
        if message.properties is not None:
            values = standard_properties(message.properties)
            system |= {name: text_of(value) for name, value in values.items()}
        return cls(
            text_of(annotations.get(PARTITION_KEY)),
            text_of(annotations.get(PUBLISHER)),
            {str(name): text_of(value) for name, value in message.application_properties.items()},
            system,
        )


@cached_when_short
def _decode_properties(section: bytes) -> Mapping[str, str | None]:
    return {name: text_of(value) for name, value in decode_event(section).properties.items()}


@cached_when_short
def _decode_rest(sections: bytes) -> EventTexts:
    """Header, annotations and standard properties, decoded once for all events that share them."""
    return EventTexts.of(decode_message(sections))


def decode_whole(encoded: bytes | memoryview) -> tuple[EventTexts, bytes | None]:
    """Decode an event of any shape. Without a valid AMQP message, the body is None and the system properties
    hold the error."""
    try:
        message = decode_message(encoded)
        return EventTexts.of(message), _body_of(message)
    except DecodeError as error:
        return EventTexts(system_properties={DECODE_ERROR_PROPERTY: str(error)}), None


def _body_of(message: Message) -> bytes:
    """The body as bytes: data sections end to end; a value unchanged (bytes) or as text."""
    if message.value is not NO_VALUE:
        if isinstance(message.value, bytes):
            return message.value
        return (text_of(message.value) or "").encode()
    if message.sequences:
        return (text_of(list(message.sequences)) or "").encode()
    return b"".join(message.data)


def text_of(value: object) -> str | None:
    """An AMQP value as text: strings unchanged, bytes in base64, times in ISO 8601 (or milliseconds, beyond
    the calendar), booleans in lower case, lists, arrays and maps as JSON, a described value without its
    descriptor. None stays null."""
    if value is None or isinstance(value, str):
        return None if value is None else str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, Timestamp):
        try:
            return time_of(value).isoformat()
        except OverflowError:
            return str(int(value))
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Described):
        return text_of(value.value)
    if isinstance(value, dict | list | Array):
        return orjson.dumps(json_value(value), default=text_of).decode()
    return str(value)


def json_value(value: object) -> object:
    """An AMQP value with lists, arrays and maps as JSON has them: AMQP allows other keys than text.

    A described value is without its descriptor, a time text. Other values stay as they are.
    """
    if isinstance(value, dict):
        return {text_of(key) or "": json_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [json_value(item) for item in value]
    if isinstance(value, Array):
        return [json_value(item) for item in value.items]
    if isinstance(value, Described):
        return json_value(value.value)
    # A Timestamp is also an int: format it as a time, as elsewhere.
    return text_of(value) if isinstance(value, Timestamp) else value


def standard_properties(properties: Properties) -> dict[str, object]:
    """The standard properties that are set, under the specification's names (``message-id``, …)."""
    values = {item.name.replace("_", "-"): getattr(properties, item.name) for item in fields(Properties)}
    return {name: value for name, value in values.items() if value is not None}
