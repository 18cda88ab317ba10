"""Opening a partition's log: find where its durable events end, and refuse to guess about damage.

Theory of operation. Segments before the last are complete: each was synced before the next was created. In
the last one, everything after the snapshot is read and verified. Where it stops being intact, at byte X,
there are two cases:

    torn tail    a round of writes that power loss or SIGKILL interrupted; never acknowledged
    damage       acknowledged bytes that no longer read back

The snapshot records a durable position: before it, it is damage. After it, each batch header records how much
of the file was durable when it was written: an intact batch after X that records more than X proves damage. A
torn tail is truncated and logged; damage raises LogCorruptError and changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate.model.errors import LogFormatError
from tidegate.storage.files import Files, ReadableFile, read_whole, write_all
from tidegate.storage.log_view import LogView
from tidegate.storage.options import LogOptions
from tidegate.storage.producers import ProducerTable
from tidegate.storage.record import (
    HEADER_BYTES,
    MAGIC,
    NO_PRODUCER_ID,
    BatchHeader,
    ProducerBatch,
    decode_header,
)
from tidegate.storage.segment import (
    SEGMENT_HEADER_BYTES,
    Segment,
    corrupt_error,
    decode_segment_header,
    index_path,
    iter_headers,
    read_segment_header,
    segment_bases,
    segment_path,
)
from tidegate.storage.segment_reader import build_index, iter_batches
from tidegate.storage.snapshot import SNAPSHOT_NAME, Snapshot, decode_snapshot
from tidegate.storage.sparse_index import SparseIndex

GAPS_NAME: Final = "gaps"
"""Ranges of sequence numbers that a repair gave up: a JSON array of [start, until]."""

_CHUNK_BYTES = 1024 * 1024
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """A log as found on disk: all of it durable, its end known."""

    view: LogView
    salt: int
    """Of the last segment; 0 if there is none."""
    producers: ProducerTable
    gaps: frozenset[tuple[int, int]]
    """Ranges of sequence numbers that a repair gave up."""
    unsaved_bytes: int = 0
    """Bytes of log that no snapshot covers yet."""


def recover_log(directory: Path, *, files: Files, options: LogOptions) -> RecoveredLog:
    """Open the log in ``directory``, truncating a torn tail. Raises LogCorruptError, OSError.

    A format that is not known is never a torn tail: it raises LogFormatError, and nothing is changed.
    """
    try:
        return _recover_log(directory, files, options)
    except LogFormatError as error:
        raise LogFormatError(f"{error.message} The log is {directory}.", next_step=error.next_step) from None


def _recover_log(directory: Path, files: Files, options: LogOptions) -> RecoveredLog:
    gaps = read_gaps(files, directory)
    snapshot = read_snapshot(files, directory)
    bases = _existing_bases(files, directory, snapshot)
    if not bases:
        return RecoveredLog(LogView((), 0, 0, None), 0, ProducerTable(options.producers_max), gaps)
    tail = _Tail(directory, files, options, snapshot)
    while True:
        recovered = tail.recover(bases)
        if recovered is not None and not _is_leftover(tail, bases, gaps, recovered):
            break
        path = segment_path(directory, bases.pop())
        _logger.warning("Removed %s: it was incomplete when the service stopped, and has no events.", path)
        files.remove(path)
        if not bases:
            return RecoveredLog(LogView((), 0, 0, None), 0, ProducerTable(options.producers_max), gaps)
    return RecoveredLog(recovered, tail.salt, tail.producers, gaps, tail.unsaved_bytes)


def read_gaps(files: Files, directory: Path) -> frozenset[tuple[int, int]]:
    """The ranges that a repair gave up. Raises LogCorruptError, OSError."""
    path = directory / GAPS_NAME
    try:
        return frozenset((start, until) for start, until in json.loads(read_whole(files, path)))
    except FileNotFoundError:
        return frozenset()
    except (ValueError, TypeError, RecursionError):
        raise corrupt_error(path, 0, "it is not a list of ranges") from None


def read_snapshot(files: Files, directory: Path) -> Snapshot | None:
    """The snapshot; None if there is no intact one."""
    try:
        snapshot = decode_snapshot(read_whole(files, directory / SNAPSHOT_NAME))
    except FileNotFoundError:
        return None
    if snapshot is None:
        _logger.warning("The snapshot in %s is damaged; the log is read instead.", directory)
    return snapshot


def find_batch(file: ReadableFile, salt: int, start: int, end: int) -> tuple[int, BatchHeader] | None:
    """The first intact header at byte ``start`` or later, at any position; None: none before ``end``."""
    position = start
    while position + HEADER_BYTES <= end:
        chunk = file.read_at(_CHUNK_BYTES, position)
        offset = chunk.find(MAGIC)
        while 0 <= offset <= len(chunk) - HEADER_BYTES:
            header = decode_header(chunk, offset, salt=salt)
            if header is not None:
                return position + offset, header
            offset = chunk.find(MAGIC, offset + 1)
        if len(chunk) < HEADER_BYTES:
            return None
        position += len(chunk) - HEADER_BYTES + 1
    return None


def is_damage_proved(file: ReadableFile, salt: int, position: int, end: int) -> bool:
    """Whether a batch after ``position`` records that ``position`` was durable when it was written."""
    found = find_batch(file, salt, position, end)
    while found is not None:
        found_position, header = found
        if header.durable_position > position:
            return True
        found = find_batch(file, salt, found_position + 1, end)
    return False


def _existing_bases(files: Files, directory: Path, snapshot: Snapshot | None) -> list[int]:
    """The segments of the log. Raises LogCorruptError if a required one is missing."""
    try:
        bases = segment_bases(files.list_names(directory))
    except FileNotFoundError:
        raise corrupt_error(
            segment_path(directory, 0), 0, "the partition's whole directory is missing"
        ) from None
    if snapshot is None:
        return bases
    for base in snapshot.segment_bases:
        if base not in bases:
            raise corrupt_error(segment_path(directory, base), 0, "the file is missing")
    first = snapshot.segment_bases[0]
    for base in bases:
        if base < first:
            # Retention had removed it, and a power loss brought it back.
            path = segment_path(directory, base)
            files.remove(path)
            files.remove(index_path(path))
    return [base for base in bases if base >= first]


def _is_leftover(tail: _Tail, bases: Sequence[int], gaps: frozenset[tuple[int, int]], view: LogView) -> bool:
    """Whether the last segment is empty and unused, because creating it failed."""
    if len(bases) < 2 or view.end_position > SEGMENT_HEADER_BYTES:
        return False
    snapshot = tail.snapshot
    if snapshot is not None and snapshot.segment_bases[-1] == bases[-1]:
        return False
    until = tail.until_sequence_number(bases[-2])
    if until < bases[-1] and (until, bases[-1]) not in gaps:
        raise corrupt_error(
            segment_path(tail.directory, bases[-2]),
            tail.file_size(bases[-2]),
            f"the events {until} to {bases[-1] - 1} are missing after it",
        )
    return until > bases[-1]


class _Tail:
    """Reads what the snapshot does not cover."""

    def __init__(self, directory: Path, files: Files, options: LogOptions, snapshot: Snapshot | None) -> None:
        self.directory = directory
        self.snapshot = snapshot
        self.salt = 0
        self.unsaved_bytes = 0
        self.producers = ProducerTable(options.producers_max)
        self._files = files
        self._options = options

    def recover(self, bases: Sequence[int]) -> LogView | None:
        """The log of these segments; None if not even the last one's header is complete."""
        path = segment_path(self.directory, bases[-1])
        file = self._files.open_readable(path)
        try:
            size = file.size()
            if size <= SEGMENT_HEADER_BYTES and decode_segment_header(file.read_at(size, 0)) is None:
                is_known = self.snapshot is not None and self.snapshot.segment_bases[-1] >= bases[-1]
                if is_known:
                    raise corrupt_error(path, 0, "the segment's header is damaged")
                return None
            self.salt = read_segment_header(file, path, bases[-1]).salt
            return self._recover_last(bases, file, size)
        finally:
            file.close()

    def until_sequence_number(self, base: int) -> int:
        """One past the last event of a complete segment, from its batch headers."""
        segment = Segment(segment_path(self.directory, base), base)
        file = self._files.open_readable(segment.path)
        try:
            salt = read_segment_header(file, segment.path, base).salt
            interval = self._options.index_interval_bytes
            index = build_index(segment, file, salt, end=file.size(), interval_bytes=interval)
            return index.until_sequence_number
        finally:
            file.close()

    def file_size(self, base: int) -> int:
        """Bytes of a segment's file."""
        file = self._files.open_readable(segment_path(self.directory, base))
        try:
            return file.size()
        finally:
            file.close()

    def _recover_last(self, bases: Sequence[int], file: ReadableFile, size: int) -> LogView:
        segments = tuple(Segment(segment_path(self.directory, base), base) for base in bases)
        last = segments[-1]
        last.is_sealed = False
        last.salt = self.salt
        for segment in segments[:-1]:
            with contextlib.suppress(OSError):  # its readers get the error
                segment.sealed_bytes = self.file_size(segment.base_sequence_number)
        index, time_ms = self._begin(bases, last)
        if index.end_position > size:
            raise corrupt_error(
                last.path, size, f"the segment ends there and had {index.end_position} durable bytes"
            )
        start = index.end_position
        end, scanned_time_ms = self._scan(last, file, index, size)
        self.unsaved_bytes = end - start
        if end < size:
            self._cut_off(last.path, end, size)
        if end > start:
            # Batches that were perhaps never synced are about to be served: make them durable first.
            self._write_again(last.path, file, start, end)
        last.index = index
        if scanned_time_ms is not None:
            time_ms = scanned_time_ms
        return LogView(segments, end, index.until_sequence_number, time_ms)

    def _begin(self, bases: Sequence[int], last: Segment) -> tuple[SparseIndex, int | None]:
        """The state before the last segment is read: its index so far, and the last enqueued time."""
        snapshot = self.snapshot
        self.producers = ProducerTable(self._options.producers_max)
        if snapshot is not None:
            for producer_id, state in snapshot.producers.items():
                self.producers.restore(producer_id, state)
            if snapshot.segment_bases[-1] == last.base_sequence_number:
                return snapshot.index, snapshot.last_enqueued_time_ms
        index = SparseIndex(
            self._options.index_interval_bytes,
            start_position=SEGMENT_HEADER_BYTES,
            base_sequence_number=last.base_sequence_number,
        )
        time_ms = None if snapshot is None else snapshot.last_enqueued_time_ms
        # Producers and last time come from the segments before it: those that the snapshot does not wholly
        # cover, or, without a snapshot, the previous one.
        unseen_from = bases[-2:][0] if snapshot is None else snapshot.segment_bases[-1]
        for base in bases[:-1]:
            if base >= unseen_from:
                is_partly_seen = snapshot is not None and base == unseen_from
                start = snapshot.position if snapshot is not None and is_partly_seen else SEGMENT_HEADER_BYTES
                found = self._read_sealed(base, start)
                time_ms = time_ms if found is None else found
        return index, time_ms

    def _read_sealed(self, base: int, start: int) -> int | None:
        """Record the producers of a sealed segment from byte ``start``; returns its last time, if any."""
        path = segment_path(self.directory, base)
        file = self._files.open_readable(path)
        time_ms: int | None = None
        try:
            salt = read_segment_header(file, path, base).salt
            for position, header in iter_headers(file, salt, start, file.size()):
                if header is None:
                    raise corrupt_error(path, position, "no intact batch begins there")
                self._take_in(header)
                time_ms = header.enqueued_time_ms
        finally:
            file.close()
        return time_ms

    def _scan(
        self, segment: Segment, file: ReadableFile, index: SparseIndex, size: int
    ) -> tuple[int, int | None]:
        """Verify the batches after the index and add them to it; returns their end, and the last time."""
        time_ms: int | None = None
        for position, header, batch in iter_batches(file, self.salt, index.end_position, size):
            if header is None or batch is None or header.base_sequence_number != index.until_sequence_number:
                if is_damage_proved(file, self.salt, position, size):
                    raise corrupt_error(segment.path, position, "an acknowledged batch is damaged")
                break
            self._take_in(header)
            time_ms = header.enqueued_time_ms
            index.add_batch(
                header.base_sequence_number,
                header.until_sequence_number,
                time_ms,
                position,
                header.total_length,
            )
        return index.end_position, time_ms

    def _take_in(self, header: BatchHeader) -> None:
        if header.producer_id != NO_PRODUCER_ID:
            batch = ProducerBatch(header.producer_id, header.producer_epoch, header.producer_sequence)
            self.producers.record(
                batch,
                header.event_count,
                header.base_sequence_number,
                header.enqueued_time_ms,
                header.body_crc,
            )
            self.producers.trim()

    def _cut_off(self, path: Path, end: int, size: int) -> None:
        _logger.warning(
            "Truncated %d bytes of %s at byte %d: an incomplete write that was never acknowledged.",
            size - end,
            path,
            end,
        )
        file = self._files.open_writable(path)
        try:
            file.truncate(end)
            file.sync()
        finally:
            file.close()

    def _write_again(self, path: Path, source: ReadableFile, start: int, end: int) -> None:
        """Make a range durable. After a failed sync the kernel takes its pages for written: a sync alone
        would not write them."""
        file = self._files.open_writable(path)
        try:
            for position in range(start, end, _CHUNK_BYTES):
                chunk = source.read_at(min(_CHUNK_BYTES, end - position), position)
                write_all(file, [chunk], position)
            file.sync()
        finally:
            file.close()
