"""Events of a named publisher: each has the publisher's name, which is also its partition key.

Receivers read the sender from ``x-opt-publisher``. Only the service writes it, on a publisher's link. It is
removed from events sent on any other link, so that no sender can impersonate a publisher. (They are not
refused: a client that forwards an event sends its annotations along.)

Some clients find the end of a list by its count, and others, like the service, by its size: the official
Python client (azure-eventhub 5.15.1, ``_pyamqp/_decode.py``) reads what is between the two as the next
sections of the message. They also disagree about empty arrays, arrays of described values and wide
descriptors (rhea 3.0, ``lib/types.js``). So an event that contains one of our names anywhere is checked
completely: each value ends where its size says, and has a form that all clients read alike. Any other event
is not a message, and receivers get it as a body.
Source: Azure "Event Hubs features", publisher policy, 2026-09: "publisher names don't need to be created
ahead of time, but they must match the SAS token used", and "the PartitionKey value needs to be set to the
publisher name".
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tidegate.amqp.decode import Limits, decode_value, decode_value_until
from tidegate.amqp.encode import append_value
from tidegate.amqp.errors import DecodeError
from tidegate.amqp.message import MESSAGE_ANNOTATIONS, Section, iter_sections
from tidegate.model.errors import InvalidArgumentError
from tidegate.wire.annotations import ANNOTATIONS_32, annotations_section, merged_entries, reassembled
from tidegate.wire.batch import BatchSections, iter_events, wrap_event
from tidegate.wire.names import ENQUEUED_TIME, OFFSET, PARTITION_KEY, PUBLISHER, SEQUENCE_NUMBER

_OURS = (PUBLISHER, PARTITION_KEY)

_NAMES = tuple(
    (bytes((len(name),)), bytes((len(name),)) + name.encode())
    for name in (PUBLISHER, SEQUENCE_NUMBER, OFFSET, ENQUEUED_TIME)
)
"""The bytes, in every encoding, of names that receivers trust: the end of the length, and both."""
_PART = b"-opt-"  # in each name; found a third faster than with its x

_SECTION_HEAD = b"\x00\x53"
"""How a section's descriptor begins: a small ulong."""

_WIDTHS = {
    **dict.fromkeys((0x40, 0x41, 0x42, 0x43, 0x44, 0x45), 0),
    **dict.fromkeys((0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56), 1),
    **dict.fromkeys((0x60, 0x61), 2),
    **dict.fromkeys((0x70, 0x71, 0x72), 4),
    **dict.fromkeys((0x80, 0x81, 0x82, 0x83), 8),
    0x98: 16,
    # Of lists and maps, size and count: their elements follow like any other values.
    **dict.fromkeys((0xC0, 0xC1), 2),
    **dict.fromkeys((0xD0, 0xD1), 8),
}
"""Bytes after the constructor of a value of fixed width (AMQP 1.0 part 1 section 1.6). Left out are those
that clients read differently, or do not know: described values, arrays, characters and decimals."""

_SIZES = {0xA0: 1, 0xA1: 1, 0xA3: 1, 0xB0: 4, 0xB1: 4, 0xB3: 4}
"""Bytes of the size after the constructor of a binary, string or symbol."""

_CHECKED_VALUES_MAX = 20_000
"""Values in all sections of such an event (our choice, as below)."""

_CHECKED = Limits(map_entries_max=20_000, values_max=20_000)
"""Limits per section of an event with such a name (our choice: 10 ms at most; data is not limited)."""


