"""Verifies every byte of the logs in a data directory, and repairs damage.

A check reads all segments and compares every checksum. A repair never discards bytes: it first copies a
damaged segment to a side file, then writes the intact batches to new segments, and enters the sequence
numbers between them in ``gaps``, so that readers know they are missing on purpose. After a crash at any point
of a repair, the directory can be repaired again.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.storage.files import Files, OsFiles, ReadableFile, replace_whole, write_all
from tidegate.storage.log_manager import LOCK_NAME, LOGS_NAME
from tidegate.storage.record import ProducerBatch, RecordBatch, encode_batch
from tidegate.storage.recovery import GAPS_NAME, find_batch, is_damage_proved, read_gaps, read_snapshot
from tidegate.storage.segment import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    decode_segment_header,
    encode_segment_header,
    index_path,
    segment_bases,
    segment_path,
)
from tidegate.storage.segment_reader import iter_batches
from tidegate.storage.snapshot import SNAPSHOT_NAME, Snapshot

DAMAGED_SUFFIX = ".damaged"
_COPY_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Damage:
    """One damaged place in a log."""

    path: Path
    position: int
    """Byte offset in the file."""
    description: str
    lost: tuple[int, int] | None
    """Half-open range of the sequence numbers that cannot be read; None if none is lost."""
    set_aside: Path | None = None
    """The repair's copy of the damaged file; None if nothing was repaired."""


@dataclass(slots=True)
class CheckReport:
    """The result of a check."""

    partitions: int = 0
    segments: int = 0
    batches: int = 0
    events: int = 0
    bytes_read: int = 0
    damages: list[Damage] = field(default_factory=list)
    torn_tails: list[tuple[Path, int]] = field(default_factory=list)
    """Files and offsets of incomplete writes, never acknowledged; the next start truncates them."""
    strays: list[Path] = field(default_factory=list)
    """Files where only directories belong: unused, and not changed."""
    is_repaired: bool = False

    @property
    def is_sound(self) -> bool:
        """Whether no acknowledged data is damaged."""
        return not self.damages


@dataclass(slots=True)
class _Piece:
    """Consecutive intact batches of a damaged segment."""

    start_position: int
    end_position: int
    base_sequence_number: int
    until_sequence_number: int


def check_log_directory(
    data_directory: Path,
    *,
    repair: bool = False,
    files: Files | None = None,
    on_progress: Callable[[int], None] = lambda bytes_read: None,
) -> CheckReport:
    """Read and verify all logs of a data directory; with ``repair``, make damaged ones usable again.

    on_progress: called with the number of bytes of segments checked so far.

    Raises DirectoryInUseError if a service is using it, FileNotFoundError if it is not a data directory,
    OSError.
    """
    files = files or OsFiles()
    report = CheckReport()
    logs_directory = data_directory / LOGS_NAME
    hub_ids = files.list_names(logs_directory)
    lock = files.lock(data_directory / LOCK_NAME)
    try:
        for hub_directory in (logs_directory / hub_id for hub_id in hub_ids):
            for partition_id in _names_in(files, hub_directory, report) or ():
                directory = hub_directory / partition_id
                if _names_in(files, directory, report) is not None:
                    _PartitionCheck(files, directory, report, on_progress).run(repair=repair)
    finally:
        lock.release()
    report.is_repaired = repair and bool(report.damages)
    return report


def _names_in(files: Files, directory: Path, report: CheckReport) -> list[str] | None:
    """The names in a directory; None if it is a file, which is then reported as a stray."""
    try:
        return files.list_names(directory)
    except NotADirectoryError:
        report.strays.append(directory)
        return None


