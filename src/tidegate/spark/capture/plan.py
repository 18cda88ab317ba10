"""Decides which task reads which capture files. Pure.

One task reads all files of a partition, so that it sees where two overlap. A partition is split only if cores
would otherwise be idle, and only where no files overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from tidegate.spark.capture.names import CaptureFile
from tidegate.spark.source.offsets import dealt

_UNEVENNESS_MAX: Final = 1.5
"""How many times its fair share the largest task may have before partitions are split (our choice: finding
where to split takes two small reads per file)."""
_FILE_COST_BYTES: Final = 100_000
"""The cost of opening a file, in bytes read (our choice)."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """A file and the sequence numbers that it covers; half-open."""

    file: CaptureFile
    start_sequence_number: int
    until_sequence_number: int
    first_event_ms: int
    """When its first event was enqueued: milliseconds since 1970-01-01 UTC."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Files of one partition, in the order of their names; no other file overlaps them."""

    partition_id: str
    files: tuple[CaptureFile, ...]

    @property
    def cost(self) -> int:
        """The approximate effort of reading it, in bytes."""
        return sum(file.size_bytes + _FILE_COST_BYTES for file in self.files)


Probe = Callable[[Sequence[CaptureFile]], Iterable[FileRange]]
"""Reads which events files cover; files without events are omitted."""


def plan_tasks(files: Sequence[CaptureFile], tasks_max: int, probe: Probe) -> list[tuple[Piece, ...]]:
    """Distribute files over at most ``tasks_max`` tasks of about equal cost, the costliest pieces first.

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
    # Pieces of half a share can be distributed evenly.
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
    """Join adjacent pieces up to a cost of ``cost_max``, to reduce a task's overhead per piece."""
    joined: list[Piece] = []
    for piece in pieces:
        if joined and joined[-1].cost + piece.cost <= cost_max:
            joined[-1] = Piece(piece.partition_id, joined[-1].files + piece.files)
        else:
            joined.append(piece)
    return joined
