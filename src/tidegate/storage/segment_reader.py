"""Reading segments: a bounded number of open files and indexes, and batches from the page cache.

Everything runs on the event loop's thread, which is also the only one that closes files open for reading.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from tidegate.storage.files import Files, ReadableFile, read_whole, replace_whole
from tidegate.storage.record import HEADER_BYTES, BatchHeader, RecordBatch, decode_body, decode_header
from tidegate.storage.segment import (
    SEGMENT_HEADER_BYTES,
    Segment,
    corrupt_error,
    index_path,
    iter_headers,
    read_segment_header,
)
from tidegate.storage.sparse_index import SparseIndex

_CHUNK_BYTES = 1024 * 1024
_logger = logging.getLogger(__name__)


class SegmentCache:
    """The segments that are open for reading, the least recently used first."""

    def __init__(self, files: Files, *, segments_max: int, index_interval_bytes: int) -> None:
        self._files = files
        self._segments_max = segments_max
        self._index_interval_bytes = index_interval_bytes
        self._open: OrderedDict[Path, Segment] = OrderedDict()

    def file(self, segment: Segment) -> tuple[ReadableFile, int]:
        """The segment's open file and its salt. Raises FileNotFoundError, LogCorruptError."""
        file = segment.file
        if file is None:
            file = self._files.open_readable(segment.path)
            try:
                if segment.salt is None:
                    header = read_segment_header(file, segment.path, segment.base_sequence_number)
                    segment.salt = header.salt
            except BaseException:
                file.close()
                raise
            segment.file = file
        self._touch(segment)
        assert segment.salt is not None
        return file, segment.salt

    def index(self, segment: Segment) -> SparseIndex:
        """The index: in memory, from its file, or rebuilt. Raises FileNotFoundError, LogCorruptError."""
        if segment.index is None:
            segment.index = load_index(self._files, segment, self.file(segment), self._index_interval_bytes)
            segment.sealed_bytes = segment.index.end_position
            segment.last_time_ms = segment.index.last_time_ms
        self._touch(segment)
        return segment.index

    def sealed_bytes(self, segment: Segment) -> int:
        """The size of a sealed segment. Raises FileNotFoundError, LogCorruptError."""
        return self.index(segment).end_position if segment.sealed_bytes is None else segment.sealed_bytes

    def last_time_ms(self, segment: Segment) -> int:
        """When the last batch of a sealed segment was enqueued. Raises FileNotFoundError, LogCorruptError."""
        return self.index(segment).last_time_ms if segment.last_time_ms is None else segment.last_time_ms

    def forget(self, segment: Segment) -> None:
        """Close a removed segment."""
        self._open.pop(segment.path, None)
        if segment.file is not None:
            segment.file.close()
            segment.file = None

    def close(self) -> None:
        for segment in list(self._open.values()):
            self.forget(segment)

    def _touch(self, segment: Segment) -> None:
        self._open[segment.path] = segment
        self._open.move_to_end(segment.path)
        while len(self._open) > self._segments_max:
            oldest = next(iter(self._open.values()))
            self.forget(oldest)
            if oldest.is_sealed:
                oldest.index = None


def load_index(
    files: Files, segment: Segment, file_and_salt: tuple[ReadableFile, int], interval_bytes: int
) -> SparseIndex:
    """The index of a sealed segment from its file; rebuilt and saved if that is missing or damaged.

    Raises LogCorruptError if the segment is not as long as its index says, or a batch header is damaged.
    """
    file, salt = file_and_salt
    path = index_path(segment.path)
    try:
        index = SparseIndex.decode(read_whole(files, path), salt)
    except FileNotFoundError:
        index = None
    size = file.size()
    if index is not None and index.end_position == size:
        return index
    if index is not None and index.end_position > size:
        raise corrupt_error(segment.path, size, f"the segment ends there and had {index.end_position} bytes")
    rebuilt = build_index(segment, file, salt, end=size, interval_bytes=interval_bytes)
    _logger.warning("The index %s was missing or damaged and has been rebuilt.", path)
    try:
        replace_whole(files, path, rebuilt.encode(salt), is_durable=False)
    except OSError as error:
        _logger.warning("The index %s was not written: %s.", path, error)
    return rebuilt


