"""The bytes of a journal file: a header, kept twice, then records.

    0       magic b"TIDEJRNL", format version (2), reserved (2), features (4), number (8), generation (16),
            owner (16), CRC32C of the preceding bytes (4)
    4096    the same again
    8192    records, each directly behind the one before it

A record is what one round has appended to one segment, as it is in the segment:

    offset size field
    0      8    marker: the first bytes of the generation
    8      4    CRC32C of what follows, seeded with the generation
    12     4    length of the batches
    16     8    position of the record in this file
    24     4    round, counted from 1 in each file
    28     4    rounds in the file before this one
    32     4    1: the last record of its round
    36     16   log id of the partition
    52     8    base sequence number of the segment
    60     4    salt of the segment
    64     8    position in the segment
    72     8    one past the last sequence number
    80     4    checksum of the last batch
    84     …    the batches

A file that is used again gets the next number and another random generation: older records are not intact
then. The header fits into a sector, so it is replaced as a whole.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import google_crc32c

from tidegate.model.errors import LogFormatError
from tidegate.storage.record import OTHER_VERSION

GENERATION_BYTES: Final = 16
RECORDS_START: Final = 8192
_COPY_STARTS = (0, 4096)
_MAGIC = b"TIDEJRNL"
_FORMAT_VERSION = 1
_HEADER = struct.Struct("<8sHHIq16s16s")
_CRC = struct.Struct("<I")
_MARKER_BYTES = 8
_FIELDS = struct.Struct("<IqIII16sqIqqI")
_BODY_START = _MARKER_BYTES + _CRC.size + _FIELDS.size


@dataclass(frozen=True, slots=True)
class JournalHeader:
    """A decoded header."""

    number: int
    """One more each time that one of the two files begins again."""
    generation: bytes
    """Random, drawn each time."""
    owner: bytes
    """Of the data directory: the id of its control log."""

    @property
    def seed(self) -> int:
        """What the checksums of the file's records begin with."""
        seed: int = google_crc32c.value(self.generation)
        return seed


@dataclass(frozen=True, slots=True)
class JournalPart:
    """What a round has appended to one segment."""

    log_id: bytes
    base_sequence_number: int
    """Of the segment."""
    salt: int
    """Of the segment."""
    position: int
    """Where in the segment it is."""
    until_sequence_number: int
    chain: int
    """The checksum of the last batch."""
    buffers: Sequence[bytes]
    """The batches, end to end."""

    @property
    def record_bytes(self) -> int:
        """The length of its record."""
        return _BODY_START + sum(map(len, self.buffers))


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """A record that is intact."""

    start: int
    """Its position in the journal file."""
    round_number: int
    rounds_before: int
    is_last_of_round: bool
    part: JournalPart

    @property
    def end(self) -> int:
        """One past its last byte."""
        return self.start + self.part.record_bytes


def encode_header(header: JournalHeader) -> bytes:
    """What a file begins with, up to ``RECORDS_START``."""
    fields = _HEADER.pack(_MAGIC, _FORMAT_VERSION, 0, 0, header.number, header.generation, header.owner)
    copy = (fields + _CRC.pack(google_crc32c.value(fields))).ljust(_COPY_STARTS[1], b"\0")
    return copy * len(_COPY_STARTS)


def decode_header(data: bytes, path: Path) -> JournalHeader | None:
    """The header of a file; None if neither copy is intact.

    Raises LogFormatError for one of another format, or with a feature that is not known; it names ``path``.
    """
    found: JournalHeader | None = None
    for start in _COPY_STARTS:
        fields = data[start : start + _HEADER.size]
        crc = data[start + _HEADER.size : start + _HEADER.size + _CRC.size]
        if fields[:8] != _MAGIC or crc != _CRC.pack(google_crc32c.value(fields)):
            continue
        _, version, _, features, number, generation, owner = _HEADER.unpack(fields)
        if version != _FORMAT_VERSION or features:
            what = f"needs the features of the bits {features:#x}" if features else f"has format {version}"
            raise LogFormatError(
                f"The journal {path} {what}, which this version of Tidegate does not know.",
                next_step=OTHER_VERSION,
            )
        if found is None or number > found.number:
            found = JournalHeader(number, generation, owner)
    return found


def encode_round(
    parts: Sequence[JournalPart],
    header: JournalHeader,
    *,
    position: int,
    round_number: int,
    rounds_before: int,
) -> bytes:
    """The records of a round, which begin at ``position`` of the file."""
    marker, seed = header.generation[:_MARKER_BYTES], header.seed
    pieces: list[bytes] = []
    for number, part in enumerate(parts, 1):
        body = b"".join(part.buffers)
        fields = _FIELDS.pack(
            len(body),
            position,
            round_number,
            rounds_before,
            number == len(parts),
            part.log_id,
            part.base_sequence_number,
            part.salt,
            part.position,
            part.until_sequence_number,
            part.chain,
        )
        crc = google_crc32c.extend(google_crc32c.extend(seed, fields), body)
        pieces += (marker, _CRC.pack(crc), fields, body)
        position += _BODY_START + len(body)
    return b"".join(pieces)


def iter_records(data: bytes, header: JournalHeader) -> Iterator[JournalRecord]:
    """The intact records of a file, wherever they are, in order."""
    marker, seed = header.generation[:_MARKER_BYTES], header.seed
    position = data.find(marker, RECORDS_START)
    while position >= 0:
        record = _decode_record(data, position, seed)
        if record is not None:
            yield record
        position = data.find(marker, position + 1 if record is None else record.end)


def _decode_record(data: bytes, start: int, seed: int) -> JournalRecord | None:
    fields_start = start + _MARKER_BYTES + _CRC.size
    fields = data[fields_start : fields_start + _FIELDS.size]
    if len(fields) < _FIELDS.size:
        return None
    length, at, round_number, rounds_before, is_last, log_id, base, salt, position, until, chain = (
        _FIELDS.unpack(fields)
    )
    body = data[start + _BODY_START : start + _BODY_START + length]
    if at != start or len(body) != length:
        return None
    (crc,) = _CRC.unpack_from(data, start + _MARKER_BYTES)
    if google_crc32c.extend(google_crc32c.extend(seed, fields), body) != crc:
        return None
    part = JournalPart(log_id, base, salt, position, until, chain, (body,))
    return JournalRecord(start, round_number, rounds_before, bool(is_last), part)
