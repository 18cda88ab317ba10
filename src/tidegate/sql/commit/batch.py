"""Batches of partitions, committed exactly once: rows, dead letters and checkpoints in one transaction.

Theory of operation. Handlers run before anything is locked. Then one transaction locks the checkpoint, leaves
out what is below it (a retried task, a zombie's second attempt), inserts the rows in bulk, writes the dead
letters and moves the checkpoint. When the database refuses rows, that transaction is rolled back and a
second, careful one halves the batch behind savepoints until each offending event stands alone; those become
dead letters with the database's own reason. The careful pass costs a savepoint per halving and runs only when
something failed.

Small batches of several partitions share one transaction, for what a transaction costs besides its rows is
paid once then. Refused rows, and a deadlock with another's rows, send each of them its own way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import Table

from tidegate.model.errors import (
    CheckpointGapError,
    DatabaseError,
    DatabaseUnavailableError,
    EventHubReplacedError,
    InvalidArgumentError,
)
from tidegate.model.events import ReceivedEvent
from tidegate.sql.commit.partition_batch import PartitionBatch, handled_batch
from tidegate.sql.core.checkpoint_rows import CheckpointStep, LockedCheckpoint
from tidegate.sql.core.database import Database
from tidegate.sql.core.failures import is_deadlock
from tidegate.sql.core.row_groups import joined
from tidegate.sql.core.unit_of_work import RowsRefusedError, UnitOfWork
from tidegate.sql.core.values import BatchResult, ConsumerKey, NewDeadLetter, PlaceOf
from tidegate.sql.handlers.pipeline import Pipeline

if TYPE_CHECKING:
    from tidegate.sql.core.row_groups import RowGroup


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

    The arguments are those of ``handled_batch``; raises what it and ``commit_batches`` raise.
    """
    batch = handled_batch(
        pipeline,
        partition_id,
        events,
        start_sequence_number=start_sequence_number,
        until_sequence_number=until_sequence_number,
        event_hub_created_at_ms=event_hub_created_at_ms,
        is_gap_allowed=is_gap_allowed,
        owner=owner,
        lease_epoch=lease_epoch,
    )
    (result,) = commit_batches(database, [batch])
    return result


def commit_batches(database: Database, batches: Sequence[PartitionBatch]) -> list[BatchResult]:
    """Commit batches of different partitions in one transaction; the results are in their order.

    batches: at least one; of one pipeline, hub, owner and table.

    Raises CheckpointGapError, EventHubReplacedError, FencedError, InvalidArgumentError (batches that do not
    belong together), DatabaseError and DatabaseUnavailableError. Whatever it raises, nothing was committed,
    unless the error's text says that this could not be found out, or that somebody else has moved on; or the
    database had refused rows, so that each batch got a transaction of its own: some of those may be done.
    Running the same batches again is safe each time.
    """
    _check_together(batches)
    # The order in which everybody locks checkpoints.
    ordered = sorted(batches, key=lambda batch: batch.partition_id)
    try:
        results = _attempt(database, ordered)
    except RowsRefusedError as refused:
        failure: DatabaseError = refused
    except DatabaseUnavailableError as error:
        # Two that write the same unique keys of the user's table, in another order.
        if len(ordered) == 1 or error.__cause__ is None or not is_deadlock(error.__cause__):
            raise
        failure = error
    else:
        return [results[batch.partition_id] for batch in batches]
    # Not where the error was caught: it would become the context of what each refused event is put aside for.
    if isinstance(failure, RowsRefusedError) and len(ordered) == 1:
        results = _carefully(database, ordered, failure)
    else:
        results = {batch.partition_id: commit_batches(database, [batch])[0] for batch in ordered}
    return [results[batch.partition_id] for batch in batches]


def _carefully(
    database: Database, batches: Sequence[PartitionBatch], refused: RowsRefusedError
) -> dict[str, BatchResult]:
    try:
        return _attempt(database, batches, refused=refused)
    except RowsRefusedError as again:
        if refused.is_at_commit or not again.is_at_commit:
            raise
        at_commit = again
    # A row was refused at once, and another one only by the commit, for which nobody had looked.
    return _attempt(database, batches, refused=at_commit)


