"""The audit's arithmetic: one partition's rows and dead letters against its checkpoint. Pure.

``table`` feeds it from a database. Every event in ``[start, checkpoint)`` must have left a row, or an open or
discarded dead letter. No event may have two rows, or both a row and an open dead letter. Nothing may be
beyond the checkpoint, because it would be processed again.

    row   dead letter       verdict
    -     -                 gap
    -     redriven          gap: redriving it should have written its row
    -     open, discarded   accounted for
    1     open              row and dead letter: redriving it would write a second row
    1     none or closed    accounted for
    2..   any               duplicate, in addition to the verdict for one row
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Final, NamedTuple

from tidegate.model.errors import InvalidArgumentError
from tidegate.sql.core.values import DeadLetterStatus

FINDINGS_MAX: Final = 100
"""Ranges listed per kind and partition by default (our choice: a page that people can read)."""


class FindingKind(StrEnum):
    """What can be wrong with a partition's events."""

    GAP = "gap"
    """Before the checkpoint, with neither row nor dead letter: lost, or skipped by the handler."""
    DUPLICATE = "duplicate"
    """More than one row: processed twice, or the handler returns several rows for an event."""
    ROW_AND_DEAD_LETTER = "row_and_dead_letter"
    """A row, although its dead letter is open."""
    BEYOND_CHECKPOINT = "beyond_checkpoint"
    """A row or a dead letter at or after the checkpoint: not committed together with it, or the checkpoint
    was moved back."""
    BEYOND_LOG = "beyond_log"
    """Before the checkpoint, but not in the log yet: the log is older than the checkpoint, and will assign
    these numbers to other events."""


ALL_KINDS: Final = frozenset(FindingKind)


@dataclass(frozen=True, slots=True)
class Finding:
    """Neighbouring events with the same finding: ``start <= sequence number < until``."""

    kind: FindingKind
    start_sequence_number: int
    until_sequence_number: int

    @property
    def events(self) -> int:
        return self.until_sequence_number - self.start_sequence_number


@dataclass(frozen=True, slots=True)
class PartitionAudit:
    """One partition's table and dead letters, compared with its checkpoint.

    The counts are complete; only ``findings`` is cut.
    """

    partition_id: str
    start_sequence_number: int
    """The first event that is expected to be accounted for."""
    checkpoint_sequence_number: int | None
    """The resume point: the first event not yet processed; None if nothing was ever committed."""
    log_until_sequence_number: int | None
    """One past the log's last event; None: not known."""
    rows: int
    """Rows from ``start`` on."""
    dead_letters_open: int
    """From ``start`` on, like the next two counts."""
    dead_letters_redriven: int
    dead_letters_discarded: int
    gaps: int
    """Events with this kind of finding, as are the next four."""
    duplicates: int
    rows_and_dead_letters: int
    beyond_checkpoint: int
    beyond_log: int
    finding_count: int
    """Ranges of all kinds, including those not listed."""
    findings: tuple[Finding, ...]
    """By kind, ascending; at most ``findings_max`` of each kind."""

    @property
    def events(self) -> int:
        """The number of events that must be accounted for."""
        if self.checkpoint_sequence_number is None:
            return 0
        return max(0, self.checkpoint_sequence_number - self.start_sequence_number)

    def count(self, kind: FindingKind) -> int:
        """The number of events with this finding."""
        return {
            FindingKind.GAP: self.gaps,
            FindingKind.DUPLICATE: self.duplicates,
            FindingKind.ROW_AND_DEAD_LETTER: self.rows_and_dead_letters,
            FindingKind.BEYOND_CHECKPOINT: self.beyond_checkpoint,
            FindingKind.BEYOND_LOG: self.beyond_log,
        }[kind]


