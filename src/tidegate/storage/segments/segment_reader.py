"""Reading segments: a bounded number of open files and indexes, and batches from the page cache.

``SegmentCache`` belongs to the event loop's thread, which is also the only one that closes its files.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator

from tidegate.storage.files import Files, ReadableFile, read_whole, replace_whole
from tidegate.storage.record import HEADER_BYTES, BatchHeader, RecordBatch, decode_body, decode_header
from tidegate.storage.segments.cold_reads import CachedFile, NotInMemory, Warmed
from tidegate.storage.segments.segment import (
    Segment,
    check_segment_header,
    corrupt_error,
    iter_headers,
)
from tidegate.storage.segments.sparse_index import SparseIndex

_CHUNK_BYTES = 1024 * 1024
_BATCHES_AT_ONCE = 128
"""Batches of one read, however small (our choice: 1 to 2 ms)."""
_logger = logging.getLogger(__name__)


class SegmentCache:
    """The segments that are open for reading, the least recently used first."""

    def __init__(self, files: Files, *, segments_max: int, index_interval_bytes: int) -> None:
        self._files = files
        self._segments_max = segments_max
        self._index_interval_bytes = index_interval_bytes
        self._open: OrderedDict[Segment, None] = OrderedDict()
        self._is_closed = False
        self._buffer = memoryview(bytearray(_CHUNK_BYTES))

    def file(self, segment: Segment, warmed: Warmed, *, recent_from: int | None) -> CachedFile:
        """What is cached of the segment's file; see ``CachedFile``. Raises NotInMemory, OSError."""
        if segment.file is None:
            written = segment.written
            segment.file = None if written is None else written.reader()
        if segment.file is None:
            raise self._missing(segment)
        self._touch(segment)
        return CachedFile(
            self._files, segment.path, segment.file, warmed, recent_from=recent_from, buffer=self._buffer
        )

    def index(self, segment: Segment) -> SparseIndex:
        """The index. Raises NotInMemory, whose ``load`` raises FileNotFoundError, LogCorruptError."""
        if segment.index is None:
            raise self._missing(segment)
        self._touch(segment)
        return segment.index

    def forget(self, segment: Segment) -> None:
        """Close a removed segment for good."""
        segment.is_removed = True
        self._close(segment)

    def close(self) -> None:
        self._is_closed = True
        for segment in list(self._open):
            self._close(segment)

    def _close(self, segment: Segment) -> None:
        self._open.pop(segment, None)
        if segment.file is not None:
            segment.file.close()
            segment.file = None

    def _missing(self, segment: Segment) -> NotInMemory:
        """Opens a segment, and reads the index of a sealed one."""

        def load() -> list[tuple[ReadableFile, SparseIndex]]:
            file = self._files.open_readable(segment.path)
            try:
                check_segment_header(file, segment)
                index = segment.index
                if index is None:
                    index = load_index(self._files, segment, file, self._index_interval_bytes)
            except BaseException:
                file.close()
                raise
            return [(file, index)]

        def install(loaded: list[tuple[ReadableFile, SparseIndex]]) -> None:
            if not loaded:  # another look that shares the load took it
                return
            self._close(segment)
            segment.file, segment.index = loaded.pop()
            if segment.is_removed or self._is_closed:
                self._close(segment)
            else:
                self._touch(segment)

        return NotInMemory(segment, load, install)

    def _touch(self, segment: Segment) -> None:
        self._open[segment] = None
        self._open.move_to_end(segment)
        while len(self._open) > self._segments_max:
            oldest = next(iter(self._open))
            self._close(oldest)
            if oldest.is_sealed:
                oldest.index = None


def load_index(files: Files, segment: Segment, file: ReadableFile, interval_bytes: int) -> SparseIndex:
    """The index of a sealed segment from its file; rebuilt and saved if that is missing or damaged.

    Raises LogCorruptError if a batch header is damaged, or the batches do not end where they should.
    """
    path = segment.index_path
    try:
        index = SparseIndex.decode(read_whole(files, path), segment.seed)
    except FileNotFoundError:
        index = None
    if index is not None and _is_complete(index, segment):
        return index
    rebuilt = build_index(segment, file, interval_bytes=interval_bytes)
    _logger.warning("The index %s was missing or damaged and has been rebuilt.", path)
    try:
        replace_whole(files, path, rebuilt.encode(segment.seed), is_durable=False)
    except OSError as error:
        _logger.warning("The index %s was not written: %s.", path, error)
    return rebuilt


