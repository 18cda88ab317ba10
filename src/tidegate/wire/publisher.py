"""Events of a named publisher: each has the publisher's name, which is also its partition key.

Receivers read the sender from ``x-opt-publisher``. Only the service writes it, on a publisher's link. It is
removed from events sent on any other link, so that no sender can impersonate a publisher. (They are not
refused: a client that forwards an event sends its annotations along.)

A publisher's event that clients would read differently or not at all (``alike``) is refused: it would be
delivered as a body, without the name. From any other sender it is stored as it is.
Source: Azure "Event Hubs features", publisher policy, 2026-09: "publisher names don't need to be created
ahead of time, but they must match the SAS token used", and "the PartitionKey value needs to be set to the
publisher name".
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterator, Sequence

from tidegate.amqp.decode import Limits
from tidegate.amqp.encode import append_value
from tidegate.amqp.errors import DecodeError
from tidegate.amqp.message import (
    DATA,
    DELIVERY_ANNOTATIONS,
    MESSAGE_ANNOTATIONS,
    SECTIONS_MAX,
    Section,
    decode_message,
    iter_sections,
)
from tidegate.model.errors import InvalidArgumentError
from tidegate.wire.annotations import (
    ANNOTATIONS_32,
    DELIVERY_ANNOTATIONS_32,
    annotations_section,
    merged_entries,
    reassembled,
)
from tidegate.wire.batch import BatchSections, decode_annotations, is_once, iter_events, wrap_event
from tidegate.wire.delivery import check_deliverable
from tidegate.wire.event_texts import EventTexts
from tidegate.wire.names import ENQUEUED_TIME, OFFSET, PARTITION_KEY, PUBLISHER, SEQUENCE_NUMBER

_OURS = (PUBLISHER, PARTITION_KEY)

_NAMES = tuple(
    (bytes((len(name),)), bytes((len(name),)) + name.encode())
    for name in (PUBLISHER, SEQUENCE_NUMBER, OFFSET, ENQUEUED_TIME)
)
"""The bytes, in every encoding, of names that receivers trust: the end of the length, and both."""
_PART = b"-opt-"  # in each name; found a third faster than with its x
_SHORT_BYTES = 2048
"""To search fewer for it takes less time than to look for four lengths."""

_STEP_BYTES = 4096
"""Of an event that takes several steps (our choice: about 1 ms)."""
_LIMITS = Limits(map_entries_max=40_000, values_max=40_000)
"""Of body and application properties of a publisher's event, which are decoded in one step (our choice: about
15 ms)."""
_SECTIONS_MAX = 1_000
"""Of a publisher's event, which are checked in one step (our choice: 5 ms)."""
_STEP_SECTIONS = 100
"""Sections of an event that are found in a step: less than 1 ms."""


def published_events(sections: BatchSections, publisher: str) -> Iterator[bytes | None]:
    """The stored form of each event, with the publisher as publisher and partition key. None comes before
    each further step of a large one.

    Raises InvalidArgumentError if the envelope or an event has another partition key, DecodeError if an event
    is invalid.
    """
    check_key(sections.partition_key, publisher)
    entries = bytearray()
    for name in _OURS:
        append_value(entries, name)
        append_value(entries, publisher)
    ours = bytes(entries)
    for event in iter_events(sections.payload, sections.lengths):
        yield from _annotated(bytes(event), publisher, ours)


def may_pretend(payload: bytes) -> bool:
    """Whether events in these bytes may name a publisher or a position. False is certain.

    Called for each batch. A single byte is found much faster than a name (0.01 ms per MB instead of 0.3 per
    name), and text does not contain these lengths. Binary data contains them all, and is searched once.
    """
    if len(payload) < _SHORT_BYTES and _PART not in payload:
        return False
    names = [name for length, name in _NAMES if length in payload]
    return bool(names) and _PART in payload and any(name in payload for name in names)


