"""Reads consumer groups from the tables of leases and checkpoints, for people.

Reads block the calling thread, but do not wait for writers. All raise DatabaseError and
DatabaseUnavailableError.
"""

from __future__ import annotations

from collections import defaultdict

from tidegate.processor.checkpoint import ProcessorCheckpoint
from tidegate.processor.group_view import GroupView
from tidegate.processor.lease import Lease, LeaseSnapshot
from tidegate.sql.core.database import Database
from tidegate.sql.core.values import ConsumerKey
from tidegate.sql.stores.checkpoints import CheckpointReader
from tidegate.sql.stores.leases import leases_of, read_leases
from tidegate.sql.stores.processor_store import processor_checkpoint, processor_lease


def read_group_view(database: Database, consumer: ConsumerKey) -> GroupView:
    """One consumer group; empty if it has neither leases nor checkpoints."""
    # Checkpoints first, because a checkpoint older than its lease is at least consistent with it.
    rows = CheckpointReader(database).read(consumer)
    leases, now = read_leases(database, leases_of(consumer))
    return GroupView(
        LeaseSnapshot({row.partition_id: processor_lease(row) for row in leases}, now),
        {key: each for key, row in rows.items() if (each := processor_checkpoint(row)) is not None},
    )


def read_group_views(database: Database) -> dict[ConsumerKey, GroupView]:
    """All consumer groups with a lease or a checkpoint."""
    checkpoint_rows = CheckpointReader(database).read_all()
    lease_rows, now = read_leases(database)
    checkpoints: defaultdict[ConsumerKey, dict[str, ProcessorCheckpoint]] = defaultdict(dict)
    leases: defaultdict[ConsumerKey, dict[str, Lease]] = defaultdict(dict)
    for row in checkpoint_rows:
        # A row that was only locked has no position.
        if (checkpoint := processor_checkpoint(row)) is not None:
            checkpoints[ConsumerKey(row.event_hub, row.consumer_group)][row.partition_id] = checkpoint
    for lease in lease_rows:
        leases[ConsumerKey(lease.event_hub, lease.consumer_group)][lease.partition_id] = processor_lease(
            lease
        )
    return {
        key: GroupView(LeaseSnapshot(leases.get(key, {}), now), checkpoints.get(key, {}))
        for key in dict.fromkeys([*checkpoints, *leases])
    }
