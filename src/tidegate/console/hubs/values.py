"""The namespace, and does to it.

Everything is done on the event loop and does not wait, but for deleting an event hub and what Capture has
written.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tidegate.console.frame.paging import Page
from tidegate.model.capture import CaptureSettings, CaptureStatistics, WindowEnd
from tidegate.model.hub_settings import HubSettings

HISTORY_SAMPLES: Final = 300
"""How many samples the service keeps of the whole namespace, one a second."""

RECENT_SAMPLES: Final = 60
"""How many it keeps of each event hub."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second, over about the last second."""

    incoming_events: float = 0.0
    incoming_bytes: float = 0.0
    outgoing_events: float = 0.0
    outgoing_bytes: float = 0.0
    throttled_requests: float = 0.0


@dataclass(frozen=True, slots=True)
class Sample:
    """The rates at one moment."""

    time_utc: datetime
    rates: Rates


@dataclass(frozen=True, slots=True)
class Disk:
    """Where the log is, as it was looked at lately; None: not yet, or it cannot be told."""

    log_bytes: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None

    @property
    def is_scarce(self) -> bool:
        """Whether less than a twentieth is free."""
        if self.free_bytes is None or self.total_bytes is None:
            return False
        return self.free_bytes < self.total_bytes / 20


@dataclass(frozen=True, slots=True)
class HubRow:
    """An event hub in a list."""

    name: str
    partition_count: int
    consumer_group_count: int
    retention_hours: int
    receivers: int
    """Open now, in all consumer groups."""
    rates: Rates
    recent: tuple[float, ...]
    """Events that came in per second, oldest first, ``RECENT_SAMPLES`` at most."""
    throttled_requests: int
    """Since the service started."""
    is_captured: bool
    capture_error: str
    """What keeps Capture from going on; empty: nothing does."""


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
    """Batches refused for the throughput units, since the service started."""
    throughput_units: int | None
    """None: no limit."""
    is_congested: bool
    """Whether producers are not read from, because the disk is behind."""
    disk: Disk
    failing_captures: tuple[str, ...]
    """Names of the hubs whose capture something keeps from going on."""

    @property
    def rates(self) -> Rates:
        """Now."""
        return self.history[-1].rates if self.history else Rates()


@dataclass(frozen=True, slots=True)
class ConsumerGroupRow:
    """A consumer group of an event hub."""

    name: str
    receivers: int
    """Open now."""
    partitions_read: int
    """Partitions with at least one of them."""


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition of an event hub."""

    partition_id: str
    begin_sequence_number: int
    """The first event held; where none is, the number that the next one gets."""
    last_sequence_number: int
    """-1 where no event was ever enqueued."""
    events_held: int
    stored_bytes: int
    last_enqueued_time: datetime | None
    incoming_events_per_s: float | None
    """None: nobody has looked for long enough."""
    receivers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub(HubSettings):
    """An event hub."""

    name: str
    created_at: datetime
    partition_count: int
    consumer_groups: tuple[ConsumerGroupRow, ...]
    capture: CaptureSettings | None
    capture_statistics: CaptureStatistics | None
    """None: it is not captured now."""
    rates: Rates
    recent: tuple[float, ...]
    """See ``HubRow.recent``."""
    events_held: int
    receivers: int
    last_enqueued_time: datetime | None
    throttled_requests: int


@dataclass(frozen=True, slots=True)
class CaptureFileRow:
    """A file that Capture has written of an event hub."""

    name: str
    """Below the destination."""
    destination: str
    """As the settings named it then."""
    partition_id: str
    written_at: datetime
    event_count: int | None
    """None: it cannot be told any more."""
    file_bytes: int | None
    """None as above."""
    window_start: datetime
    """The time in its name."""
    window_s: float
    """Seconds until the next window opened."""
    closed_by: WindowEnd


@dataclass(frozen=True, slots=True)
class PublisherRow:
    """A publisher of an event hub; counts are since the service started."""

    name: str
    """As it was last spelled."""
    is_own_address: bool
    """False: events that came to the hub's own address say that they are its; that proves nothing."""
    is_revoked: bool
    last_enqueued_time: datetime | None
    """None: not seen since the service started, or too long ago to be remembered."""
    partition_id: str | None
    """Of its last batch; None as above."""
    events: int
    event_bytes: int
    """As stored."""


@dataclass(frozen=True, slots=True)
class Publishers:
    """Publishers of an event hub, and what there are beside those on the page."""

    page: Page[PublisherRow]
    revoked: int
    """How many may not send."""
    own_max: int
    """How many with addresses of their own the service remembers, at most."""
    stated_max: int
    """How many names it remembers that only events say, at most."""
    forgotten: int
    """How often one fell out because more were seen."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads an event hub now."""

    consumer_group: str
    name: str | None
    """Its own name for itself; None: it gave none."""
    partition_count: int
    """Of how many partitions."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """What is lost with an event hub."""

    events_held: int
    stored_bytes: int
    partition_count: int
    last_enqueued_time: datetime | None
    consumer_groups: tuple[str, ...]
    readers: tuple[Reader, ...]
    policies: tuple[str, ...]
    """Names of its own policies: their keys are worth nothing afterwards."""
    is_captured: bool
    uncaptured_events: int
    """Events that are in no file of Capture; 0 where it is not captured."""
