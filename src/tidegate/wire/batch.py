"""Batches of events. A batch is sent and stored as the same bytes.

A batch is an AMQP message whose body is one data section per event, each holding that event's whole encoded
message. **Only these data sections are stored** (``00 53 75 a0|b0 length …``, end to end). Ingest finds their
boundaries and drops the envelope; delivery to our own client sends the stored bytes. A single message is
stored as one such section.

The envelope, everything around the data sections, applies to all events: the partition key, and with our
extension ``tidegate:idempotent-batch`` the producer and the number of the first event. Event Hubs' own
idempotent producers write these numbers into each event (``with_event_numbers``).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from tidegate.amqp.decode import Buffer, decode_value
from tidegate.amqp.encode import append_value, encode_value
from tidegate.amqp.errors import DecodeError
from tidegate.amqp.message import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    DATA,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    SECTIONS_MAX,
    iter_sections,
)
from tidegate.amqp.types import Int, Short
from tidegate.wire.names import (
    PARTITION_KEY,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    PRODUCER_SEQUENCE_NUMBER,
    PUBLISHER,
)

BATCH_MESSAGE_FORMAT: Final = 0x80013700
"""message-format of a batch; a single message has 0."""

DATA_SECTION_8: Final = 0x005375A0
DATA_SECTION_32: Final = 0x005375B0
"""The first four bytes of a data section, by the width of its length."""

USUAL_HEADER: Final = b"\x00\x53\x70\xc0\x02\x01\x41"
"""A header section that clients send: durable."""

LONE_PARTITION_KEY: Final = b"\x02" + encode_value(PARTITION_KEY)
"""What follows the size of a message-annotations map whose only entry is a partition key."""

_HEADER_8: Final = b"\x00\x53\x70\xc0"
_ANNOTATIONS_8: Final = b"\x00\x53\x72\xc1"

STEP_SECTIONS: Final = 2_000
"""Data sections in a step of ``split_message``, or up to twice as many: about 1 ms (our choice)."""

_OTHER_SECTION: Final = 20
"""Data sections that a section of another kind, or with another encoding, counts as, and each of its
``_OTHER_BYTES``."""
_OTHER_BYTES: Final = 256

_SINGLE_SECTIONS: Final = 1_000
"""Sections of a single message that are found in a step: less than 1 ms."""

_SEARCHED_SECTIONS: Final = 10
"""Sections of an event among which its numbers are looked for: in the standard's order, annotations are the
third at most."""

ANNOTATIONS_BYTES_MAX: Final = 65_536
"""Bytes of message annotations that are decoded (our choice: those of clients take less than 1 KB)."""

_WINDOW_BYTES: Final = 10_000
"""These hold at most 2,000 data sections."""

_SEQUENCE_MASK: Final = (1 << 31) - 1
"""The highest number of a producer; the next is 0."""

_two_u32 = struct.Struct(">II").unpack_from
_u32 = struct.Struct(">I").unpack_from
_pack_two_u32 = struct.Struct(">II").pack


class BatchSections(NamedTuple):
    """The contents of a producer's message."""

    payload: memoryview
    """The stored form: data sections end to end. A view of the message, or of a new buffer."""
    lengths: array[int]
    """Bytes of each section, header included, as ``array('I')``; they add up to ``len(payload)``."""
    partition_key: str | None = None
    producer_id: int | None = None
    producer_epoch: int | None = None
    producer_sequence_number: int | None = None
    """The number of the first event, from an idempotent producer; else None."""
    publisher: str | None = None
    """The publisher that the message's envelope names. Its events may name another."""


def split_message(payload: Buffer, message_format: int) -> Iterator[BatchSections | None]:
    """The events in a message, those of a batch or the message itself, as the last item.

    A batch of 1 MB can have 200,000 events, which take 0.1 s: None comes before each further step.
    Raises DecodeError for invalid bytes, a repeated section that may occur once (AMQP 1.0 part 3 section
    3.2), and annotations of more than ANNOTATIONS_BYTES_MAX.
    """
    return _split_batch(payload) if message_format == BATCH_MESSAGE_FORMAT else _split_single(payload)


def split_lone(payload: bytes, message_format: int) -> BatchSections | None:
    """The event of a batch that holds a single one, after at most a header and a partition key.

    None: any other message, for ``split_message``.
    """
    if message_format != BATCH_MESSAGE_FORMAT:
        return None
    at, key = 0, None
    try:
        if payload.startswith(_HEADER_8):
            at = 5 + payload[4]
        if payload.startswith(_ANNOTATIONS_8, at) and payload.startswith(LONE_PARTITION_KEY, at + 5):
            end, value_at = at + 5 + payload[at + 4], at + 5 + len(LONE_PARTITION_KEY)
            if payload[value_at] != 0xA1 or value_at + 2 + payload[value_at + 1] != end:
                return None
            at, key = end, payload[value_at + 2 : end].decode()
        word, length = _two_u32(payload, at)
    except (IndexError, struct.error, UnicodeDecodeError):
        return None
    if word == DATA_SECTION_8:
        length = (length >> 24) + 5
    elif word == DATA_SECTION_32:
        length += 8
    else:
        return None
    if at + length != len(payload):
        return None
    return BatchSections(memoryview(payload)[at:], array("I", (length,)), key)


