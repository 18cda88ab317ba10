"""Segments: the files of a partition's log, each named by the first sequence number it holds.

    <base sequence number, 20 digits>.log      header of 64 bytes, then record batches (see ``record``)
    <base sequence number, 20 digits>.index    sparse index of a sealed segment; rebuilt if missing or damaged

Header: magic b"TIDESEG2", log id (16 bytes), format version (2), reserved (2), compatible features (2),
incompatible features (2), base sequence number (8), salt (4), checksum of the last batch before the segment
(4), reserved (12), CRC32C of the preceding bytes (4). It is synced, and the manifest repeats what is in it,
before the first batch is written.

Log id, base and salt are the seed of all checksums in the file: what another partition or another segment
wrote is not intact here.

A damaged file is not rewritten. Each intact part of it becomes a ``Segment`` of its own, in the manifest.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import google_crc32c

from tidegate.model.errors import LogCorruptError, LogFormatError
from tidegate.storage.files import ReadableFile, WritableFile
from tidegate.storage.record import HEADER_BYTES, OTHER_VERSION, BatchHeader, decode_header
from tidegate.storage.segments.cold_reads import CachedFile
from tidegate.storage.segments.sparse_index import SparseIndex

SEGMENT_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
FIRST_FORMAT_MAGIC: Final = b"TIDESEG1"
_MAGIC = b"TIDESEG2"
_FORMAT_VERSION = 2
_FIELDS = struct.Struct("<8s16sHHHHqII12s")
_CRC = struct.Struct("<I")
_SEED = struct.Struct("<16sqI")
SEGMENT_HEADER_BYTES: Final = _FIELDS.size + _CRC.size
assert SEGMENT_HEADER_BYTES == 64
LOG_ID_BYTES: Final = 16
_HEADER_WINDOW_BYTES = 32 * 1024


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """A segment's decoded header."""

    log_id: bytes
    """16 random bytes: the partition's, drawn when it was created."""
    base_sequence_number: int
    salt: int
    """Random."""
    chain: int
    """The checksum of the last batch before the segment; 0 if there was none."""
    compatible: int = 0
    """Features that a version which does not know them may ignore, as bits."""
    incompatible: int = 0
    """Features without which the segment cannot be read, as bits."""

    @property
    def seed(self) -> int:
        """What the checksums of batch headers and of the index begin with."""
        seed: int = google_crc32c.value(_SEED.pack(self.log_id, self.base_sequence_number, self.salt))
        return seed


class Segment:
    """The intact part of a segment file; usually all of it. ``SegmentCache`` fills in and drops its index and
    its open file."""

    __slots__ = (
        "base_sequence_number",
        "chain",
        "end_position",
        "file",
        "file_bytes",
        "header",
        "index",
        "is_removed",
        "is_sealed",
        "last_chain",
        "last_time_ms",
        "path",
        "seed",
        "start_position",
        "until_sequence_number",
        "written",
    )

    def __init__(
        self,
        path: Path,
        header: SegmentHeader,
        *,
        base_sequence_number: int | None = None,
        start_position: int = SEGMENT_HEADER_BYTES,
        chain: int | None = None,
    ) -> None:
        """base_sequence_number, start_position, chain: where a part begins that is not the first of its file,
        and the checksum that its first batch names; None: the header's."""
        self.path = path
        self.header = header
        self.seed = header.seed
        self.base_sequence_number = (
            header.base_sequence_number if base_sequence_number is None else base_sequence_number
        )
        self.start_position = start_position
        self.chain = header.chain if chain is None else chain
        self.is_sealed = True
        """False for the active segment, whose index belongs to the writer and stays in memory."""
        self.is_removed = False
        """Whether retention removed it, or its hub was deleted: it must not be opened any more."""
        # Final once it is sealed:
        self.end_position = start_position
        self.until_sequence_number = self.base_sequence_number
        self.last_chain = self.chain
        """The checksum of its last batch."""
        self.last_time_ms: int | None = None
        """Enqueued time of its last batch, in milliseconds; None if it has none."""
        self.file_bytes = start_position
        """The size of the file, with what is damaged in it."""
        self.index: SparseIndex | None = None
        self.file: ReadableFile | None = None
        self.written: WritableFile | None = None
        """The file as the writer has opened it, perhaps closed since."""

    @property
    def stored_bytes(self) -> int:
        """What it takes on the disk, if it is sealed."""
        is_first = self.start_position == SEGMENT_HEADER_BYTES
        return self.end_position - (0 if is_first else self.start_position)

    @property
    def index_path(self) -> Path:
        """The file of its index."""
        return self.path.with_name(f"{self.base_sequence_number:020d}{INDEX_SUFFIX}")

    def __repr__(self) -> str:
        return f"<Segment {self.path.name} {'sealed' if self.is_sealed else 'active'}>"


