"""Moves a checkpoint outside a batch, for an at-least-once host, an official processor, or a person.

Rule: never with a lease epoch below the checkpoint's. Unless a rewind is allowed, only forward, and never
into another hub of the same name.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select, update

from tidegate.model.errors import EventHubReplacedError, FencedError, InvalidArgumentError
from tidegate.processor.checkpoint import ProcessorCheckpoint
from tidegate.sql.core import schema
from tidegate.sql.core.checkpoint_statements import is_of
from tidegate.sql.core.database import Database
from tidegate.sql.core.lost_commit import CommitOutcome
from tidegate.sql.core.unit_of_work import UnitOfWork
from tidegate.sql.core.values import Checkpoint, ConsumerKey, storable_text


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
) -> CheckpointMove:
    """Record that everything up to ``target`` is processed.

    target: has a sequence number (-1: nothing is processed, so start at the first event). If it has none, its
    offset or time is stored, provided that no sequence number is stored yet; transactional hosts then start
    as without a checkpoint. owner: recorded; None: ``host:process``. lease_epoch: of the lease to use; None:
    no lease is required. is_rewind_allowed: also move it backwards, to a less precise position, or into
    another hub of this name. is_dry_run: only report what would happen. A host that works on the partition
    continues from the new position, after its next compare-and-set has failed.

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
        return _decide(consumer, stored, target, lease_epoch, is_rewind_allowed=is_rewind_allowed)
    with UnitOfWork(database, consumer, owner=owner, lease_epoch=lease_epoch) as unit:
        unit.lock_checkpoint(target.partition_id)
        with unit.translating("reading a checkpoint"):
            stored = _read(unit.connection, consumer, target.partition_id)
        move = _decide(consumer, stored, target, lease_epoch, is_rewind_allowed=is_rewind_allowed)
        if move.is_moved:
            _write(unit, stored, target)
            unit.commit()
        elif stored is not None and lease_epoch is not None and lease_epoch > (stored.lease_epoch or 0):
            # The position stays, but its former owner is fenced.
            _update(unit, target.partition_id, {})
            unit.commit()
        else:
            unit.rollback()
        return move


def _decide(
    consumer: ConsumerKey,
    stored: Checkpoint | None,
    target: ProcessorCheckpoint,
    lease_epoch: int | None,
    *,
    is_rewind_allowed: bool,
) -> CheckpointMove:
    if stored is not None and lease_epoch is not None and (stored.lease_epoch or 0) > lease_epoch:
        raise FencedError(
            f"Partition {target.partition_id} of {consumer} was taken over by {stored.owner} under lease "
            f"epoch {stored.lease_epoch}; this owner's is {lease_epoch}.",
            next_step="Leave the partition to that owner.",
        )
    if not is_rewind_allowed and stored is not None:
        _check_same_hub(consumer, stored, target)
        if not _is_further(consumer, stored, target):
            return CheckpointMove(stored, stored.next_sequence_number, is_moved=False)
    number = target.sequence_number
    return CheckpointMove(stored, None if number is None else number + 1, is_moved=True)


def _is_further(consumer: ConsumerKey, stored: Checkpoint, target: ProcessorCheckpoint) -> bool:
    """Whether ``target`` is beyond the stored position, as far as the two can be compared."""
    if stored.next_sequence_number is not None:
        if target.sequence_number is None:
            raise InvalidArgumentError(
                f"The checkpoint of partition {target.partition_id} of {consumer} is event "
                f"{stored.next_sequence_number}; a position without sequence number cannot be compared "
                "with it.",
                next_step="Also give the sequence number, or allow the checkpoint to move backwards.",
            )
        return target.sequence_number + 1 > stored.next_sequence_number
    if target.sequence_number is not None:
        return True
    if stored.offset is not None and target.offset is not None:
        # Offsets are opaque; only numeric ones are known to ascend.
        is_comparable = stored.offset.isdecimal() and target.offset.isdecimal()
        return not is_comparable or int(target.offset) > int(stored.offset)
    if stored.enqueued_time_ms is not None and target.enqueued_time_ms is not None:
        return target.enqueued_time_ms > stored.enqueued_time_ms
    return True


def _check_same_hub(consumer: ConsumerKey, stored: Checkpoint, target: ProcessorCheckpoint) -> None:
    was, now = stored.event_hub_created_at_ms, target.event_hub_created_at_ms
    if was is not None and now is not None and was != now:
        raise EventHubReplacedError(
            f"The checkpoint of partition {target.partition_id} of {consumer} belongs to the event hub "
            f"created at {was} ms, and this one counts in a hub created at {now} ms.",
            next_step="The hub was deleted and created again, so its sequence numbers start again: use "
            "another consumer group, or set the checkpoint again with rewinds allowed.",
        )


def _write(unit: UnitOfWork, stored: Checkpoint | None, target: ProcessorCheckpoint) -> None:
    from_number = None if stored is None else stored.next_sequence_number
    if target.sequence_number is not None:
        unit.advance(
            target.partition_id,
            from_number,
            target.sequence_number + 1,
            offset=target.offset,
            enqueued_time_ms=target.enqueued_time_ms,
            event_hub_created_at_ms=target.event_hub_created_at_ms,
        )
        return
    changes: dict[str, object] = {
        "next_sequence_number": None,
        "offset": target.offset,
        "enqueued_time_ms": target.enqueued_time_ms,
    }
    if target.event_hub_created_at_ms is not None:
        changes["event_hub_created_at_ms"] = target.event_hub_created_at_ms
    _update(unit, target.partition_id, changes)


def _update(unit: UnitOfWork, partition_id: str, changes: dict[str, object]) -> None:
    """Write ``changes`` and their author, without compare-and-set: the row is locked since it was read."""
    changes |= {
        "transaction_token": unit.token,
        "owner": storable_text(unit.owner),
        "updated_at": unit.database.clock.now_utc(),
    }
    if unit.lease_epoch is not None:
        changes["lease_epoch"] = unit.lease_epoch
    with unit.translating(f"moving the checkpoint of partition {partition_id}"):
        unit.connection.execute(
            update(schema.checkpoint).where(is_of(unit.consumer, partition_id)).values(changes)
        )
    unit.set_witness(lambda connection: _outcome(connection, unit, partition_id))


def _outcome(connection: Connection, unit: UnitOfWork, partition_id: str) -> CommitOutcome:
    """The outcome of a lost COMMIT. If another owner has moved the checkpoint since, a repeat is safe."""
    token = schema.checkpoint.c.transaction_token
    statement = select(token).where(is_of(unit.consumer, partition_id)).with_for_update()
    is_ours = connection.execute(statement).scalar_one_or_none() == unit.token
    return CommitOutcome.COMMITTED if is_ours else CommitOutcome.ROLLED_BACK


def _read(connection: Connection, consumer: ConsumerKey, partition_id: str) -> Checkpoint | None:
    """The row; None: it does not exist, or was only locked."""
    found = connection.execute(select(schema.checkpoint).where(is_of(consumer, partition_id)))
    row = found.mappings().one_or_none()
    return None if row is None or row["transaction_token"] is None else Checkpoint(**row)
