"""Commits rows that were computed before anything was locked, exactly once, through ``engine``.

Theory of operation. The first transaction inserts the rows in bulk. If the database refuses some, a second,
careful one halves the batch behind savepoints until each offending event is isolated and becomes a dead
letter with the database's own reason. Only a failure costs these savepoints.

Small batches of several partitions share a transaction, and so its fixed cost. After refused rows or a
deadlock, each batch gets its own transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import Table

from tidegate.model.errors import DatabaseError, DatabaseUnavailableError, InvalidArgumentError
from tidegate.model.events import ReceivedEvent
from tidegate.sql.commit.engine import BatchScope, Share, run_transaction
from tidegate.sql.commit.partition_batch import PartitionBatch, handled_batch
from tidegate.sql.core.database import Database
from tidegate.sql.core.dialects.base import ErrorKind
from tidegate.sql.core.failures import is_of
from tidegate.sql.core.halving import failures_of
from tidegate.sql.core.row_groups import joined
from tidegate.sql.core.unit_of_work import RowsRefusedError, UnitOfWork
from tidegate.sql.core.values import BatchResult, NewDeadLetter, PlaceOf
from tidegate.sql.handlers.event_runs import TransactionFailure, repeat_carefully
from tidegate.sql.handlers.pipeline import Pipeline

if TYPE_CHECKING:
    from tidegate.sql.core.row_groups import RowGroup


class TooManyDeadLettersError(Exception):
    """The database refuses more events than may become dead letters; nothing of their batch is committed.

    Users never see it.
    """


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
    """Run the pipeline's handler over ``events``; commit its rows, dead letters and checkpoint together.

    events: ascending, within ``[start_sequence_number, until_sequence_number)``, not necessarily all of it.
    The checkpoint moves to ``until_sequence_number``. Events below the checkpoint are not processed again.
    event_hub_created_at_ms: which hub of this name; None: not checked. is_gap_allowed: accept a batch that
    starts beyond the checkpoint, if the events between are known to be lost. owner: recorded; None:
    ``host:process``. lease_epoch: of the owner's lease; None: it has none. A checkpoint with a higher epoch
    refuses the batch, even if it is already done.

    Raises InvalidArgumentError (events out of order or range), BatchResultError (see ``ArrowHandler``), and
    what ``commit_batches`` raises.
    """
    scope = BatchScope(
        pipeline.consumer,
        partition_id,
        start_sequence_number,
        until_sequence_number,
        event_hub_created_at_ms,
        is_gap_allowed,
        owner,
        lease_epoch,
        pipeline.name,
    )
    return commit_batches(database, [handled_batch(pipeline, scope, events)])[0]


def commit_batches(database: Database, batches: Sequence[PartitionBatch]) -> list[BatchResult]:
    """Commit batches of different partitions in one transaction; returns their results in the same order.

    batches: at least one; all of the same pipeline, hub, owner and table.

    Raises CheckpointGapError, EventHubReplacedError, FencedError, InvalidArgumentError (batches that do not
    belong together), TooManyDeadLettersError (see ``PartitionBatch.dead_letters_max``), DatabaseError and
    DatabaseUnavailableError. After an error nothing was committed, with two exceptions: the error says that
    the outcome is unknown or that another owner has moved on; or refused rows gave each batch its own
    transaction, some of which may be done. Repeating the batches is always safe.
    """
    _check_together(batches)
    ordered = sorted(batches, key=lambda batch: batch.scope.partition_id)
    try:
        results = _attempt(database, ordered)
    except RowsRefusedError as refused:
        failure: DatabaseError = refused
    except DatabaseUnavailableError as error:
        # Two transactions wrote the same unique keys of the user's table in different orders.
        if len(ordered) == 1 or error.__cause__ is None or not is_of(error.__cause__, ErrorKind.DEADLOCK):
            raise
        failure = error
    else:
        return [results[batch.scope.partition_id] for batch in batches]
    # Not inside the except: the error would become the context of the dead letters' reasons.
    if isinstance(failure, RowsRefusedError) and len(ordered) == 1:
        results = repeat_carefully(lambda why: _attempt(database, ordered, refused=why), failure)
    else:
        results = {batch.scope.partition_id: commit_batches(database, [batch])[0] for batch in ordered}
    return [results[batch.scope.partition_id] for batch in batches]


def _check_together(batches: Sequence[PartitionBatch]) -> None:
    if len({batch.scope.partition_id for batch in batches}) != len(batches) or not batches:
        raise InvalidArgumentError("Batches that are committed together must be of different partitions.")
    first = batches[0]
    for batch in batches:
        if batch.common != first.common:
            raise InvalidArgumentError(
                f"The batches of partitions {first.scope.partition_id} and {batch.scope.partition_id} cannot "
                "be committed together.",
                next_step="They need the same pipeline, event hub, consumer group, owner, lease and table.",
            )


def _attempt(
    database: Database, batches: Sequence[PartitionBatch], *, refused: TransactionFailure | None = None
) -> dict[str, BatchResult]:
    """refused: why the previous attempt failed, which makes this one careful; None: this is the first."""
    by_partition = {batch.scope.partition_id: batch for batch in batches}

    def write(unit: UnitOfWork, shares: list[Share]) -> None:
        table = batches[0].table
        groups: list[RowGroup] = []
        for share in shares:
            batch = by_partition[share.scope.partition_id]
            mine = [group.between(share.first, share.until) for group in batch.groups]
            letters = [letter for letter in batch.dead_letters if letter.sequence_number >= share.first]
            if refused is None:
                share.rows = sum(map(len, mine))
                groups += mine
            else:
                left = None if batch.dead_letters_max is None else batch.dead_letters_max - len(letters)
                share.rows, offenders = insert_carefully(
                    unit,
                    table,
                    mine,
                    batch.place_of,
                    is_commit_refused=refused.is_at_commit,
                    refused_max=left,
                )
                letters = sorted([*letters, *offenders], key=lambda letter: letter.sequence_number)
            share.dead_letters, share.last = letters, batch.last
        for group in joined(groups):
            unit.insert_values(table, group)

    shares = run_transaction(database, [batch.scope for batch in batches], write)
    return {share.scope.partition_id: _result_of(share) for share in shares}


def _result_of(share: Share) -> BatchResult:
    start, until = share.scope.start, share.scope.until
    if share.is_done:
        assert share.checkpoint is not None
        return BatchResult(0, 0, until - start, until, share.checkpoint)
    return BatchResult(share.rows, len(share.dead_letters), share.first - start, share.first, until)


def insert_carefully(
    unit: UnitOfWork,
    table: Table,
    groups: Sequence[RowGroup],
    positions: PlaceOf,
    *,
    is_commit_refused: bool = False,
    refused_max: int | None = None,
) -> tuple[int, list[NewDeadLetter]]:
    """Insert what the database accepts, event by event if necessary; the rest become dead letters.

    Returns the number of inserted rows, and the dead letters. If two events exclude each other (a unique
    key), the earlier one is kept. refused_max: events; None: no limit. Raises TooManyDeadLettersError.
    """
    # A refusal at the commit could not be attributed to an event.
    unit.make_constraints_immediate(is_commit_refused=is_commit_refused)
    numbers = sorted({number for group in groups for number in group.numbers()})
    row_count = 0

    def insert(low: int, until: int) -> None:
        nonlocal row_count
        parts = [group.between(numbers[low], numbers[until - 1] + 1) for group in groups]
        with unit.savepoint():
            inserted = sum(unit.insert_values(table, part) for part in parts)
            unit.check_deferred_constraints()
        row_count += inserted

    refused: list[NewDeadLetter] = []
    for index, error in failures_of(insert, 0, len(numbers), RowsRefusedError):
        if refused_max is not None and len(refused) >= refused_max:
            raise TooManyDeadLettersError
        place = positions(numbers[index])
        refused.append(NewDeadLetter.at_place(numbers[index], place, error.reason))
    return row_count, refused
