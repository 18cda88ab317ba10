"""Delivery payloads: one event each for any client, or slices of batches for our own.

**Per event.** Sequence number, offset and enqueued time are added as message annotations, and runtime metrics
as delivery annotations for receivers that asked. These bytes are spliced in; the producer's message is
neither decoded nor encoded again, so every type in it survives:

    as stored                           as delivered
    [header]                            [header]
    [delivery annotations]              [delivery annotations]   (merged with the metrics, if requested)
    [message annotations]               message annotations      (its entries first, then ours)
    everything else                     everything else, unchanged

Annotations of these names from an earlier delivery (of a forwarded message) are dropped: otherwise the
message would have two sequence numbers. An event that clients would read differently, or that one of them
cannot decode (``alike``), is delivered as a body: they would find other annotations than ours, or stop there.

**Batched** (extension ``tidegate:batch-delivery``). One delivery is a slice of a record batch: annotations
with its position, then the stored data sections, unchanged.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.amqp.decode import Buffer
from tidegate.amqp.encode import append_value, encode_value
from tidegate.amqp.errors import DecodeError
from tidegate.amqp.message import (
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    Section,
    iter_sections,
)
from tidegate.amqp.types import Int, Timestamp
from tidegate.model.hub_properties import PartitionEnds
from tidegate.wire.alike import Steps, are_plain_fields, are_plain_properties, check_alike, is_text
from tidegate.wire.annotations import (
    ANNOTATIONS_32,
    DELIVERY_ANNOTATIONS_32,
    annotations_section,
    merged_entries,
    pack_map32,
    reassembled,
)
from tidegate.wire.batch import (
    DATA_SECTION_8,
    DATA_SECTION_32,
    LONE_PARTITION_KEY,
    USUAL_HEADER,
    wrap_event,
)
from tidegate.wire.names import (
    ENQUEUED_TIME,
    EVENT_COUNT,
    LAST_ENQUEUED_OFFSET,
    LAST_ENQUEUED_SEQUENCE_NUMBER,
    LAST_ENQUEUED_TIME_UTC,
    OFFSET,
    RUNTIME_INFO_RETRIEVAL_TIME_UTC,
    SEQUENCE_NUMBER,
)

STEPS_AT_ONCE: Final = 1_000
"""Steps of checking events after which others get their turn (our choice: 1 to 2 ms)."""
_PLAIN_PER_STEP: Final = 10
"""Keys and values of application properties that take as long as a step (measured: 0.15 us each)."""
_PLAIN_UNCOUNTED: Final = 40
"""So many of an event count nothing, so that usual events are sent in as few turns as without."""

NEVER_ENQUEUED_MS: Final = -62135596800000
"""The service's value for "nothing was ever enqueued": the year 1, which official clients read as never."""


def encode_runtime_metrics(ends: PartitionEnds, *, retrieval_time_ms: int) -> bytes:
    """The partition's ends, as the four entries of a delivery-annotations map.

    retrieval_time_ms: when ``ends`` was read, in milliseconds since 1970-01-01 UTC.
    """
    last_ms = ends.last_enqueued_time_ms
    output = bytearray()
    for key, value in (
        (LAST_ENQUEUED_SEQUENCE_NUMBER, ends.last_enqueued_sequence_number),
        (LAST_ENQUEUED_OFFSET, ends.last_enqueued_offset),
        (LAST_ENQUEUED_TIME_UTC, Timestamp(NEVER_ENQUEUED_MS if last_ms is None else last_ms)),
        (RUNTIME_INFO_RETRIEVAL_TIME_UTC, Timestamp(retrieval_time_ms)),
    ):
        append_value(output, key)
        append_value(output, value)
    return bytes(output)


_u32 = struct.Struct(">I").unpack_from
_two_u32 = struct.Struct(">II").unpack_from

HEADER_8: Final = 0x005370C0
_ANNOTATIONS_8: Final = 0x005372C1
SEQUENCE_NUMBER_KEY: Final = encode_value(SEQUENCE_NUMBER) + b"\x81"
OFFSET_KEY: Final = encode_value(OFFSET) + b"\xa1"
ENQUEUED_TIME_KEY: Final = encode_value(ENQUEUED_TIME) + b"\x83"
"""The keys of our annotations, each with the constructor of its value."""

