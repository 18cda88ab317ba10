"""Stored events as values that the console shows. Pure: it runs in threads.

What a producer put into a batch is stored as it came, and need not be a message at all: that is told about
the event, and breaks no page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields

from tidegate.amqp.errors import DecodeError
from tidegate.amqp.message import Header, Properties, decode_message
from tidegate.console.backend.events import EventDetail, EventFilter, ExploredEvent, property_text
from tidegate.server.console.events_reading import StoredEvent
from tidegate.wire.batch import unwrap
from tidegate.wire.event_codec import decode_event


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
    return EventDetail(explored_event(stored), system_properties(stored.section), is_first, is_last)


def system_properties(section: memoryview) -> Mapping[str, str]:
    """Standard properties, annotations and header of a stored event, by their names in AMQP; those that are
    not there left out. Nothing for what is no message.
    """
    try:
        message = decode_message(unwrap(section))
    except DecodeError:
        return {}
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
