"""Decodes stored events for pages, and encodes events that the console sends. Pure: runs in threads.

A producer's bytes are stored unchanged and need not be a valid message; pages then show the problem. The
producers' ``wire.event_codec`` chooses types by value, as the official Python client does; here each property
keeps its AMQP type, however small a long is, so that a copied event is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import TypeVar

from tidegate.amqp.encode import encode_value
from tidegate.amqp.errors import DecodeError, EncodeError
from tidegate.amqp.message import NO_VALUE, Header, Message, Properties, decode_message, encode_message
from tidegate.amqp.types import Symbol
from tidegate.console.explorer.reading import StoredEvent
from tidegate.console.explorer.values import (
    EventDetail,
    EventFilter,
    ExploredEvent,
    Show,
    ShownEvent,
    property_text,
)
from tidegate.model.errors import InvalidArgumentError
from tidegate.wire.batch import unwrap, wrap_event
from tidegate.wire.delivery import DELIVERED_ANNOTATIONS
from tidegate.wire.event_codec import decode_event
from tidegate.wire.names import PARTITION_KEY, PUBLISHER

T = TypeVar("T")

_ANNOTATIONS = b"\x00\x53\x72"
"""The start of a message annotations section (AMQP 1.0 part 3 section 3.2.3)."""

_NAME_CHARACTERS = 80
"""Maximum length of a user's name in a sentence."""


def fitting_events(stored: Sequence[StoredEvent], wanted: EventFilter, show: Show[T]) -> list[ShownEvent[T]]:
    """The matching events, in order; an invalid message matches only an empty filter."""
    found = [event for event in map(explored_event, stored) if _fits(event, wanted)]
    return [
        ShownEvent(event.place, event.size_bytes, shown)
        for event, shown in zip(found, show(found), strict=True)
    ]


def _fits(event: ExploredEvent, wanted: EventFilter) -> bool:
    return wanted.is_empty or (event.contents is not None and wanted.matches(event.contents))


def explored_event(stored: StoredEvent) -> ExploredEvent:
    """An event for a list."""
    contents, problem = None, ""
    try:
        contents = decode_event(unwrap(stored.section))
    except DecodeError as error:
        problem = str(error)
    return ExploredEvent(stored.place, len(stored.section), contents, problem)


def event_detail(stored: StoredEvent, *, is_first: bool, is_last: bool) -> EventDetail:
    """An event with all its properties."""
    message = None
    with suppress(DecodeError):
        message = decode_message(unwrap(stored.section))
    return EventDetail(explored_event(stored), message, is_first, is_last)


def unusual_parts(message: Message) -> Iterator[str]:
    """Descriptions of the parts other than partition key, properties, header and a body of bytes."""
    if message.value is not NO_VALUE or message.sequences:
        yield "that its body is an AMQP value, which becomes JSON in bytes"
    elif len(message.data) > 1:
        yield f"that its body came in {len(message.data)} parts"
    elif not message.data:
        yield "that it has no body, not even an empty one"
    for name in message.application_properties:
        if type(name) is Symbol:
            yield f"that the name {name[:_NAME_CHARACTERS]} is a symbol"
    header = message.header or Header()
    if header.first_acquirer or header.delivery_count:
        yield "what its header says of earlier deliveries"
    for kind, part in (
        ("message annotation", message.message_annotations),
        ("delivery annotation", message.delivery_annotations),
        ("entry of its footer", message.footer),
    ):
        for name, value in part.items():
            if part is not message.message_annotations or name != PARTITION_KEY or type(value) is not str:
                yield f"the {kind} {str(name)[:_NAME_CHARACTERS]}"


_CHECKED = (PARTITION_KEY, PUBLISHER)
"""Annotations that the service has checked, or removed. Others may look like them."""


def system_properties(message: Message) -> Mapping[str, str]:
    """The standard properties, annotations and header that a message has, by AMQP name.

    What only the service's delivery writes is left out, and what a sender may write says where it is.
    """
    found: dict[str, str] = {}
    found.update(_given(message.properties))
    for place, part in (
        ("annotation ", message.message_annotations),
        ("delivery annotation ", message.delivery_annotations),
        ("footer ", message.footer),
    ):
        for name, value in part.items():
            if part is not message.message_annotations:
                found[f"{place}{name}"] = property_text(value)
            elif name not in DELIVERED_ANNOTATIONS:
                found[str(name) if name in _CHECKED else f"{place}{name}"] = property_text(value)
    found.update(_given(message.header))
    return found


def _given(part: Header | Properties | None) -> Iterator[tuple[str, str]]:
    for field in fields(part) if part is not None else ():
        value = getattr(part, field.name)
        if value is not None:
            yield field.name.replace("_", "-"), property_text(value)


class EventEncoder:
    """Encodes events with common properties, which are encoded once."""

    def __init__(self, message: Message) -> None:
        """message: its header and properties. Raises InvalidArgumentError for a value that AMQP cannot
        represent.
        """
        header = None if message.header == Header() else message.header
        standard = None if message.properties == Properties() else message.properties
        properties = Message(properties=standard, application_properties=message.application_properties)
        try:
            self._header = encode_message(Message(header=header))
            self._properties = encode_message(properties)
        except EncodeError as error:
            raise InvalidArgumentError(f"The properties have no AMQP form: {error}") from error

    def encode(self, body: bytes, partition_key: str | None) -> bytes:
        """An event for ``wire.batch.wrap_event``. Raises InvalidArgumentError for the key."""
        annotations = b"" if partition_key is None else _annotations(partition_key)
        # A data section is the same whether its bytes are a message or not.
        return b"".join((self._header, annotations, self._properties, wrap_event(body)))


def _annotations(partition_key: str) -> bytes:
    try:
        return _ANNOTATIONS + encode_value({PARTITION_KEY: partition_key})
    except EncodeError as error:
        raise InvalidArgumentError(f"The partition key has no AMQP form: {error}") from error
