"""What a host says about itself: frozen snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from tidegate.processor.lease import GroupKey


class PartitionState(StrEnum):
    """How an owned partition is doing."""

    STARTING = "starting"
    """Its handler or its receiver is being opened, for the first time or again."""
    RUNNING = "running"
    """Events are read and handled as they come."""
    STOPPED = "stopped"
    """An error stopped it; the host keeps the lease, so that no other host meets the same error."""
    STALLED = "stalled"
    """It had backlog and made no progress; it is being restarted."""


@dataclass(frozen=True, slots=True)
class PartitionStatistics:
    """One owned partition, at one moment."""

    partition_id: str
    state: PartitionState
    epoch: int
    """Of the lease; 0 in a store without epochs."""
    next_sequence_number: int | None
    """The resume point: the first event not yet processed; None while it is not known."""
    events_processed: int
    """Since this host got the partition; a batch that came again counts again."""
    last_progress_at: datetime | None
    """When a batch was last processed, aware; None: none was since this host got it."""
    error: Exception | None
    """What went wrong since the last progress, the latest; None where nothing did."""


@dataclass(frozen=True, slots=True)
class HostStatistics:
    """A host, at one moment."""

    host_name: str
    group: GroupKey
    partitions: Mapping[str, PartitionStatistics]
    """By partition id: those that the host owns and has a pump for."""

    @property
    def events_processed(self) -> int:
        """The sum over the partitions that are owned now."""
        return sum(partition.events_processed for partition in self.partitions.values())
