"""Consumer groups as pages show them: leases and checkpoints joined with the ends of the log. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple, TypeGuard

from tidegate.model.hub_properties import PartitionEnds
from tidegate.model.times import time_of
from tidegate.processor.checkpoint import ProcessorCheckpoint
from tidegate.processor.group_view import UNKNOWN_LAG, GroupView, Lag, total_of
from tidegate.processor.lease import Lease, LeaseSnapshot, LeaseState
from tidegate.processor.options import PartitionManagerOptions
from tidegate.sql import ConsumerKey

LEASE_DURATION_S: Final = PartitionManagerOptions().lease_duration_s
"""The hosts' default, as in ``tidegate checkpoint set``, because the lease table does not store it."""
KEPT_LEASE_DURATION_S: Final = 120.0
"""After which official processors take a partition (.NET's default, the shortest; they renew every 30 s)."""

STALL_TIMEOUT_S: Final = PartitionManagerOptions().effective_stall_timeout_s


@dataclass(frozen=True, slots=True)
class HubLog:
    """A hub's partitions at one moment."""

    name: str
    created_at_ms: int
    consumer_groups: frozenset[str]
    """As ``ConsumerKey`` writes them."""
    ends: Mapping[str, PartitionEnds | None]
    """By partition id; None: it cannot be read."""

    def lag(self, group: GroupView, partition_id: str) -> Lag:
        """A group's lag in one of the partitions."""
        end = self.ends.get(partition_id)
        return UNKNOWN_LAG if end is None else group.lag(end, event_hub_created_at_ms=self.created_at_ms)


def of_this_hub(consumer: ConsumerKey, group: GroupView, log: HubLog) -> GroupView | None:
    """The group as the hub's own users see it: without leases and checkpoints of an earlier hub of its name.

    Of such a checkpoint they see that the partition has one, because hosts refuse it. None: there is nothing
    of this hub, nor has it such a consumer group.
    """
    created_at = time_of(log.created_at_ms)

    # A host that still renews its lease keeps others from the partition, whatever hub it was started for.
    leases = {each: lease for each, lease in group.leases.leases.items() if lease.renewed_at >= created_at}
    checkpoints = group.checkpoints.items()
    own = {each: found for each, found in checkpoints if found.is_of_hub(log.created_at_ms)}
    if not (leases or own or consumer.consumer_group in log.consumer_groups):
        return None
    others = {
        each: ProcessorCheckpoint(each, None, event_hub_created_at_ms=found.event_hub_created_at_ms)
        for each, found in group.checkpoints.items()
        if each not in own and each in log.ends
    }
    return GroupView(LeaseSnapshot(leases, group.leases.now), {**own, **others})


class Place(NamedTuple):
    """A consumer group where it is kept."""

    consumer: ConsumerKey
    database: str
    """Its name; empty: in the service."""


UnreadKey = tuple[str, int, str, int]
"""An event: its hub (in lower case), the hub's creation time, partition and sequence number."""


