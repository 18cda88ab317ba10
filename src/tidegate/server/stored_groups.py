"""The consumer groups of the databases, for metrics: what the console shows, as numbers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidegate.gateway.metrics import StoredGroup, StoredGroups, StoredPartition
from tidegate.model.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.console.consumers.groups import Consumers
    from tidegate.console.consumers.progress import GroupProgress, PartitionProgress

READ_S_MAX: Final = 2.0
"""Seconds that a scrape waits for the database (our choice: Prometheus gives up after 10)."""

_log: Final = logging.getLogger(__name__)


async def read_stored_groups(consumers: Consumers) -> StoredGroups | None:
    """Those of hosts and pipelines, once each; None if a database cannot be read, or takes longer.

    Without those that their hub no longer has: what is left of them in the database, clients can make grow.
    """
    try:
        groups, letters = await asyncio.gather(
            consumers.groups(None, at_most_s=READ_S_MAX),
            consumers.dead_letters(at_most_s=READ_S_MAX),
        )
    except TidegateError as error:
        _log.info("no metrics of consumer groups: %s", type(error).__name__)
        return None
    if groups is None or letters is None or groups.problems:
        return None
    counts = {(key.event_hub, key.consumer_group): found for key, found in letters.counts.items()}
    stored = {
        _key_of(each): each
        for each in groups.groups
        if not (each.summary.is_kept or each.summary.is_group_gone)
    }
    # A query with a ledger has dead letters without a lease or a checkpoint.
    others = [
        StoredGroup(*key, None, 0, 0, found[1], found[0])
        for key, found in counts.items()
        if key not in stored
    ]
    numbers = (_numbers_of(each, counts.get(key, (0, 0))[0]) for key, each in stored.items())
    return StoredGroups([*numbers, *others], min(groups.read_at, letters.read_at).timestamp())


def _key_of(group: GroupProgress) -> tuple[str, str]:
    return group.summary.event_hub.lower(), group.summary.consumer_group


def _numbers_of(group: GroupProgress, dead_letters: int) -> StoredGroup:
    summary = group.summary
    return StoredGroup(
        summary.event_hub,
        summary.consumer_group,
        summary.lag.events,
        summary.owned_count,
        summary.owner_count,
        summary.open_dead_letters,
        dead_letters,
        _Partitions(group.partitions),
    )


@dataclass(frozen=True, slots=True)
class _Partitions:
    """Made when they are asked for: each request would make all of them in one step of the event loop."""

    _found: Sequence[PartitionProgress]

    def __iter__(self) -> Iterator[StoredPartition]:
        return map(_partition_of, self._found)


def _partition_of(found: PartitionProgress) -> StoredPartition:
    checkpoint, lease = found.checkpoint, found.lease
    return StoredPartition(
        found.partition_id,
        found.lag.events,
        None if checkpoint is None else checkpoint.sequence_number,
        lease.renewed_at.timestamp() if lease is not None and found.owner else None,
    )
