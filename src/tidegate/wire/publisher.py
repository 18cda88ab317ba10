"""Events of a named publisher: its name goes into each, and is each one's partition key.

Receivers learn from ``x-opt-publisher`` who sent an event. Only the service writes it on a publisher's link,
so that a publisher cannot pass for another. Source: Azure "Event Hubs features", publisher policy, 2026-09:
"publisher names don't need to be created ahead of time, but they must match the SAS token used", and "the
PartitionKey value needs to be set to the publisher name".
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from tidegate.amqp.decode import decode_value
from tidegate.amqp.encode import append_value
from tidegate.amqp.errors import DecodeError
from tidegate.amqp.message import DELIVERY_ANNOTATIONS, HEADER, MESSAGE_ANNOTATIONS, Section, iter_sections
from tidegate.model.errors import InvalidArgumentError
from tidegate.wire.annotations import ANNOTATIONS_32, annotations_section, merged_entries
from tidegate.wire.batch import BatchSections, iter_events, wrap_event
from tidegate.wire.names import PARTITION_KEY, PUBLISHER

_OURS = (PUBLISHER, PARTITION_KEY)


def as_published(sections: BatchSections, publisher: str) -> BatchSections:
    """The batch with publisher and partition key in each event, in place of what its sender wrote there.

    Raises InvalidArgumentError when the envelope or an event names another partition key, DecodeError when an
    event is garbled.
    """
    return published_batch(list(published_events(sections, publisher)), publisher)


def published_events(sections: BatchSections, publisher: str) -> Iterator[bytes]:
    """``as_published`` event by event, for batches of tens of thousands: the stored form of each."""
    check_key(sections.partition_key, publisher)
    entries = bytearray()
    for name in _OURS:
        append_value(entries, name)
        append_value(entries, publisher)
    ours = bytes(entries)
    for event in iter_events(sections.payload, sections.lengths):
        yield wrap_event(_annotated(bytes(event), publisher, ours))


def published_batch(events: Sequence[bytes], publisher: str) -> BatchSections:
    """The batch of what ``published_events`` gave."""
    return BatchSections(
        memoryview(b"".join(events)), array("I", map(len, events)), publisher, publisher=publisher
    )


def check_key(partition_key: str | None, publisher: str) -> None:
    """Raise InvalidArgumentError for a partition key that is not the publisher's name."""
    if partition_key is not None and partition_key != publisher:
        raise InvalidArgumentError(
            f"The partition key {partition_key[:40]!r} is not the publisher's name {publisher!r}.",
            next_step="Give none: a publisher's partition key is its name.",
        )


def _annotated(message: bytes, publisher: str, ours: bytes) -> bytes:
    sections = list(iter_sections(message))
    for code, _, value_start, _ in sections:
        if code == MESSAGE_ANNOTATIONS:
            check_key(_partition_key(message, value_start), publisher)
    theirs, count = merged_entries(message, sections, MESSAGE_ANNOTATIONS, _OURS)
    header = annotations_section(ANNOTATIONS_32, theirs + ours, count + 2 * len(_OURS))
    before = (*_pieces(message, sections, HEADER), *_pieces(message, sections, DELIVERY_ANNOTATIONS))
    return b"".join((*before, *header, *_others(message, sections)))


def _pieces(message: bytes, sections: list[Section], wanted: int) -> list[bytes]:
    return [message[start:end] for code, start, _, end in sections if code == wanted]


def _others(message: bytes, sections: list[Section]) -> list[bytes]:
    moved = (HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS)
    return [message[start:end] for code, start, _, end in sections if code not in moved]


def _partition_key(message: bytes, value_start: int) -> str | None:
    value, _ = decode_value(message, value_start)
    key = value.get(PARTITION_KEY) if isinstance(value, dict) else None
    if key is not None and not isinstance(key, str):
        raise DecodeError(f"The partition key is a {type(key).__name__}, not a string.")
    return key
