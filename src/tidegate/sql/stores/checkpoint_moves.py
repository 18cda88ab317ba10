"""Moves a checkpoint outside a batch, for an at-least-once host, an official processor, or a person.

Rule: never with a lease epoch below the checkpoint's. Unless a rewind is allowed, only forward, and never
into another hub of the same name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection, select

from tidegate.model.errors import InvalidArgumentError
from tidegate.processor.checkpoint import ProcessorCheckpoint, check_same_hub
from tidegate.processor.lease import Lease
from tidegate.sql.core.checkpoint_rows import CheckpointStep
from tidegate.sql.core.database import Database
from tidegate.sql.core.schema import checkpoint, of_consumer
from tidegate.sql.core.unit_of_work import UnitOfWork, check_epoch
from tidegate.sql.core.values import Checkpoint, ConsumerKey
from tidegate.sql.stores.checkpoints import processor_checkpoint


@dataclass(frozen=True, slots=True)
class CheckpointMove:
    """The result of moving a checkpoint, or of a dry run."""

    before: Checkpoint | None
    """The previous position; None: there was none."""
    next_sequence_number: int | None
    """The new position; None: only an offset or a time is known."""
    is_moved: bool
    """False: it was already there or further, and stays; a higher lease epoch is recorded anyway."""


def move_checkpoint(
    database: Database,
    consumer: ConsumerKey,
    target: ProcessorCheckpoint,
    *,
    owner: str | None = None,
    lease_epoch: int | None = None,
    is_rewind_allowed: bool = False,
    is_dry_run: bool = False,
    check: Callable[[], None] | None = None,
) -> CheckpointMove:
    """Record that everything up to ``target`` is processed.

    target: has a sequence number (-1: nothing is processed, so start at the first event). If it has none, its
    offset or time is stored, provided that no sequence number is stored yet; transactional hosts then start
    as without a checkpoint. owner: recorded; None: ``host:process``. lease_epoch: of the lease to use; None:
    no lease is required. is_rewind_allowed: also move it backwards, to a less precise position, or into
    another hub of this name. is_dry_run: only report what would happen. check: called once the checkpoint is
    locked, for which others may be waited for; an exception in it leaves the checkpoint as it is. A host that
    works on the partition continues from the new position, after its next compare-and-set has failed.

    Raises FencedError (moved under a higher lease epoch), EventHubReplacedError, InvalidArgumentError (no
    position, or one without a sequence number although one is stored), DatabaseError and
    DatabaseUnavailableError.
    """
    number = target.sequence_number
    if number is not None and number < -1:
        raise InvalidArgumentError(f"A checkpoint's sequence number must be at least -1, got {number}.")
    if number is None and target.offset is None and target.enqueued_time_ms is None:
        raise InvalidArgumentError(
            f"The checkpoint for partition {target.partition_id} of {consumer} has no position.",
            next_step="Give a sequence number, an offset or an enqueued time.",
        )
    if is_dry_run:
        with database.read() as connection:
            stored = _read(connection, consumer, target.partition_id)
        if stored is not None:
            check_epoch(consumer, target.partition_id, stored, lease_epoch)
        return _decide(consumer, stored, target, is_rewind_allowed=is_rewind_allowed)
    with UnitOfWork(database, consumer, owner=owner, lease_epoch=lease_epoch) as unit:
        unit.lock_checkpoint(target.partition_id)
        if check is not None:
            check()
        with unit.translating("reading a checkpoint"):
            stored = _read(unit.connection, consumer, target.partition_id)
        move = _decide(consumer, stored, target, is_rewind_allowed=is_rewind_allowed)
        step = CheckpointStep(
            target.partition_id,
            None if stored is None else stored.next_sequence_number,
            move.next_sequence_number or 0,
            target.offset,
            target.enqueued_time_ms,
            target.event_hub_created_at_ms,
            target.history_id,
        )
        if move.is_moved and number is not None:
            unit.advance_all([step])
            unit.commit()
        elif move.is_moved:
            unit.claim(target.partition_id, **{**step.changes(), "next_sequence_number": None})
            unit.commit()
        elif stored is not None and lease_epoch is not None and lease_epoch > (stored.lease_epoch or 0):
            # The position stays, but its former owner is fenced.
            unit.claim(target.partition_id)
            unit.commit()
        else:
            unit.rollback()
        return move


def claim_checkpoint(database: Database, consumer: ConsumerKey, lease: Lease) -> int:
    """See ``CheckpointManager.create_checkpoint``; the position stays."""
    with UnitOfWork(database, consumer, owner=lease.owner) as unit:
        stored_epoch = unit.lock_checkpoint(lease.partition_id).lease_epoch or 0
        unit.lease_epoch = max(lease.epoch, stored_epoch + 1)
        unit.claim(lease.partition_id)
    return unit.lease_epoch


def _decide(
    consumer: ConsumerKey, stored: Checkpoint | None, target: ProcessorCheckpoint, *, is_rewind_allowed: bool
) -> CheckpointMove:
    current = None if stored is None else processor_checkpoint(stored)
    if stored is not None and current is not None and not is_rewind_allowed:
        stored_ms = stored.event_hub_created_at_ms
        check_same_hub(consumer, target.partition_id, stored_ms, target.event_hub_created_at_ms)
        if current.sequence_number is not None and target.sequence_number is None:
            raise InvalidArgumentError(
                f"The checkpoint of partition {target.partition_id} of {consumer} is event "
                f"{stored.next_sequence_number}; a position without sequence number cannot be compared "
                "with it.",
                next_step="Also give the sequence number, or allow the checkpoint to move backwards.",
            )
        distance = target.distance_from(current)
        if distance is not None and distance <= 0:
            return CheckpointMove(stored, stored.next_sequence_number, is_moved=False)
    return CheckpointMove(stored, target.resume_point, is_moved=True)


def _read(connection: Connection, consumer: ConsumerKey, partition_id: str) -> Checkpoint | None:
    """The row; None: it does not exist, or was only locked."""
    here = of_consumer(checkpoint, consumer, partition_id)
    row = connection.execute(select(checkpoint).where(here)).mappings().one_or_none()
    return None if row is None or row["transaction_token"] is None else Checkpoint(**row)
