"""A consumer group at one moment: its leases, its checkpoints, and its lag. For command line and console."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeVar

from tidegate.model.hub_properties import PartitionEnds
from tidegate.processor.checkpoint import ProcessorCheckpoint
from tidegate.processor.lease import GroupKey, Lease, LeaseSnapshot
from tidegate.processor.store import ProcessorStore

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GroupView:
    """The leases and checkpoints of a consumer group at one moment."""

    leases: LeaseSnapshot
    """With the store's time of the reading."""
    checkpoints: Mapping[str, ProcessorCheckpoint]
    """By partition id; a partition without one is absent."""

    @property
    def partition_ids(self) -> list[str]:
        """Partitions with a lease or a checkpoint, in numerical order."""
        return sorted({*self.leases.leases, *self.checkpoints}, key=lambda each: (len(each), each))

    def lease(self, partition_id: str) -> Lease | None:
        """The lease as stored, even if expired or released; None if the partition never had one."""
        return self.leases.leases.get(partition_id)

    def lease_age_s(self, partition_id: str) -> float:
        """Seconds since the lease was renewed, by the store's clock; 0 without a lease."""
        lease = self.lease(partition_id)
        return 0.0 if lease is None else max(0.0, (self.leases.now - lease.renewed_at).total_seconds())

    def owner(self, partition_id: str, *, lease_duration_s: float) -> str | None:
        """The host that owns the partition now; None if its lease is released, expired or missing."""
        lease = self.lease(partition_id)
        is_held = lease is not None and not lease.is_expired(self.leases.now, lease_duration_s)
        return lease.owner if lease is not None and is_held else None

    def lag(self, partition: PartitionEnds, *, event_hub_created_at_ms: int) -> Lag:
        """The group's lag in ``partition`` of the hub created at that time."""
        checkpoint = self.checkpoints.get(partition.partition_id)
        return lag_of(partition, checkpoint, event_hub_created_at_ms=event_hub_created_at_ms)


@dataclass(frozen=True, slots=True)
class KeptRow:
    """What official processors keep of one partition."""

    partition_id: str
    owner: str
    """Empty: the partition was released."""
    renewed_at: datetime | None
    """None: there is no lease."""
    sequence_number: int | None
    """Of the last processed event; None: there is no checkpoint."""
    checkpoint_at: datetime | None = None


def view_of_rows(
    rows: Iterable[KeptRow], now: datetime, *, event_hub_created_at_ms: int | None = None
) -> GroupView:
    """A group of official processors. now: by the clock that the times in its rows are of."""
    rows = list(rows)
    leases = {
        each.partition_id: Lease(each.partition_id, each.owner, 0, None, each.renewed_at, "")
        for each in rows
        if each.renewed_at is not None
    }
    checkpoints = {
        each.partition_id: ProcessorCheckpoint(
            each.partition_id,
            each.sequence_number,
            str(each.sequence_number),
            event_hub_created_at_ms=event_hub_created_at_ms,
            moved_at=each.checkpoint_at,
        )
        for each in rows
        if each.sequence_number is not None
    }
    return GroupView(LeaseSnapshot(leases, now), checkpoints)


async def view_group(store: ProcessorStore, group: GroupKey) -> GroupView:
    """Read a consumer group from a store. Raises what its ``list_…`` methods raise."""
    # Checkpoints first, so that none is newer than its lease.
    checkpoints = await store.list_checkpoints(group)
    return GroupView(await store.list_leases(group), checkpoints)


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a checkpoint is behind the end of its partition's log."""

    events: int | None
    """Events still to be read. None if the checkpoint has no sequence number or is not of this log."""
    seconds: float | None
    """Enqueued time of the log's last event minus that of the last processed event; 0 when caught up. None if
    nothing was processed yet or the checkpoint has no enqueued time."""
    lost_events: int | None
    """Events that retention removed before they were read; None as for ``events``."""
    is_beyond_log: bool = False
    """The checkpoint is beyond the log's end, or belongs to another hub of the same name."""


UNKNOWN_LAG: Final = Lag(None, None, None)
"""The lag if the log or the checkpoint's sequence number is unknown."""


def lag_of(
    partition: PartitionEnds,
    checkpoint: ProcessorCheckpoint | None,
    *,
    event_hub_created_at_ms: int | None = None,
) -> Lag:
    """The lag of one partition; without a checkpoint, all events held are still to be read.

    event_hub_created_at_ms: of the log's hub; None skips the comparison with the checkpoint's.
    """
    begin = partition.begin_sequence_number
    until = partition.next_sequence_number
    if checkpoint is None:
        return Lag(until - begin, 0.0 if begin == until else None, 0)
    stored_ms = checkpoint.event_hub_created_at_ms
    if None not in (stored_ms, event_hub_created_at_ms) and stored_ms != event_hub_created_at_ms:
        return Lag(None, None, None, is_beyond_log=True)
    if checkpoint.sequence_number is None:
        is_at_end = checkpoint.offset is not None and checkpoint.offset == partition.last_enqueued_offset
        return Lag(0, 0.0, 0) if is_at_end else Lag(None, _seconds(partition, checkpoint), None)
    # At -1 nothing is processed yet, and processing starts with the first event held: none is lost.
    resume_point = checkpoint.sequence_number + 1 if checkpoint.sequence_number >= 0 else begin
    behind = partition.behind(resume_point)
    if behind is None:
        return Lag(None, None, None, is_beyond_log=True)
    events, lost_events = behind
    return Lag(events, _seconds(partition, checkpoint) if events else 0.0, lost_events)


def total_of(lags: Sequence[Lag]) -> Lag:
    """The lag of several partitions: the sum of the events, and the maximum of the seconds.

    Each is None if one partition's is unknown, because that of the others would understate the lag.
    """
    seconds = _known([lag.seconds for lag in lags])
    events, lost_events = _known([lag.events for lag in lags]), _known([lag.lost_events for lag in lags])
    return Lag(
        None if events is None else sum(events),
        None if seconds is None else max(seconds, default=None),
        None if lost_events is None else sum(lost_events),
        any(lag.is_beyond_log for lag in lags),
    )


def _known(values: Sequence[T | None]) -> Sequence[T] | None:
    """The values; None if one of them is unknown."""
    known = [each for each in values if each is not None]
    return known if len(known) == len(values) else None


def _seconds(partition: PartitionEnds, checkpoint: ProcessorCheckpoint) -> float | None:
    if checkpoint.enqueued_time_ms is None or partition.last_enqueued_time_ms is None:
        return None
    return max(0, partition.last_enqueued_time_ms - checkpoint.enqueued_time_ms) / 1000