def _split_batch(payload: Buffer) -> Iterator[BatchSections | None]:
    """See ``split_message``. Nothing is copied if the data sections are contiguous (they always are)."""
    view = memoryview(payload)
    lengths: array[int] = array("I")
    runs: list[memoryview] = []
    annotations: dict[object, object] = {}
    once: set[int] = set()
    offset, until, others, others_cost, paused_at = 0, len(view), 0, 0, 0
    run_start: int | None = None
    while offset < until:
        if len(lengths) + others_cost >= paused_at + STEP_SECTIONS:
            paused_at = len(lengths) + others_cost
            yield None
        start = offset
        offset = _find_data_sections(view, offset, lengths)
        if offset > start:
            run_start = start if run_start is None else run_start
            continue
        if run_start is not None:
            runs.append(view[run_start:start])
            run_start = None
        others += 1
        if others > SECTIONS_MAX:
            raise DecodeError(f"A batch has more than {SECTIONS_MAX} sections in an unusual encoding.")
        code, _, value_start, offset = next(iter_sections(view[start:]))
        value_start, offset = start + value_start, start + offset
        others_cost += _OTHER_SECTION * (1 + (offset - start) // _OTHER_BYTES)
        if is_once(code, once):
            if code == MESSAGE_ANNOTATIONS:
                annotations = decode_annotations(view, value_start, offset)
        elif code == DATA:  # a data section with an unusual encoding of its descriptor
            value, _ = decode_value(view, value_start)
            if not isinstance(value, bytes):
                raise DecodeError(f"A data section of the batch holds a {type(value).__name__}.")
            runs.append(memoryview(wrap_event(value)))
            lengths.append(len(runs[-1]))
        elif code in (AMQP_VALUE, AMQP_SEQUENCE):
            raise DecodeError("The body of a batch must be data sections, one per event.")
    if run_start is not None:
        runs.append(view[run_start:offset])
    if not lengths:
        raise DecodeError("A batch holds no event: it has no data section.")
    stored = runs[0] if len(runs) == 1 else memoryview(b"".join(runs))
    yield _sections(stored, lengths, annotations)


def _split_single(payload: Buffer) -> Iterator[BatchSections | None]:
    """See ``split_message``."""
    annotations: dict[object, object] = {}
    once: set[int] = set()
    for count, (code, _, value_start, end) in enumerate(iter_sections(payload), 1):
        if is_once(code, once) and code == MESSAGE_ANNOTATIONS:
            annotations = decode_annotations(payload, value_start, end)
        if count % _SINGLE_SECTIONS == 0:
            yield None
    stored = wrap_event(payload)
    yield _sections(memoryview(stored), array("I", (len(stored),)), annotations)


def is_once(code: int, seen: set[int]) -> bool:
    """Whether a section is not of the body, and so may occur once. Raises DecodeError if it was seen."""
    if DATA <= code < FOOTER:
        return False
    if code in seen:
        raise DecodeError(f"A message has a second section 0x{code:x}, which may occur once.")
    seen.add(code)
    return True


def with_event_numbers(sections: BatchSections) -> BatchSections:
    """The batch with the producer's numbers from its events; those in its envelope are ignored.

    Official clients number each event (``com.microsoft:producer-…``) but are inconsistent about the envelope:
    @azure/event-hubs 6.0.4 sometimes copies its first event's annotations there, .NET does not.
    Raises DecodeError if an event is invalid, or if first and last event are not numbered as one run.
    """
    first, last = sections.lengths[0], sections.lengths[-1]
    numbers = _event_numbers(unwrap(sections.payload[:first]))
    producer_id, epoch, sequence = numbers
    if sequence is not None:
        until = (sequence + len(sections.lengths) - 1) & _SEQUENCE_MASK
        expected = (producer_id, epoch, until)
        found = _event_numbers(unwrap(sections.payload[-last:])) if len(sections.lengths) > 1 else expected
        if found != expected:
            raise DecodeError(
                f"The events of a batch are numbered {numbers} to {found}; the last should be {expected}."
            )
    return sections._replace(producer_id=producer_id, producer_epoch=epoch, producer_sequence_number=sequence)


def wrap_event(encoded: Buffer) -> bytes:
    """The data section that holds an encoded message."""
    length = len(encoded)
    if length < 256:
        return b"".join((b"\x00\x53\x75\xa0", bytes((length,)), encoded))
    return _pack_two_u32(DATA_SECTION_32, length) + encoded


def unwrap(section: Buffer) -> memoryview:
    """The encoded message in a stored section. Raises DecodeError for any other bytes."""
    view = memoryview(section)
    try:
        word = _u32(view)[0]
        if word == DATA_SECTION_8 and view[4] == len(view) - 5:
            return view[5:]
        if word == DATA_SECTION_32 and _u32(view, 4)[0] == len(view) - 8:
            return view[8:]
    except (struct.error, IndexError):
        pass
    raise DecodeError(f"A stored section of {len(view)} bytes is invalid.")


def iter_events(stored: Buffer, lengths: Sequence[int]) -> Iterator[memoryview]:
    """The encoded messages in stored sections, in order. Raises DecodeError if the lengths do not fit."""
    view = memoryview(stored)
    start = 0
    for length in lengths:
        yield unwrap(view[start : start + length])
        start += length


def batch_envelope(
    *,
    partition_key: str | None = None,
    producer_id: int | None = None,
    producer_epoch: int | None = None,
    producer_sequence_number: int | None = None,
) -> bytes:
    """What precedes the data sections of a batch to send; the message format is BATCH_MESSAGE_FORMAT.

    Give the producer's values, all of them, only to a service that offered ``tidegate:idempotent-batch``.
    """
    annotations: dict[object, object] = {}
    if partition_key is not None:
        annotations[PARTITION_KEY] = partition_key
    if producer_id is not None:
        assert producer_epoch is not None
        assert producer_sequence_number is not None
        annotations[PRODUCER_ID] = producer_id
        annotations[PRODUCER_EPOCH] = Short(producer_epoch)
        annotations[PRODUCER_SEQUENCE_NUMBER] = Int(producer_sequence_number)
    output = bytearray(USUAL_HEADER)
    if annotations:
        output += b"\x00\x53\x72"
        append_value(output, annotations)
    return bytes(output)


def _find_data_sections(view: memoryview, offset: int, lengths: array[int]) -> int:
    """Append the lengths of the data sections from ``offset`` on, and return the offset after the last, or
    after a step of them.

    The hot loop of ingest: one unpacking gives a section's kind and length.
    """
    until = len(view)
    unpack, append, section_8, section_32 = _two_u32, lengths.append, DATA_SECTION_8, DATA_SECTION_32
    last_word, enough = until - 8, len(lengths) + STEP_SECTIONS
    try:
        while offset <= last_word:
            if len(lengths) >= enough:
                return offset
            # To count sections would slow the inner loop down.
            window = min(last_word, offset + _WINDOW_BYTES)
            while offset <= window:
                word, length = unpack(view, offset)
                if word == section_32:
                    length += 8
                elif word == section_8:
                    length = (length >> 24) + 5
                else:
                    return offset
                offset += length
                append(length)
    except OverflowError as exc:  # a length of almost 2**32
        raise DecodeError("A data section of the batch is longer than any message.") from exc
    if offset < until and offset + 5 <= until and _u32(view, offset)[0] == DATA_SECTION_8:
        # Too near the end for the loop: a section of at most two bytes, or a truncated one.
        length = view[offset + 4] + 5
        offset += length
        append(length)
    if offset > until:
        raise DecodeError(
            f"The last data section of the batch ends {offset - until} bytes after the message."
        )
    return offset


def _event_numbers(event: Buffer) -> tuple[int | None, int | None, int | None]:
    for code, _, value_start, end in islice(iter_sections(event), _SEARCHED_SECTIONS):
        if code == MESSAGE_ANNOTATIONS:
            return _producer_parts(decode_annotations(event, value_start, end))
    return None, None, None


def decode_annotations(payload: Buffer, value_start: int, end: int) -> dict[object, object]:
    """The value of a section of message annotations. Raises DecodeError if it is invalid or large."""
    if end - value_start > ANNOTATIONS_BYTES_MAX:
        raise DecodeError(
            f"The message annotations take {end - value_start} bytes; {ANNOTATIONS_BYTES_MAX} are allowed."
        )
    value, _ = decode_value(payload, value_start)
    if value is not None and not isinstance(value, dict):
        raise DecodeError(f"The message annotations hold a {type(value).__name__}.")
    return value or {}


def _sections(stored: memoryview, lengths: array[int], annotations: dict[object, object]) -> BatchSections:
    if not annotations:
        return BatchSections(stored, lengths)
    key = annotations.get(PARTITION_KEY)
    if key is not None and not isinstance(key, str):
        raise DecodeError(f"The partition key is a {type(key).__name__}, not a string.")
    publisher = annotations.get(PUBLISHER)
    publisher = publisher if isinstance(publisher, str) else None
    return BatchSections(stored, lengths, key, *_producer_parts(annotations), publisher)


def _producer_parts(annotations: dict[object, object]) -> tuple[int | None, int | None, int | None]:
    """A producer's id, its epoch, and the number of the first event."""

    def part(name: str) -> int | None:
        value = annotations.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise DecodeError(f"The annotation {name} is a {type(value).__name__}, not an integer.")
        return value

    return part(PRODUCER_ID), part(PRODUCER_EPOCH), part(PRODUCER_SEQUENCE_NUMBER)