def _check_together(batches: Sequence[PartitionBatch]) -> None:
    if len({batch.partition_id for batch in batches}) != len(batches) or not batches:
        raise InvalidArgumentError("Batches that are committed together are of different partitions.")
    for batch in batches:
        if batch.common != batches[0].common:
            raise InvalidArgumentError(
                f"The batches of partitions {batches[0].partition_id} and {batch.partition_id} cannot be "
                "committed together.",
                next_step="They need the same pipeline, event hub, consumer group, owner, lease and table.",
            )


def _attempt(
    database: Database, batches: Sequence[PartitionBatch], *, refused: RowsRefusedError | None = None
) -> dict[str, BatchResult]:
    """refused: why the attempt before failed, so this one is careful; None: this is the first."""
    any_batch = batches[0]
    unit = UnitOfWork(
        database,
        any_batch.consumer,
        pipeline_name=any_batch.pipeline_name,
        owner=any_batch.owner,
        lease_epoch=any_batch.lease_epoch,
    )
    with unit:
        locked = unit.lock_checkpoints([batch.partition_id for batch in batches])
        shares = [_Share.of(batch, locked[batch.partition_id]) for batch in batches]
        due = [share for share in shares if not share.is_done]
        if due:
            _write(unit, any_batch.table, due, refused)
            unit.advance_all([share.step() for share in due])
            unit.commit()
        else:
            unit.rollback()
    return {share.batch.partition_id: share.result() for share in shares}


@dataclass(slots=True)
class _Share:
    """What a batch contributes to a transaction that has locked its checkpoint."""

    batch: PartitionBatch
    checkpoint: int | None
    first: int
    """The first event that is not done yet."""
    groups: list[RowGroup]
    dead_letters: list[NewDeadLetter]
    row_count: int = 0

    @classmethod
    def of(cls, batch: PartitionBatch, locked: LockedCheckpoint) -> _Share:
        """Leave out what is done. Raises as ``check_checkpoint``."""
        check_checkpoint(
            locked,
            batch.consumer,
            batch.partition_id,
            start=batch.start,
            until=batch.until,
            event_hub_created_at_ms=batch.event_hub_created_at_ms,
            is_gap_allowed=batch.is_gap_allowed,
        )
        number = locked.next_sequence_number
        first = batch.start if number is None else max(batch.start, number)
        groups = [group.between(first, batch.until) for group in batch.groups]
        letters = [letter for letter in batch.dead_letters if letter.sequence_number >= first]
        return cls(batch, number, first, groups, letters)

    @property
    def is_done(self) -> bool:
        return self.checkpoint is not None and self.checkpoint >= self.batch.until

    def step(self) -> CheckpointStep:
        batch, last = self.batch, self.batch.last
        return CheckpointStep(
            batch.partition_id,
            self.checkpoint,
            batch.until,
            offset=None if last is None else last.offset,
            enqueued_time_ms=None if last is None else last.enqueued_time_ms,
            event_hub_created_at_ms=batch.event_hub_created_at_ms,
        )

    def result(self) -> BatchResult:
        start, until = self.batch.start, self.batch.until
        if self.is_done:
            assert self.checkpoint is not None
            return BatchResult(0, 0, until - start, until, self.checkpoint)
        return BatchResult(self.row_count, len(self.dead_letters), self.first - start, self.first, until)


def _write(unit: UnitOfWork, table: Table, shares: list[_Share], refused: RowsRefusedError | None) -> None:
    """Rows and dead letters."""
    if refused is not None:
        (share,) = shares
        share.row_count, offenders = insert_carefully(
            unit, table, share.groups, share.batch.place_of, is_commit_refused=refused.is_at_commit
        )
        share.dead_letters = sorted(
            [*share.dead_letters, *offenders], key=lambda letter: letter.sequence_number
        )
    else:
        for group in joined([group for share in shares for group in share.groups]):
            unit.insert_values(table, group)
        for share in shares:
            share.row_count = sum(map(len, share.groups))
    for share in shares:
        unit.add_dead_letters(share.batch.partition_id, share.dead_letters)


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
