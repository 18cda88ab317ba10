"""Consumer groups as pages show them: leases, checkpoints and lag; and moves of checkpoints."""

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
    """None: no host ever had one."""
    lease_age_s: float
    """Seconds since it was renewed."""
    is_lease_over: bool
    """True: the lease has expired, so other hosts may acquire it."""
    checkpoint: ProcessorCheckpoint | None
    lag: Lag
    stalled_s: float | None
    """Seconds for which it has had events to read without progress; None: not stalled."""

    @property
    def owner(self) -> str | None:
        """The host whose lease it is, over or not; None: no host has it."""
        return None if self.lease is None else self.lease.owner or None

    @property
    def is_owned(self) -> bool:
        """Whether a host has it now."""
        return self.owner is not None and not self.is_lease_over


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A consumer group: sums over its partitions."""

    event_hub: str
    """As the service spells it, where it has a hub of this name."""
    consumer_group: str
    is_hub_here: bool
    """False: this service has no such hub, so nothing is known of the log."""
    partition_count: int
    owned_count: int
    """Partitions that a host has now."""
    owner_count: int
    """Hosts that have any."""
    has_leases: bool
    """False: no host has ever held a lease: a Spark pipeline, or a program that keeps checkpoints only."""
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
    """Which checkpoints are to be moved, and where to."""

    event_hub: str
    consumer_group: str
    partition_id: str | None
    """None: all partitions."""
    position: EventPosition
    """Processing continues with it: earliest, latest, a sequence number or a time."""


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """A dry run, kept for a while."""

    plan_id: str
    request: MoveRequest
    plan: MovePlan
