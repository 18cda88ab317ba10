"""Snapshots of a host and its partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from tidegate.processor.lease import GroupKey
from tidegate.processor.store import RelayStatistics


class PartitionState(StrEnum):
    """The state of an owned partition."""

    STARTING = "starting"
    """Its handler or receiver is being opened, for the first time or again."""
    RUNNING = "running"
    """Events are read and handled."""
    PAUSED = "paused"
    """What its handler calls does not answer, or too many events failed; it continues by itself."""
    STOPPED = "stopped"
    """An error stopped it; the host keeps the lease, because another host would get the same error."""
    STALLED = "stalled"
    """It had backlog and made no progress; it is being restarted."""


@dataclass(slots=True)
class HostTotals:
    """What a host counts, over all partitions that it has owned."""

    events: int = 0
    dead_letters: int = 0


@dataclass(frozen=True, slots=True)
class PartitionStatistics:
    """One owned partition, at one moment."""

    partition_id: str
    state: PartitionState
    epoch: int
    """The lease's epoch; 0 in a store without epochs."""
    next_sequence_number: int | None
    """The resume point: the first event not yet processed; None while unknown."""
    events_processed: int
    """Since this host acquired the partition; a repeated batch counts again."""
    last_progress_at: datetime | None
    """When a batch was last processed, aware; None if none was since this host acquired the partition."""
    error: Exception | None
    """The latest error since the last progress, if any."""


@dataclass(frozen=True, slots=True)
class HostStatistics:
    """A host, at one moment."""

    host_name: str
    group: GroupKey
    partitions: Mapping[str, PartitionStatistics]
    """By partition id: the partitions that have a pump."""
    events_total: int = 0
    """Events processed since the host was created, over all partitions; a repeated batch counts again."""
    dead_letters_total: int = 0
    """Dead letters that it has written since then, with parked events; only transactions write any."""
    published: RelayStatistics | None = None
    """What its transactions have published; None: its store cannot publish, or it is not registered."""

    @property
    def events_processed(self) -> int:
        """The sum over the partitions owned now."""
        return sum(partition.events_processed for partition in self.partitions.values())