def unread_of(
    groups: Mapping[Place, GroupView], logs: Mapping[str, HubLog], now: datetime
) -> Iterator[UnreadKey]:
    """The first unread events whose enqueued times are needed: where there is no checkpoint, or it lacks the
    time of its own event, or has not moved for long."""
    before = now - timedelta(seconds=STALL_TIMEOUT_S)
    for (consumer, _), group in groups.items():
        log = logs.get(consumer.event_hub)
        if log is None:
            continue
        for partition_id in log.ends:
            checkpoint = group.checkpoints.get(partition_id)
            if _is_time_known(checkpoint) and (checkpoint.moved_at is None or checkpoint.moved_at > before):
                continue
            unread = _first_unread(consumer, log, partition_id, checkpoint)
            if unread is not None and log.lag(group, partition_id).events:
                yield unread


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """One partition of a consumer group."""

    partition_id: str
    lease: Lease | None
    """None if there never was one."""
    lease_age_s: float
    """Seconds since it was renewed."""
    is_lease_over: bool
    """True: the lease has expired, so other hosts may acquire it."""
    checkpoint: ProcessorCheckpoint | None
    lag: Lag
    stalled_s: float | None
    """Seconds of backlog without progress; None: not stalled."""

    @property
    def owner(self) -> str | None:
        """The host of the lease, even if it has expired; None without one."""
        return None if self.lease is None else self.lease.owner or None

    @property
    def is_owned(self) -> bool:
        """Whether a host owns it now."""
        return self.owner is not None and not self.is_lease_over

    @property
    def is_trouble(self) -> bool:
        """Whether it needs attention."""
        return self.stalled_s is not None or self.lag.is_beyond_log or bool(self.lag.lost_events)


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A consumer group: sums over its partitions."""

    event_hub: str
    """As the service spells it, if it has a hub of this name."""
    consumer_group: str
    is_hub_here: bool
    """False: this service has no such hub, so its log is unknown."""
    partition_count: int
    owned_count: int
    """Partitions that a host owns now."""
    owner_count: int
    """Hosts that own a partition."""
    has_leases: bool
    """False for a Spark pipeline, or a program that only keeps checkpoints."""
    lag: Lag
    """The total of all partitions."""
    stalled_count: int
    beyond_log_count: int
    moved_at: datetime | None
    """When a checkpoint was last moved."""
    open_dead_letters: int
    """Dead letters that are neither redriven nor discarded."""
    new_dead_letters: int
    """Those of them that failed within the last hour."""
    is_kept: bool
    """Whether official processors keep it in the service, and not hosts in a database."""
    database: str
    """The name of the database that hosts or pipelines keep it in; empty: none."""
    reader_count: int = 0
    """Open receivers, if nothing keeps a lease or a checkpoint."""
    is_group_gone: bool = False
    """Whether its hub is here, without such a consumer group."""

    @property
    def is_begun(self) -> bool:
        """Whether anything keeps a lease or a checkpoint of it."""
        return self.is_kept or bool(self.database)


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """A consumer group with all its partitions."""

    summary: GroupSummary
    partitions: Sequence[PartitionProgress]


def progress_of(
    consumer: ConsumerKey,
    group: GroupView,
    log: HubLog | None,
    unread: Mapping[UnreadKey, datetime],
    now: datetime,
    *,
    open_dead_letters: int = 0,
    new_dead_letters: int = 0,
    is_kept: bool = False,
    database: str = "",
) -> GroupProgress:
    """One consumer group with its sums. unread: enqueued times. now: for the age of checkpoints. is_kept,
    database: see ``GroupSummary``."""
    lease_duration_s = KEPT_LEASE_DURATION_S if is_kept else LEASE_DURATION_S

    def partition(partition_id: str) -> PartitionProgress:
        checkpoint = group.checkpoints.get(partition_id)
        lag = UNKNOWN_LAG if log is None else log.lag(group, partition_id)
        stalled_s = None
        if lag.events and log is not None:
            first = _first_unread(consumer, log, partition_id, checkpoint)
            waits_since = None if first is None else unread.get(first)
            stalled_s = _stalled_s(checkpoint, waits_since, now)
            if lag.seconds is None and waits_since is not None:
                # Not known by the last processed event: then by how long the first unread one waits.
                lag = replace(lag, seconds=max(0.0, (now - waits_since).total_seconds()))
        return PartitionProgress(
            partition_id,
            group.lease(partition_id),
            group.lease_age_s(partition_id),
            group.leases.state(partition_id, lease_duration_s) is LeaseState.EXPIRED,
            checkpoint,
            lag,
            stalled_s,
        )

    ids = {*group.partition_ids, *(() if log is None else log.ends)}
    partitions = [partition(each) for each in sorted(ids, key=lambda each: (len(each), each))]
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
        new_dead_letters=new_dead_letters,
        is_kept=is_kept,
        database=database,
        is_group_gone=log is not None and consumer.consumer_group not in log.consumer_groups,
    )
    return GroupProgress(summary, partitions)


def unbegun_summary(
    event_hub: str, consumer_group: str, partition_count: int, events: int | None, reader_count: int
) -> GroupSummary:
    """A group without any lease or checkpoint. events: all that the hub has; None: not known."""
    return GroupSummary(
        event_hub=event_hub,
        consumer_group=consumer_group,
        is_hub_here=True,
        partition_count=partition_count,
        owned_count=0,
        owner_count=0,
        has_leases=False,
        lag=Lag(events, None, 0),
        stalled_count=0,
        beyond_log_count=0,
        moved_at=None,
        open_dead_letters=0,
        new_dead_letters=0,
        is_kept=False,
        database="",
        reader_count=reader_count,
    )


def _stalled_s(
    checkpoint: ProcessorCheckpoint | None, unread_since: datetime | None, now: datetime
) -> float | None:
    """Seconds of backlog without progress, by the rule of hosts (``processor.host.watchdog``); None: not
    stalled.

    unread_since: when the first unprocessed event was enqueued; backlog exists since then. It is unknown
    without a checkpoint, because a host that started at the end of the log has none.
    """
    if checkpoint is None or checkpoint.moved_at is None or unread_since is None:
        return None
    stalled_s = (now - max(checkpoint.moved_at, unread_since)).total_seconds()
    return stalled_s if stalled_s >= STALL_TIMEOUT_S else None


def _is_time_known(checkpoint: ProcessorCheckpoint | None) -> TypeGuard[ProcessorCheckpoint]:
    return checkpoint is not None and checkpoint.enqueued_time_ms is not None


def _first_unread(
    consumer: ConsumerKey, log: HubLog, partition_id: str, checkpoint: ProcessorCheckpoint | None
) -> UnreadKey | None:
    resume_point, end = 0 if checkpoint is None else checkpoint.resume_point, log.ends.get(partition_id)
    if resume_point is None or end is None:
        return None
    number = max(resume_point, end.begin_sequence_number)
    return consumer.event_hub, log.created_at_ms, partition_id, number
