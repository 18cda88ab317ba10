"""Record batches: the unit that is appended, checksummed, read and served.

A batch on disk is one header of fixed size, a table of event lengths, and the events end to end. Storage
never looks into an event. Everything is little endian:

    offset size field
    0      4    magic b"TGRB"
    4      4    checksum of the batch before it (bytes 60..64 of its header); 0 for the first one of a log
    8      4    body length: lengths table + payload, in bytes
    12     4    event count
    16     4    CRC32C of the body
    20     8    base sequence number: of the first event
    28     8    enqueued time, milliseconds since 1970-01-01 UTC
    36     8    durable position: how much of this file was synced when the batch was written
    44     8    producer id; -1 = not an idempotent producer's
    52     4    producer sequence of the first event
    56     2    producer epoch
    58     2    format version
    60     4    CRC32C of bytes 0..60, seeded with the log's id and the segment's base and salt
    64     4×n  length of each event in bytes
    …           payload

The seed keeps bytes that only look like a header (another partition's, another segment's, an old block of a
reused disk sector) from being accepted as one. The checksum of the batch before shows that none is missing
between the two, and that both are of the same copy. The durable position lets an examination distinguish a
torn write from damage to acknowledged data (see ``examination``).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import google_crc32c

from tidegate.model.errors import InvalidArgumentError, LogFormatError

MAGIC: Final = b"TGRB"
FORMAT_VERSION: Final = 2
BODY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Our choice: no batch is larger, so a garbled length never allocates more memory than this."""

_FIELDS = struct.Struct("<4sIIIIqqqqihH")
_CRC = struct.Struct("<I")
HEADER_BYTES: Final = _FIELDS.size + _CRC.size
assert HEADER_BYTES == 64
NO_PRODUCER_ID: Final = -1
OTHER_VERSION: Final = "Start the version of Tidegate that wrote it, or a later one. Nothing was changed."
"""What to do about a format or a feature that is not known."""


@dataclass(frozen=True, slots=True)
class ProducerBatch:
    """The identity of an idempotent producer's batch, by which repeats are recognised."""

    producer_id: int
    """0 or more; chosen by the producer at random, or assigned by the service."""
    epoch: int
    """0..32767; a higher epoch of the same producer fences the lower ones."""
    sequence: int
    """Number of the batch's first event in this producer's count for this partition; wraps at 2**31."""
    is_start: bool = False
    """The producer declared, before sending anything, that its count continues with this number. That is
    accepted for an unknown producer or a higher epoch; otherwise its count must continue as usual."""
    is_repeatable: bool = False
    """The producer counts from 0 in each epoch and repeats with the same bytes: anything else is refused,
    since its caller could not notice it."""

    def validate(self) -> None:
        """Raise InvalidArgumentError unless each number fits into a batch header."""
        for name, value, until in (
            ("id", self.producer_id, 1 << 63),
            ("epoch", self.epoch, 1 << 15),
            ("sequence number", self.sequence, 1 << 31),
        ):
            if not 0 <= value < until:
                raise InvalidArgumentError(f"The producer's {name} {value} is not from 0 to {until - 1}.")


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The location of a batch: the half-open range of its sequence numbers, and its time."""

    start_sequence_number: int
    until_sequence_number: int
    enqueued_time_ms: int
    """Milliseconds since 1970-01-01 UTC; never less than that of an earlier batch of the partition."""
    is_duplicate: bool = False
    """True if an idempotent producer repeated a batch; this is then the location of the first copy."""


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """A batch as read from the log, its checksum verified."""

    base_sequence_number: int
    enqueued_time_ms: int
    """Milliseconds since 1970-01-01 UTC, the same for all events of the batch."""
    lengths: array[int]
    """Bytes of each event, in order (typecode 'I')."""
    payload: memoryview
    """The events end to end, exactly as they were appended."""
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = 0
    producer_sequence: int = 0

    @property
    def until_sequence_number(self) -> int:
        """One past the last event's sequence number."""
        return self.base_sequence_number + len(self.lengths)

    def __repr__(self) -> str:
        return (
            f"<RecordBatch {self.base_sequence_number}..{self.until_sequence_number} "
            f"bytes={len(self.payload)} enqueued_time_ms={self.enqueued_time_ms}>"
        )


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """A decoded header; ``decode_header`` has verified its checksum."""

    checksum: int
    """Its own, which the next batch repeats."""
    chain: int
    """The checksum of the batch before it."""
    body_length: int
    event_count: int
    body_crc: int
    base_sequence_number: int
    enqueued_time_ms: int
    durable_position: int
    producer_id: int
    producer_sequence: int
    producer_epoch: int

    @property
    def total_length(self) -> int:
        """Bytes of the whole batch in the file."""
        return HEADER_BYTES + self.body_length

    @property
    def until_sequence_number(self) -> int:
        """One past the last event's sequence number."""
        return self.base_sequence_number + self.event_count