class _PartitionCheck:
    def __init__(
        self, files: Files, directory: Path, report: CheckReport, on_progress: Callable[[int], None]
    ) -> None:
        self._on_progress = on_progress
        self._files = files
        self._directory = directory
        self._report = report
        self._gaps = set(read_gaps(files, directory))
        self._snapshot = read_snapshot(files, directory)

    def run(self, *, repair: bool) -> None:
        self._report.partitions += 1
        bases = segment_bases(self._files.list_names(self._directory))
        snapshot = self._snapshot
        damages_before = len(self._report.damages)
        if snapshot is not None:
            # Retention had removed older files, and a power loss brought them back.
            bases = [base for base in bases if base >= snapshot.segment_bases[0]]
        expected = intact = self._expected_begin(bases, snapshot)
        for number, base in enumerate(bases):
            if base > expected and (expected, base) not in self._gaps:
                path = segment_path(self._directory, base)
                self._add(path, 0, "the events before it are missing", expected, base)
                if repair:
                    self._declare_gap(expected, base)
            following = bases[number + 1] if number + 1 < len(bases) else None
            intact, expected = self._check_segment(base, following, repair=repair)
        end = expected if snapshot is None else max(expected, snapshot.next_sequence_number)
        if end > expected:
            self._add(self._directory, 0, "the newest events are missing", expected, end)
        if repair and end > intact:
            # Reserve the lost sequence numbers, so that other events never get them.
            self._declare_gap(intact, end)
            self._write_segment(end, iter(()))
        if repair and len(self._report.damages) > damages_before:
            # The snapshot describes the old log. Removed last, so that an interrupted repair can start over.
            self._files.remove(self._directory / SNAPSHOT_NAME)
            self._files.sync_directory(self._directory)

    def _expected_begin(self, bases: list[int], snapshot: Snapshot | None) -> int:
        if snapshot is not None:
            return snapshot.segment_bases[0]
        return bases[0] if bases else 0

    def _check_segment(self, base: int, following: int | None, *, repair: bool) -> tuple[int, int]:
        """Check a segment; returns one past its last intact event, and one past the last accounted for."""
        path = segment_path(self._directory, base)
        file = self._files.open_readable(path)
        try:
            size = file.size()
            self._report.segments += 1
            self._report.bytes_read += size
            header = decode_segment_header(file.read_at(SEGMENT_HEADER_BYTES, 0))
            pieces: list[_Piece] = []
            damages_before = len(self._report.damages)
            accounted = base
            if header is not None and header.base_sequence_number == base:
                accounted = self._check_batches(path, file, header.salt, base, following, pieces)
            elif following is None and size <= SEGMENT_HEADER_BYTES and not self._is_known(base):
                self._report.torn_tails.append((path, 0))
            else:
                accounted = self._end_of(base, following)
                self._add(path, 0, "the segment's header is damaged", base, accounted)
            if repair and len(self._report.damages) > damages_before:
                self._repair_segment(path, base, file, None if header is None else header.salt, pieces)
                self._mark_set_aside(damages_before, path)
            self._on_progress(self._report.bytes_read)
            return (pieces[-1].until_sequence_number if pieces else base), accounted
        finally:
            file.close()

    def _check_batches(
        self,
        path: Path,
        file: ReadableFile,
        salt: int,
        expected: int,
        following: int | None,
        pieces: list[_Piece],
    ) -> int:
        """Check the batches of a segment; returns one past the last event accounted for."""
        size = file.size()
        start = SEGMENT_HEADER_BYTES
        while True:
            damaged_at: int | None = None
            for position, header, batch in iter_batches(file, salt, start, size):
                self._on_progress(self._report.bytes_read - size + position)
                if header is None or batch is None or header.base_sequence_number < expected:
                    damaged_at = position
                    break
                base = header.base_sequence_number
                if following is not None and base >= following:
                    return expected  # Left by an interrupted repair: the next segment has these events.
                if base > expected:
                    self._add(path, position, "events are missing before it", expected, base)
                _extend(pieces, position, header.total_length, batch)
                expected = header.until_sequence_number
                self._report.batches += 1
                self._report.events += header.event_count
            if damaged_at is None:
                return expected
            if following is None and self._is_torn(path, file, salt, damaged_at):
                self._report.torn_tails.append((path, damaged_at))
                return expected
            found = find_batch(file, salt, damaged_at + 1, size)
            while found is not None and found[1].base_sequence_number < expected:
                found = find_batch(file, salt, found[0] + 1, size)
            if found is None:
                end = self._end_of(expected, following)
                self._add(path, damaged_at, "the rest of the segment is damaged", expected, end)
                return end
            start, until = found[0], found[1].base_sequence_number
            self._add(path, damaged_at, f"{start - damaged_at} bytes are damaged", expected, until)
            expected = until

    def _is_known(self, base: int) -> bool:
        return self._snapshot is not None and self._snapshot.segment_bases[-1] >= base

    def _is_torn(self, path: Path, file: ReadableFile, salt: int, position: int) -> bool:
        snapshot = self._snapshot
        is_covered = (
            snapshot is not None
            and segment_path(self._directory, snapshot.segment_bases[-1]) == path
            and position < snapshot.position
        )
        return not is_covered and not is_damage_proved(file, salt, position, file.size())

    def _end_of(self, expected: int, following: int | None) -> int:
        if following is not None:
            return following
        return expected if self._snapshot is None else max(expected, self._snapshot.next_sequence_number)

    def _add(self, path: Path, position: int, description: str, start: int, until: int) -> None:
        lost = (start, until) if until > start else None
        self._report.damages.append(Damage(path, position, description, lost))

    # -- repair

    def _mark_set_aside(self, since: int, path: Path) -> None:
        side = path.with_name(path.name + DAMAGED_SUFFIX)
        damages = self._report.damages
        damages[since:] = [
            Damage(damage.path, damage.position, damage.description, damage.lost, side)
            for damage in damages[since:]
        ]

    def _repair_segment(
        self, path: Path, base: int, file: ReadableFile, salt: int | None, pieces: list[_Piece]
    ) -> None:
        self._copy(file, path.with_name(path.name + DAMAGED_SUFFIX))
        for damage in self._report.damages:
            if damage.path == path and damage.lost is not None:
                self._declare_gap(*damage.lost)
        self._files.remove(index_path(path))
        first = next((piece for piece in pieces if piece.base_sequence_number == base), None)
        for piece in pieces:
            if piece is not first and salt is not None:
                self._write_segment(piece.base_sequence_number, _batches(file, salt, piece))
        # Replace the damaged file last: until then it still holds everything intact.
        if first is not None and salt is not None:
            self._write_segment(base, _batches(file, salt, first))
        else:
            self._files.remove(path)
        self._files.sync_directory(self._directory)

    def _write_segment(self, base: int, batches: Iterator[RecordBatch]) -> None:
        path = segment_path(self._directory, base)
        temporary = path.with_name(path.name + ".new")
        salt = int.from_bytes(os.urandom(4), "little")
        file = self._files.create(temporary)
        try:
            position = write_all(file, [encode_segment_header(SegmentHeader(salt, base))], 0)
            for batch in batches:
                position = write_all(file, _encode(batch, salt), position)
            file.sync()
        except OSError:
            with contextlib.suppress(OSError):
                self._files.remove(temporary)
            raise
        finally:
            file.close()
        self._files.rename(temporary, path)
        self._files.sync_directory(self._directory)

    def _copy(self, source: ReadableFile, target: Path) -> None:
        file = self._files.create(target)
        try:
            position = 0
            while chunk := source.read_at(_COPY_BYTES, position):
                position = write_all(file, [chunk], position)
            file.sync()
        finally:
            file.close()
        self._files.sync_directory(self._directory)

    def _declare_gap(self, start: int, until: int) -> None:
        merged: list[tuple[int, int]] = []
        for gap_start, gap_until in sorted({*self._gaps, (start, until)}):
            if merged and gap_start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], gap_until))
            else:
                merged.append((gap_start, gap_until))
        self._gaps = set(merged)
        data = json.dumps(merged).encode()
        replace_whole(self._files, self._directory / GAPS_NAME, data, is_durable=True)


