"""Joins consumer groups with the ends of their logs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from tidegate.console.consumers.values import GroupProgress, GroupSummary, PartitionProgress
from tidegate.model.partition_ends import PartitionEnds
from tidegate.processor.checkpoint import ProcessorCheckpoint
from tidegate.processor.group_view import UNKNOWN_LAG, GroupView, Lag, total_of
from tidegate.processor.lease import LeaseState
from tidegate.processor.options import PartitionManagerOptions
from tidegate.sql import ConsumerKey

LEASE_DURATION_S: Final = PartitionManagerOptions().lease_duration_s
"""The hosts' default, as in ``tidegate checkpoint set``, because the lease table does not store it."""
STALL_TIMEOUT_S: Final = PartitionManagerOptions().effective_stall_timeout_s


Unread = Mapping[tuple[str, int, str, int], datetime]
"""Enqueued times by hub (in lower case), its creation time, partition and sequence number."""


@dataclass(frozen=True, slots=True)
class HubLog:
    """A hub's partitions at one moment."""

    name: str
    created_at_ms: int
    ends: Mapping[str, PartitionEnds]


def unread_of(
    groups: Mapping[ConsumerKey, GroupView], logs: Mapping[str, HubLog], now: datetime
) -> Iterator[tuple[str, int, str, int]]:
    """The events after checkpoints that have not moved for long, as keys of ``Unread``."""
    before = now - timedelta(seconds=STALL_TIMEOUT_S)
    for consumer, group in groups.items():
        log = logs.get(consumer.event_hub)
        if log is None:
            continue
        for partition_id, checkpoint in group.checkpoints.items():
            end = log.ends.get(partition_id)
            if end is None or checkpoint.moved_at is None or checkpoint.moved_at > before:
                continue
            number = _waiting_number(checkpoint, end)
            lag = group.lag(end, event_hub_created_at_ms=log.created_at_ms)
            if number is not None and lag.events:
                yield consumer.event_hub, log.created_at_ms, partition_id, number


def progress_of(
    consumer: ConsumerKey,
    group: GroupView,
    log: HubLog | None,
    unread: Unread,
    now: datetime,
    *,
    open_dead_letters: int,
) -> GroupProgress:
    """One consumer group with its sums. now: for the age of checkpoints."""
    ids = {*group.partition_ids, *(() if log is None else log.ends)}
    partitions = [
        _partition(consumer, partition_id, group, log, unread, now)
        for partition_id in sorted(ids, key=lambda each: (len(each), each))
    ]
    summary = GroupSummary(
        event_hub=consumer.event_hub if log is None else log.name,
        consumer_group=consumer.consumer_group,
        is_hub_here=log is not None,
        partition_count=len(partitions),
        owned_count=sum(each.is_owned for each in partitions),
        owner_count=len({each.owner for each in partitions if each.is_owned}),
        has_leases=bool(group.leases.leases),
        lag=total_of([each.lag for each in partitions]),
        stalled_count=sum(each.stalled_s is not None for each in partitions),
        beyond_log_count=sum(each.lag.is_beyond_log for each in partitions),
        moved_at=max((each.moved_at for each in group.checkpoints.values() if each.moved_at), default=None),
        open_dead_letters=open_dead_letters,
    )
    return GroupProgress(summary, partitions)


def _partition(
    consumer: ConsumerKey,
    partition_id: str,
    group: GroupView,
    log: HubLog | None,
    unread: Unread,
    now: datetime,
) -> PartitionProgress:
    checkpoint, lease = group.checkpoints.get(partition_id), group.lease(partition_id)
    end = None if log is None else log.ends.get(partition_id)
    lag = UNKNOWN_LAG
    if log is not None and end is not None:
        lag = group.lag(end, event_hub_created_at_ms=log.created_at_ms)
    return PartitionProgress(
        partition_id,
        lease,
        group.lease_age_s(partition_id),
        group.leases.state(partition_id, LEASE_DURATION_S) is LeaseState.EXPIRED,
        checkpoint,
        lag,
        _stalled_s(consumer, checkpoint, log, end, lag, unread, now),
    )


def _stalled_s(
    consumer: ConsumerKey,
    checkpoint: ProcessorCheckpoint | None,
    log: HubLog | None,
    end: PartitionEnds | None,
    lag: Lag,
    unread: Unread,
    now: datetime,
) -> float | None:
    """Seconds of backlog without progress, by the rule of hosts (``processor.host.pumps``); None: not
    stalled.

    Backlog exists since the first unprocessed event was enqueued. It is unknown without a checkpoint, because
    a host that started at the end of the log has none.
    """
    if checkpoint is None or checkpoint.moved_at is None or log is None or end is None or not lag.events:
        return None
    number = _waiting_number(checkpoint, end)
    if number is None:
        return None
    enqueued = unread.get((consumer.event_hub, log.created_at_ms, checkpoint.partition_id, number))
    if enqueued is None:
        return None
    stalled_s = (now - max(checkpoint.moved_at, enqueued)).total_seconds()
    return stalled_s if stalled_s >= STALL_TIMEOUT_S else None


def _waiting_number(checkpoint: ProcessorCheckpoint, partition: PartitionEnds) -> int | None:
    """The next event to process; None: unknown."""
    resume_point = checkpoint.resume_point
    return None if resume_point is None else max(resume_point, partition.begin_sequence_number)
