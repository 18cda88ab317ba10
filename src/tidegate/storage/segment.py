"""Segments: the files of a partition's log, each named by the first sequence number it holds.

    <base sequence number, 20 digits>.log      header of 32 bytes, then record batches (see ``record``)
    <base sequence number, 20 digits>.index    sparse index of a sealed segment; rebuilt if missing or damaged

Header: magic b"TIDESEG1", format version (2 bytes), flags (2), salt (4), base sequence number (8), reserved
(4), CRC32C of the preceding bytes (4). It is synced before the first batch is written.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import google_crc32c

from tidegate.model.errors import LogCorruptError
from tidegate.storage.files import ReadableFile
from tidegate.storage.record import HEADER_BYTES, BatchHeader, check_format, decode_header
from tidegate.storage.sparse_index import SparseIndex

SEGMENT_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
_MAGIC = b"TIDESEG1"
_FORMAT_VERSION = 1
_FIELDS = struct.Struct("<8sHHIqI")
_CRC = struct.Struct("<I")
SEGMENT_HEADER_BYTES: Final = _FIELDS.size + _CRC.size
assert SEGMENT_HEADER_BYTES == 32
_HEADER_WINDOW_BYTES = 32 * 1024


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """A segment's decoded header."""

    salt: int
    """Random; seeds the checksum of every batch header in the file."""
    base_sequence_number: int


class Segment:
    """A segment of an open log. ``SegmentCache`` fills in and drops its cached values."""

    __slots__ = (
        "base_sequence_number",
        "file",
        "index",
        "is_sealed",
        "last_time_ms",
        "path",
        "salt",
        "sealed_bytes",
    )

    def __init__(self, path: Path, base_sequence_number: int) -> None:
        self.path = path
        self.base_sequence_number = base_sequence_number
        self.is_sealed = True
        """False for the active segment, whose index belongs to the writer and stays in memory."""
        self.salt: int | None = None
        self.sealed_bytes: int | None = None
        """Its size, if it is sealed and the size is known."""
        self.last_time_ms: int | None = None
        """Enqueued time of its last batch, if it is sealed and the time is known."""
        self.index: SparseIndex | None = None
        self.file: ReadableFile | None = None

    def __repr__(self) -> str:
        return f"<Segment {self.path.name} {'sealed' if self.is_sealed else 'active'}>"


def segment_path(directory: Path, base_sequence_number: int) -> Path:
    """The file of the segment that begins with this sequence number."""
    return directory / f"{base_sequence_number:020d}{SEGMENT_SUFFIX}"


def index_path(segment: Path) -> Path:
    """The index file beside a segment file."""
    return segment.with_suffix(INDEX_SUFFIX)


def segment_bases(names: list[str]) -> list[int]:
    """The base sequence numbers of the segment files among ``names``, ascending."""
    stems = [name.removesuffix(SEGMENT_SUFFIX) for name in names if name.endswith(SEGMENT_SUFFIX)]
    return sorted(int(stem) for stem in stems if len(stem) == 20 and stem.isascii() and stem.isdigit())


def encode_segment_header(header: SegmentHeader) -> bytes:
    """The 32 bytes that a segment begins with."""
    fields = _FIELDS.pack(_MAGIC, _FORMAT_VERSION, 0, header.salt, header.base_sequence_number, 0)
    return fields + _CRC.pack(google_crc32c.value(fields))


def decode_segment_header(data: bytes) -> SegmentHeader | None:
    """The header in the first 32 bytes; None if it is not intact.

    Raises LogFormatError for one of another format.
    """
    if len(data) < SEGMENT_HEADER_BYTES:
        return None
    fields = data[: _FIELDS.size]
    magic, version, flags, salt, base, _ = _FIELDS.unpack(fields)
    if magic != _MAGIC or _CRC.unpack_from(data, _FIELDS.size)[0] != google_crc32c.value(fields):
        return None
    check_format("A segment", version, _FORMAT_VERSION, flags)
    return SegmentHeader(salt, base)


def read_segment_header(file: ReadableFile, path: Path, base_sequence_number: int) -> SegmentHeader:
    """The header of an open segment. Raises LogCorruptError if it is damaged or another segment's."""
    header = decode_segment_header(file.read_at(SEGMENT_HEADER_BYTES, 0))
    if header is None or header.base_sequence_number != base_sequence_number:
        raise corrupt_error(path, 0, "the segment's header is damaged")
    return header


def iter_headers(
    file: ReadableFile, salt: int, start: int, end: int
) -> Iterator[tuple[int, BatchHeader | None]]:
    """Positions and headers of the batches in ``start..end``, without reading their bodies.

    Ends at ``end``, or after (position, None) if there is no intact header, or a batch would extend beyond
    ``end``.
    """
    position = start
    window, window_start = b"", start
    while position < end:
        offset = position - window_start
        if offset + HEADER_BYTES > len(window):
            window, window_start, offset = file.read_at(_HEADER_WINDOW_BYTES, position), position, 0
        header = decode_header(window, offset, salt=salt)
        if header is None or position + header.total_length > end:
            yield position, None
            return
        yield position, header
        position += header.total_length


def corrupt_error(path: Path, position: int, what: str) -> LogCorruptError:
    """The error for damage that needs a person: names file, byte offset, and the command that helps."""
    data_directory = path.parents[3] if len(path.parents) > 3 else path.parent
    return LogCorruptError(
        f"The log is damaged at byte {position} of {path}: {what}.",
        next_step=f"Stop the service and run: tidegate check {data_directory} (then with --repair, "
        "which moves the damaged bytes and reports which events they were).",
    )
