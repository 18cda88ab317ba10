"""Values for pages of the namespace, in addition to those of ``tidegate.broker``."""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from tidegate.broker import (
    EventHubDescription,
    EventHubStatistics,
    PublisherActivity,
)
from tidegate.model.capture import CaptureStatistics
from tidegate.model.partition_ends import PartitionEnds

HISTORY_SAMPLES: Final = 300
"""Samples kept of the whole namespace, one a second."""

RECENT_SAMPLES: Final = 60
"""Samples kept of each event hub."""

_PARTITION_SAMPLES: Final = 11


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second, over about the last second."""

    incoming_events: float = 0.0
    incoming_bytes: float = 0.0
    outgoing_events: float = 0.0
    outgoing_bytes: float = 0.0
    throttled_requests: float = 0.0


NO_RATES: Final = Rates()


@dataclass(frozen=True, slots=True)
class Sample:
    """The rates at one moment."""

    time_utc: datetime
    rates: Rates


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk of the log, as last measured; None: not yet measured, or unknown."""

    log_bytes: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None

    @property
    def is_scarce(self) -> bool:
        """Whether less than a twentieth is free."""
        if self.free_bytes is None or self.total_bytes is None:
            return False
        return self.free_bytes < self.total_bytes / 20


@dataclass(slots=True)
class HubSamples:
    """The samples of one event hub."""

    counts: EventHubStatistics
    rates: Rates = NO_RATES
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_SAMPLES))
    """Incoming events per second, oldest first."""
    watched_until: float = float("-inf")
    """Monotonic time until which each of its partitions is sampled."""
    partitions: deque[tuple[float, array[int]]] = field(
        default_factory=lambda: deque(maxlen=_PARTITION_SAMPLES)
    )
    """Monotonic time, and the next sequence number of each partition."""


@dataclass(frozen=True, slots=True)
class HubRow:
    """An event hub in a list."""

    description: EventHubDescription
    samples: HubSamples
    receivers: int
    """Open now, in all consumer groups."""
    capture: CaptureStatistics | None
    """None: not captured now."""

    @property
    def name(self) -> str:
        """The name as its creator spelled it."""
        return self.description.name


@dataclass(frozen=True, slots=True)
class Overview:
    """The whole namespace at one moment."""

    history: tuple[Sample, ...]
    """Oldest first, ``HISTORY_SAMPLES`` at most; the last one is now."""
    hub_count: int
    partition_count: int
    connections: int
    """AMQP connections that are open, over all transports."""
    receivers: int
    throttled_requests: int
    """Batches refused because of throughput units since the service started."""
    throughput_units: int | None
    """None: no limit."""
    is_congested: bool
    """Whether reading from producers is paused because the disk is too slow."""
    disk: Disk
    failing_captures: tuple[str, ...]
    """Names of the hubs whose capture is failing."""

    @property
    def rates(self) -> Rates:
        """The current rates."""
        return self.history[-1].rates if self.history else Rates()


@dataclass(frozen=True, slots=True)
class ConsumerGroupRow:
    """A consumer group of an event hub."""

    name: str
    receivers: int
    """Open now."""
    partitions_read: int
    """Partitions with at least one open receiver."""


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition of an event hub."""

    ends: PartitionEnds
    stored_bytes: int
    incoming_events_per_s: float | None
    """None: not measured for long enough yet."""
    receivers: int


@dataclass(frozen=True, slots=True)
class Hub(HubRow):
    """An event hub."""

    groups: tuple[ConsumerGroupRow, ...]
    events_held: int
    last_enqueued_ms: int | None


@dataclass(frozen=True, slots=True)
class PublisherRow:
    """A publisher of an event hub."""

    name: str
    """As it was last spelled."""
    seen: PublisherActivity | None
    """None: not seen since the service started, or forgotten."""
    is_revoked: bool

    @property
    def is_own_address(self) -> bool:
        """False: events sent to the hub's own address claim to be from it, without proof."""
        return self.seen is None or self.seen.is_own_address


@dataclass(frozen=True, slots=True)
class Reader:
    """A current reader of an event hub."""

    consumer_group: str
    name: str | None
    """The name that it gave itself, if any."""
    partition_count: int
    """Number of partitions that it reads."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """What deleting an event hub removes."""

    events_held: int
    stored_bytes: int
    partition_count: int
    last_enqueued_ms: int | None
    consumer_groups: tuple[str, ...]
    readers: tuple[Reader, ...]
    policies: tuple[str, ...]
    """Names of its own policies, whose keys stop working."""
    is_captured: bool
    uncaptured_events: int
    """Events that are in no capture file; 0 if the hub is not captured."""