def _extend(pieces: list[_Piece], position: int, length: int, batch: RecordBatch) -> None:
    last = pieces[-1] if pieces else None
    if (
        last is not None
        and last.end_position == position
        and last.until_sequence_number == batch.base_sequence_number
    ):
        last.end_position = position + length
        last.until_sequence_number = batch.until_sequence_number
    else:
        base, until = batch.base_sequence_number, batch.until_sequence_number
        pieces.append(_Piece(position, position + length, base, until))


def _batches(file: ReadableFile, salt: int, piece: _Piece) -> Iterator[RecordBatch]:
    for _, _, batch in iter_batches(file, salt, piece.start_position, piece.end_position):
        assert batch is not None
        yield batch


def _encode(batch: RecordBatch, salt: int) -> list[bytes]:
    is_produced = batch.producer_id >= 0
    producer = ProducerBatch(batch.producer_id, batch.producer_epoch, batch.producer_sequence)
    payload = bytes(batch.payload)
    header = encode_batch(
        payload,
        batch.lengths.tobytes(),
        len(batch.lengths),
        salt=salt,
        base_sequence_number=batch.base_sequence_number,
        enqueued_time_ms=batch.enqueued_time_ms,
        durable_position=0,
        producer=producer if is_produced else None,
    )
    return [header, payload]
