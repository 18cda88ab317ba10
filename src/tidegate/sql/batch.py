"""One batch of one partition, committed exactly once: rows, dead letters and checkpoint in one transaction.

Theory of operation. Handlers run before anything is locked. Then one transaction locks the checkpoint, leaves
out what is below it (a retried task, a zombie's second attempt), inserts the rows in bulk, writes the dead
letters and moves the checkpoint. When the database refuses rows, that transaction is rolled back and a
second, careful one halves the batch behind savepoints until each offending event stands alone; those become
dead letters with the database's own reason. The careful pass costs a savepoint per halving and runs only when
something failed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import Table

from tidegate.model.errors import CheckpointGapError, EventHubReplacedError, InvalidArgumentError
from tidegate.model.events import ReceivedEvent
from tidegate.sql.database import Database
from tidegate.sql.handling import handle_events
from tidegate.sql.pipeline import Pipeline
from tidegate.sql.unit_of_work import LockedCheckpoint, RowsRefusedError, UnitOfWork
from tidegate.sql.values import (
    BatchResult,
    ConsumerKey,
    EventPlace,
    NewDeadLetter,
    PlaceOf,
    place_of,
)

if TYPE_CHECKING:
    from tidegate.sql.row_groups import RowGroup


def process_partition_batch(
    database: Database,
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
) -> BatchResult:
    """Run the pipeline's handler over ``events`` and commit its rows, its dead letters and the checkpoint.

    events: ascending, within ``[start_sequence_number, until_sequence_number)``, not necessarily all of it.
    The checkpoint moves to ``until_sequence_number``. Events below the checkpoint have no effect a second
    time.
    event_hub_created_at_ms: which hub of this name; None: not checked. is_gap_allowed: accept a batch that
    starts beyond the checkpoint, when the events between are known to be lost. lease_epoch: the lease that
    this owner holds; None: none. A checkpoint under a higher epoch refuses the batch, done or not.

    Raises CheckpointGapError, EventHubReplacedError, FencedError, InvalidArgumentError (events out of order
    or range), DatabaseError and DatabaseUnavailableError; whatever it raises, nothing of the batch was
    committed, unless the error's text says that this could not be found out.
    """
    check_events(events, start_sequence_number, until_sequence_number)
    handled = handle_events(
        pipeline.handler, pipeline.table, events, is_payload_copied=pipeline.is_payload_copied
    )

    def find_place(number: int) -> EventPlace:
        event = events[bisect_left(events, number, key=lambda each: each.sequence_number)]
        return place_of(event, is_payload_copied=pipeline.is_payload_copied)

    return _commit(
        _Work(
            database=database,
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
    )


def commit_partition_batch(
    database: Database,
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
) -> BatchResult:
    """Commit rows that were computed elsewhere, such as by a DataFrame transformation.

    rows: each with the sequence number of its event, ascending. dead_letters: events that were put aside
    already, ascending. positions: finds an event's place by its sequence number; asked for events whose rows
    the database refuses, and for the batch's last row where its place is not given as ``last``. An event
    without row and dead letter was skipped on purpose. The rest, and what is raised, as in
    ``process_partition_batch``.
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
    return _commit(
        _Work(
            database=database,
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
    )


@dataclass(slots=True)
class _Work:
    """Everything that one transaction is to do."""

    database: Database
    table: Table
    consumer: ConsumerKey
    pipeline_name: str
    partition_id: str
    owner: str | None
    lease_epoch: int | None
    start: int
    until: int
    event_hub_created_at_ms: int | None
    is_gap_allowed: bool
    groups: list[RowGroup]
    dead_letters: list[NewDeadLetter]
    place_of: PlaceOf
    last: EventPlace | None


def _commit(work: _Work) -> BatchResult:
    if work.until < work.start:
        raise InvalidArgumentError(f"The batch [{work.start}, {work.until}) ends before it starts.")
    try:
        return _attempt(work)
    except RowsRefusedError as refused:
        return _attempt(work, refused=refused)


def _attempt(work: _Work, *, refused: RowsRefusedError | None = None) -> BatchResult:
    """refused: why the attempt before failed, so this one is careful; None: this is the first."""
    unit = UnitOfWork(
        work.database,
        work.consumer,
        pipeline_name=work.pipeline_name,
        owner=work.owner,
        lease_epoch=work.lease_epoch,
    )
    with unit:
        locked = unit.lock_checkpoint(work.partition_id)
        check_checkpoint(
            locked,
            work.consumer,
            work.partition_id,
            start=work.start,
            until=work.until,
            event_hub_created_at_ms=work.event_hub_created_at_ms,
            is_gap_allowed=work.is_gap_allowed,
        )
        next_number = locked.next_sequence_number
        first = work.start if next_number is None else max(work.start, next_number)
        if next_number is not None and next_number >= work.until:
            unit.rollback()
            return BatchResult(0, 0, work.until - work.start, work.until, next_number)
        groups = [group.between(first, work.until) for group in work.groups]
        dead_letters = [letter for letter in work.dead_letters if letter.sequence_number >= first]
        if refused is not None:
            row_count, offenders = insert_carefully(
                unit, work.table, groups, work.place_of, is_commit_refused=refused.is_at_commit
            )
            dead_letters = sorted([*dead_letters, *offenders], key=lambda letter: letter.sequence_number)
        else:
            row_count = sum(unit.insert_values(work.table, group) for group in groups)
        unit.add_dead_letters(work.partition_id, dead_letters)
        unit.advance(
            work.partition_id,
            next_number,
            work.until,
            offset=None if work.last is None else work.last.offset,
            enqueued_time_ms=None if work.last is None else work.last.enqueued_time_ms,
            event_hub_created_at_ms=work.event_hub_created_at_ms,
        )
        unit.commit()
        return BatchResult(row_count, len(dead_letters), first - work.start, first, work.until)


def insert_carefully(
    unit: UnitOfWork,
    table: Table,
    groups: Sequence[RowGroup],
    positions: PlaceOf,
    *,
    is_commit_refused: bool = False,
) -> tuple[int, list[NewDeadLetter]]:
    """Insert what the database takes, event by event where it must be; the rest comes back as dead letters.

    Returns how many rows went in, and the dead letters. Of two events that exclude each other (a unique key),
    the earlier one stays.
    """
    # A constraint that waits for the commit could not be put down to an event.
    unit.make_constraints_immediate(is_commit_refused=is_commit_refused)
    numbers = sorted({number for group in groups for number in group.numbers()})
    refused: list[NewDeadLetter] = []
    row_count = 0
    pending = [(0, len(numbers))]
    while pending:
        low, high = pending.pop()
        if low == high:
            continue
        parts = [group.between(numbers[low], numbers[high - 1] + 1) for group in groups]
        try:
            with unit.savepoint():
                inserted = sum(unit.insert_values(table, part) for part in parts)
                unit.check_deferred_constraints()
            row_count += inserted
        except RowsRefusedError as error:
            if high - low == 1:
                number = numbers[low]
                refused.append(NewDeadLetter.at_place(number, positions(number), error.reason))
            else:
                middle = (low + high) // 2
                pending += [(middle, high), (low, middle)]
    return row_count, refused


def check_checkpoint(
    locked: LockedCheckpoint,
    consumer: ConsumerKey,
    partition_id: str,
    *,
    start: int,
    until: int,
    event_hub_created_at_ms: int | None,
    is_gap_allowed: bool,
) -> None:
    """Whether the batch ``[start, until)`` may follow a locked checkpoint.

    Raises EventHubReplacedError and CheckpointGapError.
    """
    check_event_hub(locked, consumer, partition_id, event_hub_created_at_ms)
    number = locked.next_sequence_number
    if number is not None and number < start and not is_gap_allowed:
        raise CheckpointGapError(
            f"The batch [{start}, {until}) of partition {partition_id} of {consumer} starts beyond the "
            f"checkpoint: events {number} to {start - 1} were never processed.",
            next_step="Start from the checkpoint; if retention has taken those events, accept the gap on "
            "purpose.",
        )


def check_event_hub(
    locked: LockedCheckpoint, consumer: ConsumerKey, partition_id: str, event_hub_created_at_ms: int | None
) -> None:
    """Raises EventHubReplacedError where the checkpoint belongs to another hub of this name."""
    stored, given = locked.event_hub_created_at_ms, event_hub_created_at_ms
    if stored is not None and given is not None and stored != given:
        raise EventHubReplacedError(
            f"The checkpoint of partition {partition_id} of {consumer} belongs to the event hub created at "
            f"{stored} ms, and this batch comes from one created at {given} ms.",
            next_step="The hub was deleted and made anew, so its sequence numbers start again: use another "
            "consumer group, or delete the rows of this one from tidegate_checkpoint to start over.",
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