@dataclass(frozen=True, slots=True)
class StrayRows:
    """Rows that cannot be assigned to any event of the hub."""

    partition: str | None
    """What the partition column holds."""
    rows: int
    """All rows if the hub has no such partition, otherwise those without a sequence number."""


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of auditing a whole hub."""

    partitions: tuple[PartitionAudit, ...]
    strays: tuple[StrayRows, ...] = ()

    def is_sound(self, *, allowed: frozenset[FindingKind] = frozenset()) -> bool:
        """Whether nothing is wrong, except what is ``allowed``."""
        return not self.strays and not any(
            partition.count(kind) for partition in self.partitions for kind in ALL_KINDS - allowed
        )

    def count(self, kind: FindingKind) -> int:
        """The number of events with this finding, in all partitions."""
        return sum(partition.count(kind) for partition in self.partitions)


def audit_partition(
    rows: Iterable[int],
    dead_letters: Iterable[tuple[int, DeadLetterStatus]],
    *,
    partition_id: str,
    start_sequence_number: int,
    checkpoint_sequence_number: int | None,
    log_until_sequence_number: int | None = None,
    findings_max: int = FINDINGS_MAX,
) -> PartitionAudit:
    """Compare the sequence numbers of a partition's rows and dead letters with its checkpoint.

    rows: ascending, one number per row. dead_letters: ascending, each number once. Both are streamed, so they
    may exceed memory. Events before ``start_sequence_number`` are ignored. checkpoint_sequence_number: the
    resume point, up to which events are expected; None expects none. log_until_sequence_number: None skips
    the check against the log's end. findings_max: ranges to list per kind; all are counted. Raises
    InvalidArgumentError if the numbers descend.
    """
    start = start_sequence_number
    until = start if checkpoint_sequence_number is None else max(start, checkpoint_sequence_number)
    found = {kind: _Ranges(kind, findings_max) for kind in FindingKind}
    counts = dict.fromkeys(DeadLetterStatus, 0)
    row_count = 0
    accounted_until = start
    row_until = start
    # At the same number rows come first, so that a dead letter finds them in row_until.
    for piece in heapq.merge(_row_pieces(rows), _letter_pieces(dead_letters), key=_order):
        if piece.until <= start:
            continue
        first = max(piece.start, start)
        if piece.until > until:
            found[FindingKind.BEYOND_CHECKPOINT].add(max(first, until), piece.until)
        if piece.status is None:
            row_count += piece.rows - (first - piece.start)
            row_until = piece.until
            if piece.rows > piece.until - piece.start:
                found[FindingKind.DUPLICATE].add(first, piece.until)
        else:
            counts[piece.status] += 1
            if piece.status is DeadLetterStatus.OPEN and first < row_until:
                found[FindingKind.ROW_AND_DEAD_LETTER].add(first, piece.until)
            if piece.status is DeadLetterStatus.REDRIVEN:
                continue
        if accounted_until < min(first, until):
            found[FindingKind.GAP].add(accounted_until, min(first, until))
        accounted_until = max(accounted_until, piece.until)
    if accounted_until < until:
        found[FindingKind.GAP].add(accounted_until, until)
    if log_until_sequence_number is not None and log_until_sequence_number < until:
        found[FindingKind.BEYOND_LOG].add(max(start, log_until_sequence_number), until)
    return PartitionAudit(
        partition_id=partition_id,
        start_sequence_number=start,
        checkpoint_sequence_number=checkpoint_sequence_number,
        log_until_sequence_number=log_until_sequence_number,
        rows=row_count,
        dead_letters_open=counts[DeadLetterStatus.OPEN],
        dead_letters_redriven=counts[DeadLetterStatus.REDRIVEN],
        dead_letters_discarded=counts[DeadLetterStatus.DISCARDED],
        gaps=found[FindingKind.GAP].events,
        duplicates=found[FindingKind.DUPLICATE].events,
        rows_and_dead_letters=found[FindingKind.ROW_AND_DEAD_LETTER].events,
        beyond_checkpoint=found[FindingKind.BEYOND_CHECKPOINT].events,
        beyond_log=found[FindingKind.BEYOND_LOG].events,
        finding_count=sum(ranges.count for ranges in found.values()),
        findings=tuple(finding for ranges in found.values() for finding in ranges.listed()),
    )


class _Piece(NamedTuple):
    """Neighbouring numbers of one kind: single-row events, one event's several rows, or one dead letter."""

    start: int
    until: int
    rows: int
    status: DeadLetterStatus | None
    """None: these are rows."""


def _order(piece: _Piece) -> tuple[int, bool]:
    return piece.start, piece.status is not None


def _row_pieces(numbers: Iterable[int]) -> Iterator[_Piece]:
    """Runs of neighbouring numbers; a repeated number is a piece of its own. A million rows without a gap are
    one piece."""
    start = until = -(2**63)  # [start, until): the current run
    for number, same in groupby(numbers):
        rows = sum(1 for _ in same)
        if number < until:
            raise _descending(number, until - 1)
        if number > until or rows > 1:
            if start < until:
                yield _Piece(start, until, until - start, None)
            start = number
        until = number + 1
        if rows > 1:
            yield _Piece(number, until, rows, None)
            start = until
    if start < until:
        yield _Piece(start, until, until - start, None)


def _letter_pieces(letters: Iterable[tuple[int, DeadLetterStatus]]) -> Iterator[_Piece]:
    previous: int | None = None
    for number, status in letters:
        if previous is not None and number <= previous:
            raise _descending(number, previous)
        previous = number
        yield _Piece(number, number + 1, 0, status)


def _descending(number: int, previous: int) -> InvalidArgumentError:
    return InvalidArgumentError(f"The sequence number {number} comes after {previous}: they must ascend.")


class _Ranges:
    """Collects the ranges of one kind in ascending order, joins neighbours, and counts beyond its limit."""

    def __init__(self, kind: FindingKind, listed_max: int) -> None:
        self.events = 0
        self.count = 0
        self._kind = kind
        self._listed_max = listed_max
        self._ranges: list[tuple[int, int]] = []
        self._until: int | None = None

    def add(self, start: int, until: int) -> None:
        # A row and a dead letter of the same event, both beyond the checkpoint, are one event.
        if self._until is not None:
            start = max(start, self._until)
        if start >= until:
            return
        self.events += until - start
        if start != self._until:
            self.count += 1
            if self.count <= self._listed_max:
                self._ranges.append((start, until))
        elif self.count <= self._listed_max:
            self._ranges[-1] = (self._ranges[-1][0], until)
        self._until = until

    def listed(self) -> Iterator[Finding]:
        return (Finding(self._kind, start, until) for start, until in self._ranges)
