"""Which task reads which capture files, and how a query's filters narrow that. Pure.

A partition's files are read by one task, so that it sees where two of them overlap. Partitions are split only
where cores would otherwise be idle, and only at places where nothing overlaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Final

from pyspark.sql.datasource import Filter

from tidegate.spark.capture.names import CaptureFile, TimeBounds
from tidegate.spark.source.offsets import dealt
from tidegate.spark.source.pushdown import narrow

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNEVENNESS_MAX: Final = 1.5
"""Our choice: how many times its fair share the largest task may have before partitions are split; to find
out where they can be split takes two small reads per file."""
_FILE_COST_BYTES: Final = 100_000
"""Our choice: opening a file costs as much as reading this many bytes."""


@dataclass(frozen=True, slots=True)
class RowBounds:
    """The part of a table that a query needs; half open."""

    partition_ids: frozenset[str] | None = None
    times: TimeBounds = field(default_factory=TimeBounds)
    start_sequence_number: int | None = None
    until_sequence_number: int | None = None

    def with_filters(self, filters: Iterable[Filter]) -> RowBounds:
        """Narrowed by filters, which Spark has to apply as well: times are rounded to milliseconds."""
        allowed, _ = narrow(filters)
        ids = allowed.partitions
        if ids is not None and self.partition_ids is not None:
            ids &= self.partition_ids
        start, until = allowed.time_from, allowed.time_until
        times = TimeBounds(
            None if start is None else (start - _EPOCH) // timedelta(milliseconds=1),
            None if until is None else (until - _EPOCH) // timedelta(milliseconds=1) + 1,
        )
        return RowBounds(
            self.partition_ids if ids is None else ids,
            self.times.narrowed(times),
            allowed.start_sequence_number,
            allowed.until_sequence_number,
        )


@dataclass(frozen=True, slots=True)
class FileRange:
    """A file and the sequence numbers that it covers; half open."""

    file: CaptureFile
    start_sequence_number: int
    until_sequence_number: int
    first_event_ms: int
    """When its first event was enqueued: milliseconds since 1970-01-01 UTC."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Files of one partition, in the order of their names; no file outside overlaps them."""

    partition_id: str
    files: tuple[CaptureFile, ...]

    @property
    def cost(self) -> int:
        """Approximate time to read it, in bytes."""
        return sum(file.size_bytes + _FILE_COST_BYTES for file in self.files)


Probe = Callable[[Sequence[CaptureFile]], Iterable[FileRange]]
"""Reads what files cover; those without events are omitted."""


def plan_tasks(files: Sequence[CaptureFile], tasks_max: int, probe: Probe) -> list[tuple[Piece, ...]]:
    """Deal files into at most ``tasks_max`` tasks of about equal cost, the costliest pieces first.

    files: by partition and time. probe: called for partitions that are worth splitting.
    """
    pieces = [
        Piece(partition_id, tuple(group))
        for partition_id, group in groupby(files, lambda file: file.partition_id)
    ]
    fair_share = sum(piece.cost for piece in pieces) / max(tasks_max, 1)
    tasks = dealt(pieces, tasks_max, lambda piece: piece.cost)
    largest = max((sum(piece.cost for piece in task) for task in tasks), default=0)
    if largest <= fair_share * _UNEVENNESS_MAX:
        return tasks
    # Half a share each: pieces that small can be dealt evenly.
    split = [
        part
        for piece in pieces
        for part in (
            _joined(split_where_apart(probe(piece.files)), fair_share / 2)
            if piece.cost > fair_share / 2 and len(piece.files) > 1
            else [piece]
        )
    ]
    return dealt(split, tasks_max, lambda piece: piece.cost)


def split_where_apart(ranges: Iterable[FileRange]) -> list[Piece]:
    """The smallest possible pieces of one partition, by their first sequence numbers."""
    pieces: list[Piece] = []
    until = -1
    for item in sorted(ranges, key=lambda item: item.start_sequence_number):
        if item.start_sequence_number < until:
            last = pieces.pop()
            in_order = sorted((*last.files, item.file), key=lambda file: (file.time_s, file.name))
            pieces.append(Piece(last.partition_id, tuple(in_order)))
        else:
            pieces.append(Piece(item.file.partition_id, (item.file,)))
        until = max(until, item.until_sequence_number)
    return pieces


def _joined(pieces: Iterable[Piece], cost_max: float) -> list[Piece]:
    """Adjacent pieces joined up to a cost of ``cost_max``, so that a task has little to do per piece."""
    joined: list[Piece] = []
    for piece in pieces:
        if joined and joined[-1].cost + piece.cost <= cost_max:
            joined[-1] = Piece(piece.partition_id, joined[-1].files + piece.files)
        else:
            joined.append(piece)
    return joined