@dataclass(frozen=True, slots=True)
class LogView:
    """The durable part of a log at one moment: an immutable value that the writer thread replaces as a whole.

    A reader gets the view once and works on it; it never contains a batch that is not durable.
    """

    segments: tuple[Segment, ...]
    """Oldest first; the last is the active one. Empty if nothing was ever appended."""
    end_position: int
    """Durable bytes of the last segment."""
    next_sequence_number: int
    """One past the last durable event."""
    last_enqueued_time_ms: int | None
    """Milliseconds since 1970-01-01 UTC; None if no event was ever enqueued."""
    chain: int = 0
    """The checksum of the last durable batch."""

    @property
    def stored_bytes(self) -> int:
        """Bytes of the segment files."""
        return sum(each.stored_bytes for each in self.segments[:-1]) + self.end_position

    @property
    def begin_sequence_number(self) -> int:
        """The first event held; ``next_sequence_number`` if there is none."""
        return self.segments[0].base_sequence_number if self.segments else self.next_sequence_number


def segment_path(directory: Path, base_sequence_number: int) -> Path:
    """The file of the segment that begins with this sequence number."""
    return directory / f"{base_sequence_number:020d}{SEGMENT_SUFFIX}"


def segment_bases(names: list[str]) -> list[int]:
    """The base sequence numbers of the segment files among ``names``, ascending."""
    stems = [name.removesuffix(SEGMENT_SUFFIX) for name in names if name.endswith(SEGMENT_SUFFIX)]
    return sorted(int(stem) for stem in stems if len(stem) == 20 and stem.isascii() and stem.isdigit())


def encode_segment_header(header: SegmentHeader) -> bytes:
    """The 64 bytes that a segment begins with."""
    fields = _FIELDS.pack(
        _MAGIC,
        header.log_id,
        _FORMAT_VERSION,
        0,
        header.compatible,
        header.incompatible,
        header.base_sequence_number,
        header.salt,
        header.chain,
        bytes(12),
    )
    return fields + _CRC.pack(google_crc32c.value(fields))


def decode_segment_header(data: bytes) -> SegmentHeader | None:
    """The header in the first 64 bytes; None if it is not intact.

    Raises LogFormatError for one of another format, or with a feature that is needed and not known.
    """
    if len(data) < SEGMENT_HEADER_BYTES:
        return None
    fields = data[: _FIELDS.size]
    magic, log_id, version, _, compatible, incompatible, base, salt, chain, _ = _FIELDS.unpack(fields)
    if magic != _MAGIC or _CRC.unpack_from(data, _FIELDS.size)[0] != google_crc32c.value(fields):
        return None
    if version != _FORMAT_VERSION:
        raise LogFormatError(
            f"A segment of the log has format {version}; this version of Tidegate reads format "
            f"{_FORMAT_VERSION}.",
            next_step=OTHER_VERSION,
        )
    if incompatible:
        raise LogFormatError(
            f"A segment of the log needs the features of the bits {incompatible:#x}, which this version of "
            "Tidegate does not know.",
            next_step=OTHER_VERSION,
        )
    return SegmentHeader(log_id, base, salt, chain, compatible, incompatible)


def first_format_error() -> LogFormatError:
    """The error for a log of the format before the first release."""
    return LogFormatError(
        "The log has format 1, which no released version of Tidegate wrote; this version reads format 2.",
        next_step="Use a new data directory. To keep the events, read them with the version that wrote them "
        "and send them again.",
    )


def check_segment_header(file: ReadableFile, segment: Segment) -> None:
    """Raise LogCorruptError if the file's header is damaged, or is of another log or segment."""
    if decode_segment_header(file.read_at(SEGMENT_HEADER_BYTES, 0)) != segment.header:
        raise corrupt_error(segment.path, 0, "the segment's header is damaged, or another segment's")


def iter_headers(
    file: ReadableFile | CachedFile, segment: Segment, start: int, end: int
) -> Iterator[tuple[int, BatchHeader | None]]:
    """Positions and headers of the batches in ``start..end``, without reading their bodies.

    Ends at ``end``, or after (position, None) if there is no intact header that follows the one before it, or
    a batch would extend beyond ``end``.
    """
    position = start
    window: bytes | memoryview = b""
    window_start = start
    before: BatchHeader | None = None
    while position < end:
        offset = position - window_start
        if offset + HEADER_BYTES > len(window):
            window, window_start, offset = file.read_at(_HEADER_WINDOW_BYTES, position), position, 0
        header = decode_header(window, offset, seed=segment.seed)
        if header is None or position + header.total_length > end or not follows(header, before):
            yield position, None
            return
        yield position, header
        position += header.total_length
        before = header


def follows(header: BatchHeader, before: BatchHeader | None) -> bool:
    """Whether the one batch can follow the other, directly. None: it is not known which one is before it."""
    return before is None or (
        header.chain == before.checksum and header.base_sequence_number == before.until_sequence_number
    )


def corrupt_error(path: Path, position: int, what: str) -> LogCorruptError:
    """The error for damage that needs a person: names file, byte offset, and the command that helps."""
    data_directory = path.parents[3] if len(path.parents) > 3 else path.parent
    return LogCorruptError(
        f"The log is damaged at byte {position} of {path}: {what}.",
        next_step=f"Stop the service and run: tidegate check {data_directory} (then with --repair, "
        "which keeps everything intact and reports which events are lost).",
    )
