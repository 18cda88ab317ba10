"""Reads the batches of one segment file, and finds the intact ones behind a damaged place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidegate.storage.files import ReadableFile
from tidegate.storage.record import HEADER_BYTES, MAGIC, BatchHeader, decode_header
from tidegate.storage.segments.segment import Segment, iter_headers
from tidegate.storage.segments.segment_reader import iter_batches
from tidegate.storage.segments.sparse_index import SparseIndex

_CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class End:
    """What is known about the end of a segment."""

    pin: tuple[int, int]
    """A number, and the checksum of the batch that ends before it."""
    until: int | None = None
    """One past its last number; None: it may have more batches than is known."""
    is_followed: bool = True
    """Whether all of it was durable, because another segment follows."""


@dataclass(frozen=True, slots=True)
class Hole:
    """Bytes that are not intact."""

    position: int
    end_position: int
    number: int
    """The first number that is not intact."""
    until: int | None
    """The number of the first batch behind it; None: there is none, and the hole reaches to the end."""
    is_torn: bool = False
    """Whether nothing shows that the bytes were ever durable."""


class Walk:
    """The intact parts of a segment file, from ``begin`` on: an empty segment, or what is known of it."""

    def __init__(
        self,
        file: ReadableFile,
        begin: Segment,
        limit: int,
        end: End,
        *,
        known_until: int,
        interval_bytes: int,
        cuts: tuple[int, ...],
    ) -> None:
        """limit: bytes of the file to look at. known_until: the number before which everything is known to
        have existed. cuts: see ``Manifest``."""
        self.parts = [begin]
        self._file = file
        self._limit = limit
        self._end = end
        self._known_until = known_until
        self._interval_bytes = interval_bytes
        self._cuts = cuts
        self._begin_until = begin.until_sequence_number
        self._batches: list[tuple[int, BatchHeader]] | None = None

    def run(self) -> Iterator[tuple[int, BatchHeader] | Hole]:
        """Each intact batch with its position, and each hole, in order."""
        header: BatchHeader | None = None
        position, is_known = self.parts[0].end_position, True
        while True:
            broken_at: int | None = None
            is_out_of_order = False
            for at, header, batch in iter_batches(self._file, self.parts[-1].seed, position, self._limit):
                if header is None or batch is None or not self._is_next(header, is_known=is_known):
                    is_out_of_order = header is not None and batch is not None
                    broken_at = at
                    break
                _extend(self.parts[-1], at, header)
                is_known = True
                yield at, header
            if broken_at is None:
                return
            if is_known and is_out_of_order and header is not None and self._is_fork(header):
                yield self._give_up_fork(broken_at, header)
                self.parts.append(self._part_at(broken_at, header))
                position, is_known = broken_at, False
                continue
            until = self.parts[-1].until_sequence_number
            if self._end.until is None and not self._end.is_followed and not self._was_durable(broken_at):
                yield Hole(broken_at, self._limit, until, None, is_torn=True)
                return
            # A batch that is intact and comes too early is the next one that there is.
            found = self._find(broken_at, until, is_here=is_out_of_order)
            if found is None:
                if until != self._end.until:
                    yield Hole(broken_at, self._limit, until, None)
                return
            position, header = found
            yield Hole(broken_at, position, until, header.base_sequence_number)
            self.parts.append(self._part_at(position, header))
            is_known = False

    def _is_next(self, header: BatchHeader, *, is_known: bool) -> bool:
        """Whether an intact batch is the next one of the last part."""
        part, end = self.parts[-1], header.until_sequence_number
        return (
            header.base_sequence_number == part.until_sequence_number
            and (not is_known or header.chain == part.last_chain)
            and (self._end.until is None or end <= self._end.until)
            and (end != self._end.pin[0] or header.checksum == self._end.pin[1])
        )

    def _is_fork(self, header: BatchHeader) -> bool:
        """Whether a batch has the next number and names another batch before it than there is.

        Nothing is missing between the two, so the earlier one is of a write that was taken back and replaced,
        and whose bytes came back later: what follows it was written after the other one.
        """
        part = self.parts[-1]
        is_read = part.until_sequence_number > max(part.base_sequence_number, self._begin_until)
        is_pinned = part.until_sequence_number == self._end.pin[0]
        return is_read and not is_pinned and header.base_sequence_number == part.until_sequence_number

    def _give_up_fork(self, position: int, following: BatchHeader) -> Hole:
        """Shorten the last part to what cannot be such a write: each began at a number that is known."""
        part = self.parts[-1]
        until = part.until_sequence_number
        begins = [first for first in self._cuts if part.base_sequence_number < first < until]
        first = min(begins, default=part.base_sequence_number)
        kept = beginning_of(part, part.path, interval_bytes=self._interval_bytes)
        for at, header in iter_headers(self._file, part, part.start_position, position):
            if header is None or header.until_sequence_number > first:
                break
            _extend(kept, at, header)
        self.parts[-1] = kept
        return Hole(kept.end_position, position, kept.until_sequence_number, following.base_sequence_number)

    def _was_durable(self, position: int) -> bool:
        if self.parts[-1].until_sequence_number < self._known_until:
            return True
        return any(header.durable_position > position for _, header in self._batches_from(position))

    def _find(self, position: int, expected: int, *, is_here: bool) -> tuple[int, BatchHeader] | None:
        """The next batch behind a damaged place: the one with the lowest number, as a copy of a later one may
        be before it. is_here: the batch there is intact, and comes too early."""
        candidates = [
            (found, header)
            for found, header in self._batches_from(position)
            if (found > position or is_here)
            and header.base_sequence_number >= (expected if found > position else expected + 1)
            and (self._end.until is None or header.until_sequence_number <= self._end.until)
        ]
        return min(candidates, key=lambda each: (each[1].base_sequence_number, each[0]), default=None)

    def _batches_from(self, position: int) -> list[tuple[int, BatchHeader]]:
        """All intact headers from there on; damaged places come in ascending order."""
        if self._batches is None:
            self._batches = list(find_batches(self._file, self.parts[-1].seed, position, self._limit))
        return [each for each in self._batches if each[0] >= position]

    def _part_at(self, position: int, header: BatchHeader) -> Segment:
        begin = self.parts[0]
        part = Segment(
            begin.path,
            begin.header,
            base_sequence_number=header.base_sequence_number,
            start_position=position,
            chain=header.chain,
        )
        part.index = _empty_index(part, self._interval_bytes)
        return part


def find_batches(file: ReadableFile, seed: int, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Intact batch headers at byte ``start`` or later, at any position."""
    position = start
    while position + HEADER_BYTES <= end:
        chunk = file.read_at(min(_CHUNK_BYTES, end - position), position)
        offset = chunk.find(MAGIC)
        while 0 <= offset <= len(chunk) - HEADER_BYTES:
            header = decode_header(chunk, offset, seed=seed)
            if header is not None:
                yield position + offset, header
            offset = chunk.find(MAGIC, offset + 1)
        if len(chunk) < HEADER_BYTES:
            return
        position += len(chunk) - HEADER_BYTES + 1


def beginning_of(segment: Segment, path: Path, *, interval_bytes: int) -> Segment:
    """The segment without its batches, to be read again."""
    begin = Segment(
        path,
        segment.header,
        base_sequence_number=segment.base_sequence_number,
        start_position=segment.start_position,
        chain=segment.chain,
    )
    begin.index = _empty_index(begin, interval_bytes)
    return begin


def _extend(part: Segment, position: int, header: BatchHeader) -> None:
    assert part.index is not None
    part.index.add_batch(
        header.base_sequence_number,
        header.until_sequence_number,
        header.enqueued_time_ms,
        position,
        header.total_length,
    )
    part.end_position = position + header.total_length
    part.until_sequence_number = header.until_sequence_number
    part.last_chain = header.checksum
    part.last_time_ms = header.enqueued_time_ms


def _empty_index(segment: Segment, interval_bytes: int) -> SparseIndex:
    return SparseIndex(
        interval_bytes,
        start_position=segment.start_position,
        base_sequence_number=segment.base_sequence_number,
    )