def encode_batch(
    payload: bytes,
    lengths: bytes,
    event_count: int,
    *,
    seed: int,
    chain: int,
    base_sequence_number: int,
    enqueued_time_ms: int,
    durable_position: int,
    producer: ProducerBatch | None,
) -> bytes:
    """The header and lengths table of a batch; the payload follows them in the file unchanged.

    seed: of the segment. chain: the checksum of the batch before it.
    """
    fields = _FIELDS.pack(
        MAGIC,
        chain,
        len(lengths) + len(payload),
        event_count,
        body_crc(payload, lengths),
        base_sequence_number,
        enqueued_time_ms,
        durable_position,
        NO_PRODUCER_ID if producer is None else producer.producer_id,
        0 if producer is None else producer.sequence,
        0 if producer is None else producer.epoch,
        FORMAT_VERSION,
    )
    return fields + _CRC.pack(google_crc32c.extend(seed, fields)) + lengths


def checksum_of(encoded_header: bytes) -> int:
    """The checksum of a batch, from the result of ``encode_batch``."""
    crc: int = _CRC.unpack_from(encoded_header, _FIELDS.size)[0]
    return crc


def body_crc_of(encoded_header: bytes) -> int:
    """The CRC32C of the body, from the result of ``encode_batch``."""
    crc: int = _CRC.unpack_from(encoded_header, 16)[0]
    return crc


def body_crc(payload: bytes, lengths: bytes) -> int:
    """The CRC32C of a body, as its batch header has it."""
    crc: int = google_crc32c.extend(google_crc32c.value(lengths), payload)
    return crc


def decode_header(data: bytes | memoryview, offset: int = 0, *, seed: int) -> BatchHeader | None:
    """The header at ``offset``; None if there is no intact header of this segment.

    Raises LogFormatError for one of another format: it was acknowledged, and must not be taken for damage.
    """
    fields = bytes(data[offset : offset + _FIELDS.size])
    end = offset + HEADER_BYTES
    if len(data) < end or fields[:4] != MAGIC:
        return None
    (crc,) = _CRC.unpack_from(data, end - _CRC.size)
    if google_crc32c.extend(seed, fields) != crc:
        return None
    (
        _,
        chain,
        body_length,
        count,
        body_crc,
        base,
        time_ms,
        durable,
        producer_id,
        sequence,
        epoch,
        version,
    ) = _FIELDS.unpack(fields)
    if version != FORMAT_VERSION:
        raise LogFormatError(
            f"A batch of the log has format {version}; this version of Tidegate reads format "
            f"{FORMAT_VERSION}.",
            next_step=OTHER_VERSION,
        )
    if not 0 < count <= body_length // 4 or body_length > BODY_BYTES_MAX:
        return None
    return BatchHeader(
        crc, chain, body_length, count, body_crc, base, time_ms, durable, producer_id, sequence, epoch
    )


def decode_body(header: BatchHeader, body: bytes) -> RecordBatch | None:
    """The batch with this body; None if its checksum or lengths do not match the header."""
    if len(body) != header.body_length or google_crc32c.value(body) != header.body_crc:
        return None
    lengths = array("I")
    table_bytes = 4 * header.event_count
    lengths.frombytes(body[:table_bytes])
    payload = memoryview(body)[table_bytes:]
    if sum(lengths) != len(payload):
        return None
    return RecordBatch(
        header.base_sequence_number,
        header.enqueued_time_ms,
        lengths,
        payload,
        header.producer_id,
        header.producer_epoch,
        header.producer_sequence,
    )


def encode_lengths(payload_length: int, lengths: Sequence[int]) -> bytes:
    """The lengths table of a batch to append.

    Raises InvalidArgumentError if there is no event, or the lengths do not add up to the payload.
    """
    if not lengths or sum(lengths) != payload_length or 4 * len(lengths) + payload_length > BODY_BYTES_MAX:
        raise InvalidArgumentError(
            f"A batch of {len(lengths)} lengths that sum to {sum(lengths)} does not describe "
            f"{payload_length} bytes of events (1 event or more, {BODY_BYTES_MAX} bytes or less)."
        )
    try:
        table = lengths if isinstance(lengths, array) and lengths.typecode == "I" else array("I", lengths)
    except OverflowError as error:
        raise InvalidArgumentError("An event's length is negative.") from error
    return table.tobytes()