_PROPERTIES_8: Final = (0x005373C0, 0x005374C1)
_PROPERTIES_32: Final = (0x005373D0, 0x005374D1)
"""The first bytes of properties and application properties, by the width of their size and count."""

DELIVERED_ANNOTATIONS: Final = frozenset((SEQUENCE_NUMBER, OFFSET, ENQUEUED_TIME, "__proto__"))
"""Names that no sender can set. In the value of the last one, JavaScript would look up missing annotations,
such as the publisher."""
_METRIC_KEYS: Final = frozenset(
    (
        LAST_ENQUEUED_SEQUENCE_NUMBER,
        LAST_ENQUEUED_OFFSET,
        LAST_ENQUEUED_TIME_UTC,
        RUNTIME_INFO_RETRIEVAL_TIME_UTC,
    )
)


def event_deliveries(
    stored: Buffer,
    lengths: Sequence[int],
    *,
    first_sequence_number: int,
    enqueued_time_ms: int,
    metric_entries: bytes = b"",
    steps: Steps | None = None,
) -> list[bytes]:
    """The payloads of one delivery per event (message format 0), in order.

    stored, lengths: data sections of one record batch, or a part of it that starts at an event.
    first_sequence_number: of the first event in ``stored``; the offset is the same number as text.
    metric_entries: from ``encode_runtime_metrics``, for receivers that asked for them. An event that is not a
    message is delivered as the body of one with the annotations, so that invalid bytes from one producer
    cannot block the partition. steps: counts the checks of unusual events, and of many application
    properties; there are fewer payloads than events once they have taken STEPS_AT_ONCE.
    """
    steps = steps or Steps()
    data = stored if isinstance(stored, bytes) else bytes(stored)
    enqueued = ENQUEUED_TIME_KEY + enqueued_time_ms.to_bytes(8, "big", signed=True) + SEQUENCE_NUMBER_KEY
    deliveries: list[bytes] = []
    deliver, join, unpack, pack = deliveries.append, b"".join, _u32, pack_map32
    start, sequence_number, digits, our_bytes, offset_key = 0, first_sequence_number, 0, 0, b""
    for length in lengths:
        until = start + length
        content = at = start + (5 if data[start + 3] == 0xA0 else 8)
        text = b"%d" % sequence_number
        # Lengths change only with the offset's number of digits.
        if len(text) != digits:
            digits = len(text)
            offset_key = OFFSET_KEY + bytes((digits,))
            our_bytes = len(enqueued) + 8 + len(offset_key) + digits
        sequence = sequence_number.to_bytes(8, "big", signed=True)
        # Common shapes are spliced here; any other (rest is -1) goes to _splice_carefully.
        rest = -1
        if not metric_entries and content + 8 <= until:
            word = unpack(data, at)[0]
            if word == HEADER_8:
                after = at + 5 + data[at + 4]
                if data.startswith(USUAL_HEADER, at) or are_plain_fields(
                    data, at + 6, after, data[at + 5], HEADER
                ):
                    at = after
                    word = unpack(data, at)[0] if at + 4 <= until else 0
            if word == _ANNOTATIONS_8:
                after = _after_lone_key(data, at, until)
                if after > 0 and (values := _plain_values(data, after, until)) >= 0:
                    entries, count, rest = at + 6, 2, after
            elif (values := _plain_values(data, at, until)) >= 0:
                entries, count, rest = at, 0, at
        if rest >= 0:
            size = our_bytes + rest - entries + 4
            head = pack(ANNOTATIONS_32, size, count + 6)
            parts = (data[content:at], head, data[entries:rest], enqueued, sequence, offset_key, text)
            deliver(join((*parts, data[rest:until])))
            if values > _PLAIN_UNCOUNTED:
                steps.taken += values // _PLAIN_PER_STEP
                if steps.taken >= STEPS_AT_ONCE:
                    break
        else:
            ours = join((enqueued, sequence, offset_key, text))
            deliver(_splice_carefully(data[content:until], ours, metric_entries, steps))
            if steps.taken >= STEPS_AT_ONCE:
                break
        start = until
        sequence_number += 1
    return deliveries