def unpublished_events(sections: BatchSections) -> Iterator[bytes | None]:
    """The stored form of each event, without the publisher that its sender wrote. None comes before each
    further step of one with many sections.

    Raises DecodeError for invalid sections. An event that is not a message is delivered as a body.
    """
    for event in iter_events(sections.payload, sections.lengths):
        encoded = bytes(event)
        if may_pretend(encoded):
            encoded = yield from _unnamed(encoded)
        yield wrap_event(encoded)


def rewritten_batch(sections: BatchSections, events: Sequence[bytes], publisher: str | None) -> BatchSections:
    """The batch with events from ``published_events`` or (publisher: None) ``unpublished_events``."""
    payload, lengths = memoryview(b"".join(events)), array("I", map(len, events))
    if publisher is None:
        return sections._replace(payload=payload, lengths=lengths)
    return BatchSections(payload, lengths, publisher, publisher=publisher)


def check_key(partition_key: str | None, publisher: str) -> None:
    """Raise InvalidArgumentError if the partition key is not the publisher's name."""
    if partition_key is not None and partition_key != publisher:
        raise InvalidArgumentError(
            f"The partition key {partition_key[:40]!r} is not the publisher's name {publisher!r}.",
            next_step="Omit it: a publisher's partition key is its name.",
        )


def _annotated(message: bytes, publisher: str, ours: bytes) -> Iterator[bytes | None]:
    """See ``published_events``."""
    sections = yield from _found_sections(message, sections_max=_SECTIONS_MAX)
    once: set[int] = set()
    for code, _, value_start, end in sections:
        if is_once(code, once) and code == MESSAGE_ANNOTATIONS:
            check_key(_partition_key(message, value_start, end), publisher)
    theirs, count = merged_entries(message, sections, MESSAGE_ANNOTATIONS, _OURS)
    annotations = annotations_section(ANNOTATIONS_32, theirs + ours, count + 2 * len(_OURS))
    published = reassembled(message, sections, annotations, _delivery_annotations(message, sections))
    check_deliverable(published)
    if not all(code == DATA for code, *_ in sections):  # which hold binary: they are deliverable
        is_large = len(published) > _STEP_BYTES
        if is_large:
            yield None
        try:  # Spark shows the name of no event that it cannot decode.
            decoded = decode_message(published, content_limits=_LIMITS)
            if is_large:
                yield None
            EventTexts.of(decoded)
        except (ValueError, OverflowError) as error:
            raise DecodeError(f"The event cannot be decoded: {error}.") from error
    yield wrap_event(published)


def _unnamed(message: bytes) -> Generator[None, None, bytes]:
    """See ``unpublished_events``."""
    try:
        sections = yield from _found_sections(message)
        _, all_count = merged_entries(message, sections, MESSAGE_ANNOTATIONS, ())
        kept, count = merged_entries(message, sections, MESSAGE_ANNOTATIONS, (PUBLISHER,))
        if count == all_count:
            return message
        annotations = annotations_section(ANNOTATIONS_32, kept, count)
        if len(sections) >= _STEP_SECTIONS:
            yield None
        return reassembled(message, sections, annotations, _delivery_annotations(message, sections))
    except DecodeError:
        return wrap_event(message)  # also beyond our limits, which other readers do not have


def _found_sections(
    message: bytes, *, sections_max: int = SECTIONS_MAX
) -> Generator[None, None, list[Section]]:
    sections: list[Section] = []
    for section in iter_sections(message):
        if len(sections) == sections_max:
            raise DecodeError(f"A publisher's event has more than {sections_max:,} sections.")
        sections.append(section)
        if len(sections) % _STEP_SECTIONS == 0:
            yield None
    return sections


def _delivery_annotations(message: bytes, sections: Sequence[Section]) -> bytes:
    entries = merged_entries(message, sections, DELIVERY_ANNOTATIONS, ())
    return annotations_section(DELIVERY_ANNOTATIONS_32, *entries)


def _partition_key(message: bytes, value_start: int, end: int) -> str | None:
    key = decode_annotations(message, value_start, end).get(PARTITION_KEY)
    if key is not None and not isinstance(key, str):
        raise DecodeError(f"The partition key is a {type(key).__name__}, not a string.")
    return key
