"""A batch of one partition before its transaction: its rows, its dead letters, and its place in the log."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlalchemy import Table

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import ReceivedEvent
from tidegate.sql.commit.engine import BatchScope
from tidegate.sql.core.values import EventPlace, NewDeadLetter, PlaceOf, place_of
from tidegate.sql.handlers.handling import Calls, handle_events
from tidegate.sql.handlers.pipeline import Pipeline

if TYPE_CHECKING:
    from tidegate.sql.core.row_groups import RowGroup


@dataclass(frozen=True, slots=True)
class PartitionBatch:
    """What one batch writes, for ``commit_batches``; made by ``handled_batch`` and ``computed_batch``."""

    scope: BatchScope
    table: Table
    groups: Sequence[RowGroup]
    dead_letters: Sequence[NewDeadLetter]
    """Ascending."""
    place_of: PlaceOf
    """Returns an event's place by its sequence number; called for events whose rows the database refuses."""
    last: EventPlace | None
    """The place of the last event, for the checkpoint."""
    dead_letters_max: int | None = None
    """If the database refuses rows: how many dead letters the batch may have with theirs. None: no limit."""

    @property
    def common(self) -> tuple[object, ...]:
        """What batches must have in common to share a transaction."""
        scope = replace(self.scope, partition_id="", start=0, until=0, is_gap_allowed=False, history_id=None)
        return self.table, scope


def handled_batch(
    pipeline: Pipeline,
    scope: BatchScope,
    events: Sequence[ReceivedEvent],
    *,
    on_failure: Callable[[BaseException, int], None] | None = None,
    calls: Calls | None = None,
) -> PartitionBatch:
    """Run the pipeline's handler over ``events``; those for which it fails become dead letters.

    events: ascending, within ``scope``, not necessarily all of it. on_failure: see ``handle_events``. calls:
    may end the batch earlier; None: a batch handler gets all events at once.
    Raises InvalidArgumentError (events out of order or range), BatchResultError (see ``ArrowHandler``).
    """
    scope.check_events(events)
    copied = pipeline.is_payload_copied
    letters: list[NewDeadLetter] = []

    def fail(event: ReceivedEvent, error: BaseException) -> None:
        letters.append(NewDeadLetter.from_exception(event, error, is_payload_copied=copied))

    groups: list[RowGroup] = []
    until = 0
    for low, until in [(0, len(events))] if calls is None else calls.ranges(len(events)):
        groups += handle_events(pipeline, events[low:until], fail, on_failure=on_failure)
    if until < len(events):
        number = events[until].sequence_number
        scope = replace(scope, until=number, history_id=scope.history_at(number))
        events = events[:until]

    def find_place(number: int) -> EventPlace:
        event = events[bisect_left(events, number, key=lambda each: each.sequence_number)]
        return place_of(event, is_payload_copied=copied)

    last = EventPlace(events[-1].offset, events[-1].enqueued_time_ms) if events else None
    return PartitionBatch(scope, pipeline.table, groups, letters, find_place, last)


def computed_batch(
    table: Table,
    scope: BatchScope,
    groups: Sequence[RowGroup],
    *,
    positions: PlaceOf,
    dead_letters: Sequence[NewDeadLetter] = (),
    last: EventPlace | None = None,
) -> PartitionBatch:
    """Rows that were computed elsewhere, such as by a DataFrame transformation.

    groups: each row with its event's sequence number, ascending. dead_letters: events that have already
    failed. positions: returns an event's place by its sequence number; called for events whose rows the
    database refuses, and for the last row if ``last`` is not given. An event with neither row nor dead letter
    was skipped on purpose.

    Raises InvalidArgumentError (a column that the table lacks, rows out of range).
    """
    for group in groups:
        unknown = [name for name in group.columns if name not in table.columns]
        if unknown:
            raise InvalidArgumentError(
                f"The table {table.name} has no column {', '.join(map(repr, unknown))}.",
                next_step=f"It has {', '.join(table.columns.keys())}.",
            )
        if len(group):
            scope.check_range(int(group.sequence_numbers[0]), int(group.sequence_numbers[-1]))
    groups = [group for group in groups if len(group)]
    letters = sorted(dead_letters, key=lambda letter: letter.sequence_number)
    last = last or _last_place(groups, letters, positions)
    return PartitionBatch(scope, table, groups, letters, positions, last)


def _last_place(
    groups: Sequence[RowGroup], letters: Sequence[NewDeadLetter], positions: PlaceOf
) -> EventPlace | None:
    """The place of the last event with a row or a dead letter; None: there is none."""
    last_row = max((int(group.sequence_numbers[-1]) for group in groups), default=-1)
    if letters and letters[-1].sequence_number > last_row:
        return EventPlace(letters[-1].offset, letters[-1].enqueued_time_ms)
    return positions(last_row) if last_row >= 0 else None
