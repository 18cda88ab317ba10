"""A batch of one partition before its transaction: its rows, its dead letters, and where it lies."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import Table

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import ReceivedEvent
from tidegate.sql.core.values import ConsumerKey, EventPlace, NewDeadLetter, PlaceOf, place_of
from tidegate.sql.handlers.handling import handle_events
from tidegate.sql.handlers.pipeline import Pipeline

if TYPE_CHECKING:
    from tidegate.sql.core.row_groups import RowGroup


@dataclass(frozen=True, slots=True)
class PartitionBatch:
    """What one batch does, for ``commit_batches``; ``handled_batch`` and ``computed_batch`` make it."""

    table: Table
    consumer: ConsumerKey
    pipeline_name: str
    partition_id: str
    owner: str | None
    lease_epoch: int | None
    start: int
    """The first sequence number that it covers."""
    until: int
    """The one behind the last that it covers: where the checkpoint goes."""
    event_hub_created_at_ms: int | None
    is_gap_allowed: bool
    groups: Sequence[RowGroup]
    dead_letters: Sequence[NewDeadLetter]
    """Ascending."""
    place_of: PlaceOf
    """Finds an event's place by its sequence number; asked for events whose rows the database refuses."""
    last: EventPlace | None
    """The place of the last event, for the checkpoint."""

    @property
    def common(self) -> tuple[object, ...]:
        """What batches that share a transaction have in common."""
        return (
            self.table,
            self.consumer,
            self.pipeline_name,
            self.owner,
            self.lease_epoch,
            self.event_hub_created_at_ms,
        )

    def __post_init__(self) -> None:
        if self.until < self.start:
            raise InvalidArgumentError(f"The batch [{self.start}, {self.until}) ends before it starts.")


def handled_batch(
    pipeline: Pipeline,
    partition_id: str,
    events: Sequence[ReceivedEvent],
    *,
    start_sequence_number: int,
    until_sequence_number: int,
    event_hub_created_at_ms: int | None = None,
    is_gap_allowed: bool = False,
    owner: str | None = None,
    lease_epoch: int | None = None,
) -> PartitionBatch:
    """Run the pipeline's handler over ``events``; what it raised is a dead letter.

    events: ascending, within ``[start_sequence_number, until_sequence_number)``, not necessarily all of it.
    The checkpoint moves to ``until_sequence_number``. Events below the checkpoint have no effect a second
    time.
    event_hub_created_at_ms: which hub of this name; None: not checked. is_gap_allowed: accept a batch that
    starts beyond the checkpoint, when the events between are known to be lost. lease_epoch: the lease that
    this owner holds; None: none. A checkpoint under a higher epoch refuses the batch, done or not.

    Raises InvalidArgumentError (events out of order or range), BatchResultError (see ``ArrowHandler``).
    """
    check_events(events, start_sequence_number, until_sequence_number)
    handled = handle_events(pipeline, events)

    def find_place(number: int) -> EventPlace:
        event = events[bisect_left(events, number, key=lambda each: each.sequence_number)]
        return place_of(event, is_payload_copied=pipeline.is_payload_copied)

    return PartitionBatch(
        table=pipeline.table,
        consumer=pipeline.consumer,
        pipeline_name=pipeline.name,
        partition_id=partition_id,
        owner=owner,
        lease_epoch=lease_epoch,
        start=start_sequence_number,
        until=until_sequence_number,
        event_hub_created_at_ms=event_hub_created_at_ms,
        is_gap_allowed=is_gap_allowed,
        groups=handled.groups,
        dead_letters=handled.dead_letters,
        place_of=find_place,
        last=EventPlace(events[-1].offset, events[-1].enqueued_time_ms) if events else None,
    )


def computed_batch(
    table: Table,
    consumer: ConsumerKey,
    partition_id: str,
    rows: RowGroup | Sequence[RowGroup],
    *,
    positions: PlaceOf,
    start_sequence_number: int,
    until_sequence_number: int,
    dead_letters: Sequence[NewDeadLetter] = (),
    event_hub_created_at_ms: int | None = None,
    is_gap_allowed: bool = False,
    owner: str | None = None,
    lease_epoch: int | None = None,
    pipeline_name: str = "",
    last: EventPlace | None = None,
) -> PartitionBatch:
    """Rows that were computed elsewhere, such as by a DataFrame transformation.

    rows: each with the sequence number of its event, ascending. dead_letters: events that were put aside
    already, ascending. positions: finds an event's place by its sequence number; asked for events whose rows
    the database refuses, and for the batch's last row where its place is not given as ``last``. An event
    without row and dead letter was skipped on purpose. The rest as in ``handled_batch``.

    Raises InvalidArgumentError (a column that the table lacks, rows out of range).
    """
    groups = list(rows) if isinstance(rows, Sequence) else [rows]
    for group in groups:
        unknown = [name for name in group.columns if name not in table.columns]
        if unknown:
            raise InvalidArgumentError(
                f"The table {table.name} has no column {', '.join(map(repr, unknown))}.",
                next_step=f"It has {', '.join(table.columns.keys())}.",
            )
        if len(group):
            _check_range(
                int(group.sequence_numbers[0]),
                int(group.sequence_numbers[-1]),
                start_sequence_number,
                until_sequence_number,
            )
    return PartitionBatch(
        table=table,
        consumer=consumer,
        pipeline_name=pipeline_name,
        partition_id=partition_id,
        owner=owner,
        lease_epoch=lease_epoch,
        start=start_sequence_number,
        until=until_sequence_number,
        event_hub_created_at_ms=event_hub_created_at_ms,
        is_gap_allowed=is_gap_allowed,
        groups=[group for group in groups if len(group)],
        dead_letters=sorted(dead_letters, key=lambda letter: letter.sequence_number),
        place_of=positions,
        last=last or _last_place(groups, dead_letters, positions),
    )


def check_events(events: Sequence[ReceivedEvent], start: int, until: int) -> None:
    """Raises InvalidArgumentError unless ``events`` ascend and lie in ``[start, until)``."""
    if not events:
        return
    _check_range(events[0].sequence_number, events[-1].sequence_number, start, until)
    previous = start - 1
    for event in events:
        number = event.sequence_number
        if number <= previous:
            raise InvalidArgumentError(f"The batch holds event {number} after event {previous}.")
        previous = number


def _check_range(first: int, last: int, start: int, until: int) -> None:
    if first < start or last >= until:
        raise InvalidArgumentError(
            f"The batch [{start}, {until}) holds events from {first} to {last}.",
            next_step="Give the range that the events were read for.",
        )


def _last_place(
    groups: Sequence[RowGroup], dead_letters: Sequence[NewDeadLetter], positions: PlaceOf
) -> EventPlace | None:
    """The place of the last event that is known to this batch; None: it had neither rows nor dead letters."""
    last_row = max((int(group.sequence_numbers[-1]) for group in groups if len(group)), default=-1)
    last_letter = max(dead_letters, key=lambda letter: letter.sequence_number, default=None)
    if last_letter is not None and last_letter.sequence_number > last_row:
        return EventPlace(last_letter.offset, last_letter.enqueued_time_ms)
    return positions(last_row) if last_row >= 0 else None
