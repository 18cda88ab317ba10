"""Consumer groups as pages show them: leases, checkpoints and lag; and moves of checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """One partition of a consumer group."""

    partition_id: str
    owner: str | None
    """The host whose lease it is, run out or not; None: no host has it."""
    acquired_at: datetime | None
    renewed_at: datetime | None
    lease_age_s: float | None
    """Seconds since it was renewed, by the database's clock."""
    is_lease_over: bool
    """True: the owner has not renewed it for a lease's duration, so others may take it."""
    epoch: int | None
    checkpoint: int | None
    """Sequence number of the last processed event; -1: none yet; None: there is no checkpoint, or only an
    offset."""
    moved_at: datetime | None
    moved_by: str | None
    lag_events: int | None
    """Still to be read. None: unknown."""
    lag_s: float | None
    """Enqueued time of the last event minus that of the last processed one; None: unknown."""
    lost_events: int | None
    """Removed by retention before they were read."""
    is_beyond_log: bool
    """The checkpoint is not of this log."""
    stalled_s: float | None
    """For so many seconds it has had events to read and made no step; None: it is not stalled."""

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
    """False: nobody ever took a lease: a Spark pipeline, or a program that keeps checkpoints only."""
    lag_events: int
    """Of the partitions whose lag is known."""
    lag_s: float | None
    """The most of all partitions; None where one's is unknown."""
    lost_events: int
    stalled_count: int
    beyond_log_count: int
    moved_at: datetime | None
    """When a checkpoint was last moved."""
    open_dead_letters: int
    """Events that were put aside and are neither redriven nor discarded."""


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """A consumer group with all its partitions."""

    summary: GroupSummary
    partitions: Sequence[PartitionProgress]


class MoveTo(StrEnum):
    """Where checkpoints are moved to."""

    EARLIEST = "earliest"
    LATEST = "latest"
    SEQUENCE_NUMBER = "sequence-number"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """Which checkpoints are to be moved, and where to."""

    event_hub: str
    consumer_group: str
    partition_id: str | None
    """None: all partitions."""
    to: MoveTo
    sequence_number: int | None = None
    """Processing goes on with it (``SEQUENCE_NUMBER``)."""
    time: datetime | None = None
    """Processing goes on with the first event enqueued then or later (``TIME``)."""


@dataclass(frozen=True, slots=True)
class MoveStep:
    """One partition's checkpoint, before and after. Numbers are those that processing goes on with."""

    partition_id: str
    before: int | None
    """None: there is no checkpoint, or not one with a sequence number."""
    after: int
    is_comparable: bool
    """False: before and after cannot be compared, so it counts as a rewind."""
    owner: str | None
    """The host that has the partition now; None: nobody."""

    @property
    def events(self) -> int | None:
        """How many are skipped; negative: processed again; None: unknown."""
        return None if self.before is None or not self.is_comparable else self.after - self.before

    @property
    def is_rewind(self) -> bool:
        """Whether it goes back, or may."""
        return not self.is_comparable or (self.before is not None and self.after < self.before)


@dataclass(frozen=True, slots=True)
class MovePlan:
    """What a move would do: a dry run."""

    plan_id: str
    """For ``start_move``; kept for a while."""
    request: MoveRequest
    steps: Sequence[MoveStep]

    @property
    def skipped(self) -> int:
        """Events that nobody would process."""
        return sum(max(0, step.events or 0) for step in self.steps)

    @property
    def repeated(self) -> int:
        """Events that would be processed again."""
        return -sum(min(0, step.events or 0) for step in self.steps)

    @property
    def unknown_count(self) -> int:
        """Partitions of which neither is known."""
        return sum(step.events is None for step in self.steps)

    @property
    def owned_count(self) -> int:
        """Partitions that a host has now."""
        return sum(step.owner is not None for step in self.steps)

    @property
    def rewind_count(self) -> int:
        """Partitions that go back."""
        return sum(step.is_rewind for step in self.steps)
