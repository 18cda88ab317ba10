"""Rows of leases and checkpoints joined with the ends of a log. Pure: nothing here asks anybody."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from tidegate.console.consumers.values import GroupProgress, GroupSummary, PartitionProgress
from tidegate.model.partition_ends import PartitionEnds
from tidegate.processor.checkpoint import ProcessorCheckpoint
from tidegate.processor.lag import Lag, lag_of, total_of
from tidegate.processor.options import PartitionManagerOptions
from tidegate.sql import Checkpoint, ConsumerKey, LeaseRow
from tidegate.sql.stores.processor_store import processor_checkpoint

LEASE_DURATION_S: Final = PartitionManagerOptions().lease_duration_s
"""The hosts' default, as in ``tidegate checkpoint set``: a table of leases does not keep it."""
STALL_TIMEOUT_S: Final = PartitionManagerOptions().effective_stall_timeout_s

_UNKNOWN: Final = Lag(None, None, None)

Unread = Mapping[tuple[str, int, str, int], datetime]
"""When an event was enqueued: by hub (in lower case), when that was made, partition and sequence number."""


@dataclass(frozen=True, slots=True)
class HubLog:
    """A hub's partitions at one moment."""

    name: str
    created_at_ms: int
    ends: Mapping[str, PartitionEnds]


@dataclass(frozen=True, slots=True)
class ConsumerRows:
    """The rows of one consumer group, by partition."""

    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    leases: dict[str, LeaseRow] = field(default_factory=dict)

    def checkpoint(self, partition_id: str) -> ProcessorCheckpoint | None:
        """As hosts have it; None: there is none."""
        stored = self.checkpoints.get(partition_id)
        return None if stored is None else processor_checkpoint(stored)

    def owner(self, partition_id: str) -> str | None:
        """The host that has the partition now; None: nobody."""
        lease = self.leases.get(partition_id)
        return None if lease is None or not lease.owner or is_over(lease) else lease.owner


@dataclass(frozen=True, slots=True)
class StoredRows:
    """All rows of a database."""

    by_consumer: Mapping[ConsumerKey, ConsumerRows]
    open_dead_letters: Mapping[ConsumerKey, int]
    """Of each consumer that has any."""

    @classmethod
    def of_rows(
        cls,
        checkpoints: Iterable[Checkpoint],
        leases: Iterable[LeaseRow],
        open_dead_letters: Mapping[ConsumerKey, int] | None = None,
    ) -> StoredRows:
        """Sorted by consumer; one that has dead letters only is none.

        open_dead_letters: None: not counted.
        """
        found: defaultdict[tuple[str, str], ConsumerRows] = defaultdict(ConsumerRows)
        for checkpoint in checkpoints:
            # A row that was only ever locked says nothing.
            if processor_checkpoint(checkpoint) is not None:
                rows = found[checkpoint.event_hub, checkpoint.consumer_group]
                rows.checkpoints[checkpoint.partition_id] = checkpoint
        for lease in leases:
            found[lease.event_hub, lease.consumer_group].leases[lease.partition_id] = lease
        return cls({ConsumerKey(*key): rows for key, rows in found.items()}, open_dead_letters or {})

    def consumers(self) -> Sequence[ConsumerKey]:
        """All that have a row."""
        return list(self.by_consumer)

    def of(self, consumer: ConsumerKey) -> ConsumerRows:
        """Those of one consumer; none where it has none."""
        return self.by_consumer.get(consumer, ConsumerRows())

    def event_hubs(self) -> set[str]:
        """The hubs' names, in lower case."""
        return {consumer.event_hub for consumer in self.by_consumer}


def is_over(lease: LeaseRow) -> bool:
    """Whether its owner has not renewed it for a lease's duration."""
    return lease.age_s >= LEASE_DURATION_S