def _after_lone_key(data: bytes, at: int, until: int) -> int:
    """Where the annotations at ``at`` end, if they hold only a partition key of usual length; else 0."""
    key_at = at + 5 + len(LONE_PARTITION_KEY)
    if key_at + 2 > until or not data.startswith(LONE_PARTITION_KEY, at + 5) or data[key_at] != 0xA1:
        return 0
    after = key_at + 2 + data[key_at + 1]
    key = data[key_at + 2 : after]
    return after if after == at + 5 + data[at + 4] <= until and (key.isascii() or is_text(key)) else 0


def _plain_values(data: bytes, at: int, until: int) -> int:
    """How many values properties and application properties have, if only they and one data section follow
    ``at``; else -1.

    Nothing may come after: official clients use the last annotations that they find. Each comes once, in the
    standard's order: thousands of them would be checked here, uncounted.
    """
    word: int
    size: int
    values = before = 0
    while at + 8 <= until:
        word, size = _two_u32(data, at)
        if word == DATA_SECTION_8:
            return values if at + 5 + (size >> 24) == until else -1
        if word == DATA_SECTION_32:
            return values if at + 8 + size == until else -1
        if word <= before:
            return -1
        before = word
        if word in _PROPERTIES_8:
            end, count, values_at = at + 5 + (size >> 24), data[at + 5], at + 6
        elif word in _PROPERTIES_32 and at + 12 <= until:
            end, count, values_at = at + 8 + size, _u32(data, at + 8)[0], at + 12
        else:
            return -1
        are_plain = are_plain_properties if word & 1 else are_plain_fields
        if end > until or not are_plain(data, values_at, end, count):
            return -1
        at = end
        values += count
    return -1


@dataclass(frozen=True, slots=True)
class _Parts:
    """A message by sections, with the entries of its annotations and their counts of keys and values."""

    sections: Sequence[Section]
    annotations: bytes
    annotation_count: int
    delivery_annotations: bytes
    delivery_annotation_count: int


def _parts_of(message: bytes, steps: Steps | None = None) -> _Parts:
    """The sections, without annotations that only the service writes. Raises DecodeError."""
    sections = list(iter_sections(message))
    check_alike(message, sections, steps)
    annotations = merged_entries(message, sections, MESSAGE_ANNOTATIONS, DELIVERED_ANNOTATIONS)
    return _Parts(
        sections, *annotations, *merged_entries(message, sections, DELIVERY_ANNOTATIONS, _METRIC_KEYS)
    )


def check_deliverable(message: bytes) -> None:
    """Raise DecodeError if a message would be delivered as a body, without its annotations."""
    _parts_of(message)


def _splice_carefully(message: bytes, ours: bytes, metric_entries: bytes, steps: Steps) -> bytes:
    """One event's delivery by walking all sections, for the shapes that the hot loop does not handle."""
    try:
        parts = _parts_of(message, steps)
    except DecodeError:
        message = wrap_event(message)
        parts = _Parts(list(iter_sections(message)), b"", 0, b"", 0)
    entries = parts.delivery_annotations + metric_entries
    count = parts.delivery_annotation_count + (8 if metric_entries else 0)
    return reassembled(
        message,
        parts.sections,
        annotations_section(ANNOTATIONS_32, parts.annotations + ours, parts.annotation_count + 6),
        annotations_section(DELIVERY_ANNOTATIONS_32, entries, count),
    )


def batched_delivery_prefix(*, first_sequence_number: int, enqueued_time_ms: int, event_count: int) -> bytes:
    """What precedes the stored sections of a batched delivery; its message format is the batch's.

    The ``event_count`` sections that follow must be consecutive and from one record batch.
    """
    output = bytearray(b"\x00\x53\x72")
    append_value(
        output,
        {
            SEQUENCE_NUMBER: first_sequence_number,
            ENQUEUED_TIME: Timestamp(enqueued_time_ms),
            EVENT_COUNT: Int(event_count),
        },
    )
    return bytes(output)
