"""Values for pages: leases, checkpoints and lag of consumer groups, and moves of checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tidegate.model.position import EventPosition
from tidegate.processor.checkpoint import ProcessorCheckpoint
from tidegate.processor.group_view import Lag
from tidegate.processor.lease import Lease
from tidegate.processor.moves import MovePlan


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


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """A consumer group with all its partitions."""

    summary: GroupSummary
    partitions: Sequence[PartitionProgress]


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """Which checkpoints to move, and where to."""

    event_hub: str
    consumer_group: str
    partition_id: str | None
    """None: all partitions."""
    position: EventPosition
    """Where processing continues: earliest, latest, a sequence number or a time."""


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """A dry run, kept for a limited time."""

    plan_id: str
    request: MoveRequest
    plan: MovePlan