def unread_of(
    rows: StoredRows, logs: Mapping[str, HubLog], now: datetime
) -> Iterator[tuple[str, int, str, int]]:
    """The events that checkpoints wait at which have not moved for long, as keys of ``Unread``."""
    before = now - timedelta(seconds=STALL_TIMEOUT_S)
    for consumer, group in rows.by_consumer.items():
        log = logs.get(consumer.event_hub)
        if log is None:
            continue
        for partition_id, checkpoint in group.checkpoints.items():
            end = log.ends.get(partition_id)
            if end is None or checkpoint.updated_at > before:
                continue
            number = _waiting_number(checkpoint, end)
            if number is not None and _lag(end, checkpoint, log).events:
                yield consumer.event_hub, log.created_at_ms, partition_id, number


def progress_of(
    consumer: ConsumerKey,
    rows: ConsumerRows,
    log: HubLog | None,
    unread: Unread,
    now: datetime,
    *,
    open_dead_letters: int,
) -> GroupProgress:
    """One consumer group with its sums. now: what the age of checkpoints is measured by."""
    ids = {*rows.checkpoints, *rows.leases, *(() if log is None else log.ends)}
    partitions = [
        _partition(consumer, partition_id, rows, log, unread, now)
        for partition_id in sorted(ids, key=lambda each: (len(each), each))
    ]
    summary = GroupSummary(
        event_hub=consumer.event_hub if log is None else log.name,
        consumer_group=consumer.consumer_group,
        is_hub_here=log is not None,
        partition_count=len(partitions),
        owned_count=sum(each.is_owned for each in partitions),
        owner_count=len({each.owner for each in partitions if each.is_owned}),
        has_leases=bool(rows.leases),
        lag=total_of([each.lag for each in partitions]),
        stalled_count=sum(each.stalled_s is not None for each in partitions),
        beyond_log_count=sum(each.lag.is_beyond_log for each in partitions),
        moved_at=max((each.updated_at for each in rows.checkpoints.values()), default=None),
        open_dead_letters=open_dead_letters,
    )
    return GroupProgress(summary, partitions)


def _partition(
    consumer: ConsumerKey,
    partition_id: str,
    rows: ConsumerRows,
    log: HubLog | None,
    unread: Unread,
    now: datetime,
) -> PartitionProgress:
    checkpoint, lease = rows.checkpoints.get(partition_id), rows.leases.get(partition_id)
    end = None if log is None else log.ends.get(partition_id)
    lag = _UNKNOWN if end is None else _lag(end, checkpoint, log)
    return PartitionProgress(
        partition_id,
        lease,
        lease is not None and bool(lease.owner) and is_over(lease),
        checkpoint,
        lag,
        _stalled_s(consumer, checkpoint, log, end, lag, unread, now),
    )


def _lag(end: PartitionEnds, checkpoint: Checkpoint | None, log: HubLog | None) -> Lag:
    given = None if checkpoint is None else processor_checkpoint(checkpoint)
    created_at_ms = None if log is None else log.created_at_ms
    return lag_of(end, given, event_hub_created_at_ms=created_at_ms)


def _stalled_s(
    consumer: ConsumerKey,
    checkpoint: Checkpoint | None,
    log: HubLog | None,
    end: PartitionEnds | None,
    lag: Lag,
    unread: Unread,
    now: datetime,
) -> float | None:
    """As hosts mean it (``processor.host.pumps``): for so long there was backlog, and no step was made.

    There is backlog since the first event that is not processed was enqueued. Where no checkpoint is, nobody
    can tell: a host that began at the end of the log has none.
    """
    if checkpoint is None or log is None or end is None or not lag.events:
        return None
    number = _waiting_number(checkpoint, end)
    if number is None:
        return None
    enqueued = unread.get((consumer.event_hub, log.created_at_ms, checkpoint.partition_id, number))
    if enqueued is None:
        return None
    stalled_s = (now - max(checkpoint.updated_at, enqueued)).total_seconds()
    return stalled_s if stalled_s >= STALL_TIMEOUT_S else None


def _waiting_number(checkpoint: Checkpoint, partition: PartitionEnds) -> int | None:
    """The event that is to be processed next; None: it cannot be told."""
    if checkpoint.next_sequence_number is None:
        return None
    return max(checkpoint.next_sequence_number, partition.begin_sequence_number)
