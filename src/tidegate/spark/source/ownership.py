"""Lets only the driver that claimed a consumer group's SQL checkpoints last move them.

A claim raises the lease epoch of all partitions in one transaction, and every task's commit carries its
driver's epoch. So a later driver fences the earlier one and all its tasks, while a task that Spark merely
retries has the same epoch and finds its work done. The epoch also exceeds those of Event Processor Hosts'
leases, so a host that was paused before its first commit is fenced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from sqlalchemy import and_, select, update

from tidegate.model.history import find_divergence
from tidegate.model.hub_properties import PartitionEnds
from tidegate.processor.checkpoint import check_same_hub
from tidegate.spark.source.offsets import StreamOffset
from tidegate.sql import CheckpointReader, ConsumerKey, Database, UnitOfWork
from tidegate.sql.core.schema import checkpoint, lease, of_consumer
from tidegate.sql.core.unit_of_work import default_owner
from tidegate.sql.stores.checkpoints import highest_epoch


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to move one consumer group's checkpoints, until another driver claims them."""

    lease_epoch: int
    owner: str
    """Recorded with the checkpoints, for people: ``host:process`` of the driver."""
    event_hub_created_at_ms: int
    start_sequence_numbers: Mapping[str, int]
    """Partition id → its next event to process."""


def claim_checkpoints(
    database: Database,
    consumer: ConsumerKey,
    *,
    event_hub_created_at_ms: int,
    start_sequence_numbers: Mapping[str, int],
    begin_sequence_numbers: Mapping[str, int],
) -> Claim:
    """Take over the checkpoints of all partitions, creating missing ones.

    start_sequence_numbers: where a partition without a checkpoint starts, in the hub's order of partitions.
    begin_sequence_numbers: where one starts instead that the hub got since the group was last claimed.
    Raises DatabaseError, and EventHubReplacedError if checkpoints refer to a deleted hub of that name.
    """
    owner = default_owner()
    row = checkpoint.c
    mine = of_consumer(checkpoint, consumer)
    with UnitOfWork(database, consumer, owner=owner) as unit:
        added = _added_partitions(unit, list(start_sequence_numbers))
        starts_at = {**start_sequence_numbers, **{key: begin_sequence_numbers[key] for key in added}}
        # In the lock order of unit_of_work.
        for partition_id in sorted(start_sequence_numbers):
            locked = unit.lock_checkpoint(partition_id)
            check_same_hub(consumer, partition_id, locked.event_hub_created_at_ms, event_hub_created_at_ms)
            if locked.next_sequence_number is None:
                unit.advance(
                    partition_id,
                    None,
                    starts_at[partition_id],
                    event_hub_created_at_ms=event_hub_created_at_ms,
                )
        lease_epoch = highest_epoch(unit.connection, consumer) + 1
        changes = {
            "lease_epoch": lease_epoch,
            "owner": owner,
            "event_hub_created_at_ms": event_hub_created_at_ms,
            "updated_at": database.clock.now_utc(),
        }
        unit.connection.execute(update(checkpoint).where(mine).values(changes))
        starts = unit.connection.execute(select(row.partition_id, row.next_sequence_number).where(mine)).all()
    return Claim(
        lease_epoch,
        owner,
        event_hub_created_at_ms,
        {key: number for key, number in starts if number is not None},
    )


def _added_partitions(unit: UnitOfWork, partition_ids: Sequence[str]) -> Sequence[str]:
    """The partitions behind the last one that an owner of this group had: they were added to the hub since.

    An owner's partitions have a lease, or a checkpoint with an epoch and a position: a claim gives both to
    every partition. A row that was only locked has no position, but may have an epoch, too.
    """
    held: set[str] = set()
    for table, *known in (
        (checkpoint, checkpoint.c.lease_epoch, checkpoint.c.next_sequence_number),
        (lease, lease.c.epoch),
    ):
        there = (of_consumer(table, unit.consumer), *(each.is_not(None) for each in known))
        held |= {*unit.connection.execute(select(table.c.partition_id).where(*there)).scalars()}
    last = max((index for index, each in enumerate(partition_ids) if each in held), default=None)
    return () if last is None else partition_ids[last + 1 :]


def note_histories(database: Database, consumer: ConsumerKey, claim: Claim, offset: StreamOffset) -> None:
    """Keep the histories of an offset with the checkpoints that are at its numbers, under this claim."""
    row = checkpoint.c
    with UnitOfWork(database, consumer, owner=claim.owner) as unit:
        for partition_id, history_id in sorted(offset.histories.items()):
            here = and_(
                of_consumer(checkpoint, consumer, partition_id),
                row.next_sequence_number == offset.partitions.get(partition_id),
                row.lease_epoch == claim.lease_epoch,
            )
            unit.connection.execute(update(checkpoint).where(here).values(history_id=history_id))


def checkpoint_positions(
    database: Database,
    consumer: ConsumerKey,
    *,
    event_hub_created_at_ms: int,
    bounds: Mapping[str, PartitionEnds] = MappingProxyType({}),
) -> dict[str, int]:
    """Partition id → its resume point, the next event to process; partitions never started are absent.

    bounds: of the log now; the checkpoints' histories are compared with them.
    Raises EventHubReplacedError as ``claim_checkpoints`` does, and LogDivergedError.
    """
    positions: dict[str, int] = {}
    for partition_id, found in CheckpointReader(database).read(consumer).items():
        check_same_hub(consumer, partition_id, found.event_hub_created_at_ms, event_hub_created_at_ms)
        if found.next_sequence_number is not None:
            positions[partition_id] = found.next_sequence_number
            held = bounds.get(partition_id)
            diverged = held and find_divergence(
                found.next_sequence_number,
                found.history_id,
                held.histories,
                where=f"Partition {partition_id} of {consumer}",
            )
            if diverged:
                raise diverged
    return positions