def build_index(
    segment: Segment, file: ReadableFile, salt: int, *, end: int, interval_bytes: int
) -> SparseIndex:
    """The index of the batches up to byte ``end``, from their headers. Raises LogCorruptError."""
    index = SparseIndex(
        interval_bytes,
        start_position=SEGMENT_HEADER_BYTES,
        base_sequence_number=segment.base_sequence_number,
    )
    for position, header in iter_headers(file, salt, SEGMENT_HEADER_BYTES, end):
        if header is None or header.base_sequence_number != index.until_sequence_number:
            raise corrupt_error(segment.path, position, "no intact batch begins there")
        index.add_batch(
            header.base_sequence_number,
            header.until_sequence_number,
            header.enqueued_time_ms,
            position,
            header.total_length,
        )
    return index


def read_batches(
    segment: Segment,
    file: ReadableFile,
    salt: int,
    *,
    position: int,
    end: int,
    start_sequence_number: int,
    bytes_max: int,
) -> tuple[list[RecordBatch], int]:
    """Read batches from the one that holds ``start_sequence_number`` on; returns them, and where they end.

    position: where to start looking. end: durable bytes of the segment. Reads about ``bytes_max`` bytes, at
    least one batch; none only if the segment holds no such batch. Raises LogCorruptError if a batch read is
    damaged.
    """
    batches: list[RecordBatch] = []
    expected: int | None = None
    needed = HEADER_BYTES
    while not batches and position < end:
        count = min(max(bytes_max, needed), end - position)
        chunk = file.read_at(count, position)
        if len(chunk) < count or count < needed:
            raise corrupt_error(segment.path, position, f"the events end there instead of at byte {end}")
        needed = HEADER_BYTES
        offset = 0
        while len(chunk) - offset >= HEADER_BYTES:
            header = decode_header(chunk, offset, salt=salt)
            if header is None or (expected is not None and header.base_sequence_number != expected):
                raise corrupt_error(segment.path, position + offset, "no intact batch begins there")
            total = HEADER_BYTES + header.body_length
            if header.until_sequence_number > start_sequence_number:
                if offset + total > len(chunk):
                    needed = total
                    break
                if not batches and header.base_sequence_number > start_sequence_number:
                    raise corrupt_error(
                        segment.path, position + offset, f"the event {start_sequence_number} is missing"
                    )
                batch = decode_body(header, chunk[offset + HEADER_BYTES : offset + total])
                if batch is None:
                    raise corrupt_error(segment.path, position + offset, "the batch fails its checksum")
                batches.append(batch)
                expected = header.until_sequence_number
            # Skip batches before the start without reading them.
            offset += total
        if position + offset > end:
            raise corrupt_error(segment.path, position, f"a batch reaches beyond byte {end}")
        position += offset
    return batches, position


def iter_batches(
    file: ReadableFile, salt: int, start: int, end: int
) -> Iterator[tuple[int, BatchHeader | None, RecordBatch | None]]:
    """Position, header and verified batch of everything in ``start..end``.

    The batch is None if its body is damaged; header and batch are None, and the iteration ends, if there is
    no intact header or a batch would extend beyond ``end``.
    """
    position = start
    window, window_start = b"", start
    while position < end:
        needed = HEADER_BYTES
        header: BatchHeader | None = None
        for _ in range(2):  # First the header, then the body, whose length is then known.
            if position + needed > window_start + len(window):
                window, window_start = file.read_at(max(needed, _CHUNK_BYTES), position), position
            header = decode_header(window, position - window_start, salt=salt)
            if header is None or position + header.total_length > end:
                yield position, None, None
                return
            needed = header.total_length
        assert header is not None
        offset = position - window_start
        yield position, header, decode_body(header, window[offset + HEADER_BYTES : offset + needed])
        position += needed
