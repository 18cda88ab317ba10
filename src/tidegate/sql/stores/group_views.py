"""Reads consumer groups from the tables of leases and checkpoints, for people.

Reads block the calling thread, but do not wait for writers. All raise DatabaseError and
DatabaseUnavailableError.
"""

from __future__ import annotations

from collections import defaultdict

from tidegate.processor.group_view import GroupView
from tidegate.processor.lease import SHADOW_MARK, LeaseSnapshot
from tidegate.sql.core.database import Database
from tidegate.sql.core.values import Checkpoint, ConsumerKey
from tidegate.sql.stores.checkpoints import CheckpointReader, processor_checkpoints
from tidegate.sql.stores.leases import LeaseTable


def read_group_view(database: Database, consumer: ConsumerKey) -> GroupView:
    """One consumer group; empty if it has neither leases nor checkpoints."""
    # Checkpoints first, because a checkpoint older than its lease is at least consistent with it.
    rows = CheckpointReader(database).read(consumer)
    return GroupView(LeaseTable(database).read(consumer), processor_checkpoints(rows.values()))


def read_group_views(database: Database) -> dict[ConsumerKey, GroupView]:
    """All consumer groups with a lease or a checkpoint, each with its consumer.

    Without shadows: what nothing processes has no lag to be warned of. ``read_group_view`` reads one.
    """
    rows: defaultdict[ConsumerKey, list[Checkpoint]] = defaultdict(list)
    for row in CheckpointReader(database).read_all():
        rows[ConsumerKey(row.event_hub, row.consumer_group)].append(row)
    leases, now = LeaseTable(database).read_all()
    checkpoints = {key: found for key, its in rows.items() if (found := processor_checkpoints(its))}
    return {
        key: GroupView(LeaseSnapshot(leases.get(key, {}), now), checkpoints.get(key, {}))
        for key in dict.fromkeys([*checkpoints, *leases])
        if SHADOW_MARK not in key.consumer_group
    }