def build_index(segment: Segment, file: ReadableFile, *, interval_bytes: int) -> SparseIndex:
    """The index of a sealed segment, from the headers of its batches. Raises LogCorruptError."""
    index = SparseIndex(
        interval_bytes,
        start_position=segment.start_position,
        base_sequence_number=segment.base_sequence_number,
    )
    for position, header in iter_headers(file, segment, segment.start_position, segment.end_position):
        if header is None or header.base_sequence_number != index.until_sequence_number:
            raise corrupt_error(segment.path, position, "no intact batch begins there")
        index.add_batch(
            header.base_sequence_number,
            header.until_sequence_number,
            header.enqueued_time_ms,
            position,
            header.total_length,
        )
    if not _is_complete(index, segment):
        raise corrupt_error(segment.path, index.end_position, "batches are missing")
    return index


def _is_complete(index: SparseIndex, segment: Segment) -> bool:
    return (index.end_position, index.until_sequence_number) == (
        segment.end_position,
        segment.until_sequence_number,
    )


def read_batches(
    segment: Segment,
    file: ReadableFile | CachedFile,
    *,
    position: int,
    chain: int | None,
    end: int,
    end_chain: int,
    start_sequence_number: int,
    bytes_max: int,
) -> tuple[list[RecordBatch], int, int | None]:
    """Read batches from the one that holds ``start_sequence_number`` on; returns them, where they end, and
    the checksum of the last one.

    position: where to start looking. chain: the checksum of the batch before that; None: unknown. end:
    durable bytes of the segment; end_chain: the checksum of the last batch in them. Reads about ``bytes_max``
    bytes in at most _BATCHES_AT_ONCE batches, at least one; none only if the segment holds no such batch.
    Raises LogCorruptError if a batch read is damaged, or is not the one that the next batch was written
    after; and what ``file`` raises.
    """
    batches: list[RecordBatch] = []
    expected: int | None = None
    if position == segment.start_position:
        chain, expected = segment.chain, segment.base_sequence_number
    needed = HEADER_BYTES
    is_confirmed = False
    while not batches and position < end:
        count = min(max(bytes_max, needed), end - position)
        chunk = file.read_at(count, position)
        if len(chunk) < count or count < needed:
            raise corrupt_error(segment.path, position, f"the events end there instead of at byte {end}")
        needed, is_confirmed = HEADER_BYTES, False
        offset = 0
        while len(batches) < _BATCHES_AT_ONCE and len(chunk) - offset >= HEADER_BYTES:
            header = decode_header(chunk, offset, seed=segment.seed)
            if (
                header is None
                or (chain is not None and header.chain != chain)
                or (expected is not None and header.base_sequence_number != expected)
            ):
                raise corrupt_error(segment.path, position + offset, "no intact batch begins there")
            total = HEADER_BYTES + header.body_length
            if header.until_sequence_number > start_sequence_number:
                if offset + total > len(chunk):
                    needed, is_confirmed = total, True  # by the batch that comes next
                    break
                if not batches and header.base_sequence_number > start_sequence_number:
                    raise corrupt_error(
                        segment.path, position + offset, f"the event {start_sequence_number} is missing"
                    )
                batch = decode_body(header, bytes(chunk[offset + HEADER_BYTES : offset + total]))
                if batch is None:
                    raise corrupt_error(segment.path, position + offset, "the batch fails its checksum")
                batches.append(batch)
            chain, expected = header.checksum, header.until_sequence_number
            # Skip batches before the start without reading them.
            offset += total
        if position + offset > end:
            raise corrupt_error(segment.path, position, f"a batch reaches beyond byte {end}")
        position += offset
    if position < end and not is_confirmed:
        following = decode_header(file.read_at(HEADER_BYTES, position), seed=segment.seed)
        # Damage to the next batch is the error of the next read.
        is_confirmed = following is None or following.chain == chain
    elif not is_confirmed:
        is_confirmed = chain == end_chain
    if batches and not is_confirmed:
        raise corrupt_error(segment.path, position, "what follows was written after another batch")
    return batches, position, chain


def iter_batches(
    file: ReadableFile, seed: int, start: int, end: int
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
            header = decode_header(window, position - window_start, seed=seed)
            if header is None or position + header.total_length > end:
                yield position, None, None
                return
            needed = header.total_length
        assert header is not None
        offset = position - window_start
        yield position, header, decode_body(header, window[offset + HEADER_BYTES : offset + needed])
        position += needed
