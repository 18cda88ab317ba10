"""Stored events as values that the console shows. Pure: it runs in threads.

What a producer put into a batch is stored as it came, and need not be a message at all: that is told about
the event, and breaks no page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields

from tidegate.amqp.errors import DecodeError
from tidegate.amqp.message import NO_VALUE, Header, Message, Properties, decode_message
from tidegate.amqp.types import Symbol
from tidegate.console.explorer.reading import StoredEvent
from tidegate.console.explorer.values import (
    EventDetail,
    EventFilter,
    EventProperties,
    ExploredEvent,
    property_text,
)
from tidegate.wire.batch import unwrap
from tidegate.wire.event_codec import decode_event
from tidegate.wire.names import PARTITION_KEY

_NAME_CHARACTERS = 80
"""Of a name that somebody chose, in a sentence."""


def fitting_events(stored: Sequence[StoredEvent], wanted: EventFilter) -> list[ExploredEvent]:
    """Those that fit, in order; one that is no message fits only where everything does."""
    decoded = map(explored_event, stored)
    if wanted.is_empty:
        return list(decoded)
    return [event for event in decoded if event.contents is not None and wanted.matches(event.contents)]


def explored_event(stored: StoredEvent) -> ExploredEvent:
    """An event as a page shows it."""
    place = stored.place
    contents, problem = None, ""
    try:
        contents = decode_event(unwrap(stored.section))
    except DecodeError as error:
        problem = str(error)
    return ExploredEvent(
        str(place.partition_index),
        place.sequence_number,
        place.enqueued_time_ms,
        len(stored.section),
        contents,
        problem,
    )


def event_detail(stored: StoredEvent, *, is_first: bool, is_last: bool) -> EventDetail:
    """An event with all that was said about it."""
    explored = explored_event(stored)
    try:
        message = decode_message(unwrap(stored.section))
    except DecodeError:
        return EventDetail(explored, None, (), {}, is_first, is_last)
    properties = EventProperties(
        message.application_properties, message.properties or Properties(), message.header or Header()
    )
    beside = tuple(_beside(message))
    return EventDetail(explored, properties, beside, _system_properties(message), is_first, is_last)


def _beside(message: Message) -> Iterator[str]:
    """What is in a message beside partition key, properties, what its sender says in a header, and bytes as
    its body.
    """
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


def _system_properties(message: Message) -> Mapping[str, str]:
    """Standard properties, annotations and header, by their names in AMQP; those that are not there left
    out.
    """
    found: dict[str, str] = {}
    found.update(_given(message.properties))
    for part in (message.message_annotations, message.delivery_annotations, message.footer):
        found |= {str(name): property_text(value) for name, value in part.items()}
    found.update(_given(message.header))
    return found


def _given(part: Header | Properties | None) -> Iterator[tuple[str, str]]:
    for field in fields(part) if part is not None else ():
        value = getattr(part, field.name)
        if value is not None:
            yield field.name.replace("_", "-"), property_text(value)
