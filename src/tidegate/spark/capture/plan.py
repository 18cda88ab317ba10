"""Which task reads which capture files, and the bounds that a query's filters put on them. Pure.

A partition's files are read by one task, which therefore notices where two of them overlap. Only where that
would leave cores idle are partitions split, and then at places where nothing overlaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from tidegate.spark.capture.names import CaptureFile, TimeBounds

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNEVENNESS_MAX: Final = 1.5
"""Our choice: the largest task may have so many times its fair share before partitions are split; finding out
where they can be takes two small reads per file."""
_FILE_COST_BYTES: Final = 100_000
"""Our choice: opening a file counts as much as reading so many bytes."""


@dataclass(frozen=True, slots=True)
class RowBounds:
    """What a query wants of a table; half open."""

    partition_ids: frozenset[str] | None = None
    times: TimeBounds = field(default_factory=TimeBounds)
    start_sequence_number: int | None = None
    until_sequence_number: int | None = None

    def with_filter(self, condition: Filter) -> RowBounds:
        """Narrowed by a filter; the same where the filter is none that bounds anything.

        Times are narrowed to the whole milliseconds around, so the filter has to be applied as well.
        """
        if not isinstance(condition, _BOUNDING) or len(condition.attribute) != 1:
            return self
        (column,), value = condition.attribute, condition.value
        if column == "partition":
            return self._with_partitions(condition)
        if column == "sequenceNumber" and isinstance(value, int):
            return self._with_numbers(*_bounds(condition, value))
        if column == "enqueuedTime" and isinstance(value, datetime):
            # Spark gives the session's time zone or none, which then is this process's.
            milliseconds = (value.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)
            start, until = _bounds(condition, milliseconds)
            if isinstance(condition, LessThan):
                until = milliseconds + 1
            if isinstance(condition, GreaterThan):
                start = milliseconds
            return replace(self, times=self.times.narrowed(TimeBounds(start, until)))
        return self

    def _with_partitions(self, condition: Filter) -> RowBounds:
        if isinstance(condition, In):
            ids = frozenset(str(value) for value in condition.value)
        elif isinstance(condition, EqualTo | EqualNullSafe):
            ids = frozenset({str(condition.value)})
        else:
            return self
        return replace(self, partition_ids=ids if self.partition_ids is None else ids & self.partition_ids)

    def _with_numbers(self, start: int | None, until: int | None) -> RowBounds:
        starts = [bound for bound in (start, self.start_sequence_number) if bound is not None]
        untils = [bound for bound in (until, self.until_sequence_number) if bound is not None]
        return replace(
            self,
            start_sequence_number=max(starts, default=None),
            until_sequence_number=min(untils, default=None),
        )


_BOUNDING = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, In)


def _bounds(condition: Filter, value: int) -> tuple[int | None, int | None]:
    """The half-open range of whole numbers that a comparison leaves."""
    match condition:
        case EqualTo() | EqualNullSafe():
            return value, value + 1
        case GreaterThan():
            return value + 1, None
        case GreaterThanOrEqual():
            return value, None
        case LessThan():
            return None, value
        case LessThanOrEqual():
            return None, value + 1
    return None, None


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
        """About how long it takes, in bytes."""
        return sum(file.size_bytes + _FILE_COST_BYTES for file in self.files)


Probe = Callable[[Sequence[CaptureFile]], Iterable[FileRange]]
"""Looks into files; those without events are not in the answer."""


def plan_tasks(files: Sequence[CaptureFile], tasks_max: int, probe: Probe) -> list[tuple[Piece, ...]]:
    """Deal files into at most ``tasks_max`` tasks of about equal cost, the costliest pieces first.

    files: by partition and time. probe: called for partitions that are worth splitting.
    """
    pieces = [
        Piece(partition_id, tuple(group))
        for partition_id, group in groupby(files, lambda file: file.partition_id)
    ]
    fair_share = sum(piece.cost for piece in pieces) / max(tasks_max, 1)
    tasks = _pack(pieces, tasks_max)
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
    return _pack(split, tasks_max)


def split_where_apart(ranges: Iterable[FileRange]) -> list[Piece]:
    """Pieces of one partition as small as they can be, by their first sequence numbers."""
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
    """Neighbours together until they cost about ``cost_max``: a task has little to do per piece then."""
    joined: list[Piece] = []
    for piece in pieces:
        if joined and joined[-1].cost + piece.cost <= cost_max:
            joined[-1] = Piece(piece.partition_id, joined[-1].files + piece.files)
        else:
            joined.append(piece)
    return joined


def _pack(pieces: Iterable[Piece], tasks_max: int) -> list[tuple[Piece, ...]]:
    tasks: list[list[Piece]] = [[] for _ in range(max(1, tasks_max))]
    loads = [0] * len(tasks)
    for piece in sorted(pieces, key=lambda piece: -piece.cost):
        lightest = loads.index(min(loads))
        tasks[lightest].append(piece)
        loads[lightest] += piece.cost
    return [tuple(task) for task in tasks if task]