def published_events(sections: BatchSections, publisher: str) -> Iterator[bytes]:
    """The stored form of each event, with the publisher as publisher and partition key.

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
        yield wrap_event(_annotated(bytes(event), publisher, ours))


def may_pretend(payload: bytes) -> bool:
    """Whether events in these bytes may name a publisher or a position. False is certain.

    Called for each batch. A single byte is found much faster than a name (0.01 ms per MB instead of 0.3 per
    name), and text does not contain these lengths. Binary data contains them all, and is searched once.
    """
    names = [name for length, name in _NAMES if length in payload]
    return bool(names) and _PART in payload and any(name in payload for name in names)


def unpublished_events(sections: BatchSections) -> Iterator[bytes]:
    """The stored form of each event, without the publisher that its sender wrote.

    Raises DecodeError for invalid sections. An event that is not a message is delivered as a body.
    """
    for event in iter_events(sections.payload, sections.lengths):
        encoded = bytes(event)
        yield wrap_event(_unnamed(encoded) if may_pretend(encoded) else encoded)


def rewritten_batch(sections: BatchSections, events: Sequence[bytes], publisher: str | None) -> BatchSections:
    """The batch with events from ``published_events`` or (publisher: None) ``unpublished_events``."""
    payload, lengths = memoryview(b"".join(events)), array("I", map(len, events))
    if publisher is None:
        return replace(sections, payload=payload, lengths=lengths)
    return BatchSections(payload, lengths, publisher, publisher=publisher)


def check_key(partition_key: str | None, publisher: str) -> None:
    """Raise InvalidArgumentError if the partition key is not the publisher's name."""
    if partition_key is not None and partition_key != publisher:
        raise InvalidArgumentError(
            f"The partition key {partition_key[:40]!r} is not the publisher's name {publisher!r}.",
            next_step="Omit it: a publisher's partition key is its name.",
        )


def _annotated(message: bytes, publisher: str, ours: bytes) -> bytes:
    sections = list(iter_sections(message))
    if may_pretend(message):
        _check_whole(message, sections)
    for code, _, value_start, _ in sections:
        if code == MESSAGE_ANNOTATIONS:
            check_key(_partition_key(message, value_start), publisher)
    theirs, count = merged_entries(message, sections, MESSAGE_ANNOTATIONS, _OURS)
    annotations = annotations_section(ANNOTATIONS_32, theirs + ours, count + 2 * len(_OURS))
    return reassembled(message, sections, annotations)


def _unnamed(message: bytes) -> bytes:
    try:
        sections = list(iter_sections(message))
        _, all_count = merged_entries(message, sections, MESSAGE_ANNOTATIONS, ())
        kept, count = merged_entries(message, sections, MESSAGE_ANNOTATIONS, (PUBLISHER,))
        _check_whole(message, sections)
    except DecodeError:
        return wrap_event(message)  # also beyond our limits, which other readers do not have
    if count == all_count:
        return message
    return reassembled(message, sections, annotations_section(ANNOTATIONS_32, kept, count) if count else ())


def _check_whole(message: bytes, sections: list[Section]) -> None:
    """Raise DecodeError if clients may read a value differently, or it ends elsewhere than its size says."""
    values_left = _CHECKED_VALUES_MAX
    for _, start, value_start, end in sections:
        if value_start - start != 3 or not message.startswith(_SECTION_HEAD, start):
            raise DecodeError("The descriptor of a section is not a small ulong.")
        values_left -= _count_plain_values(message, value_start, end, values_left)
        decode_value_until(message, value_start, end, _CHECKED)


def _count_plain_values(message: bytes, at: int, end: int, values_max: int) -> int:
    """The number of values in a range, those in lists and maps included.

    Raises DecodeError for a constructor that is not in the tables, and for more values.
    """
    count = 0
    while at < end:
        count += 1
        constructor = message[at]
        width = _WIDTHS.get(constructor)
        if width is None:
            size = _SIZES.get(constructor)
            if size is None:
                raise DecodeError(
                    f"A value has the constructor 0x{constructor:02x}, which clients read differently."
                )
            width = size + int.from_bytes(message[at + 1 : at + 1 + size], "big")
        if count > values_max:
            raise DecodeError(f"An event has more than {_CHECKED_VALUES_MAX:,} values.")
        at += 1 + width
    return count


def _partition_key(message: bytes, value_start: int) -> str | None:
    value, _ = decode_value(message, value_start)
    key = value.get(PARTITION_KEY) if isinstance(value, dict) else None
    if key is not None and not isinstance(key, str):
        raise DecodeError(f"The partition key is a {type(key).__name__}, not a string.")
    return key
