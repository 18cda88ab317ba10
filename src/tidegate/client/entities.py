"""Properties of policies, namespaces and backups, and events that could not be sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from tidegate.model.errors import TidegateError


@dataclass(frozen=True, slots=True)
class PolicyProperties:
    """A shared access policy (Tidegate)."""

    name: str
    event_hub: str | None
    """The policy's hub; None for a policy of the namespace."""
    claims: tuple[str, ...]
    """Of Send, Listen and Manage."""
    primary_key: str | None = field(default=None, repr=False)
    secondary_key: str | None = field(default=None, repr=False)
    """Both keys are valid; None in lists of policies."""


@dataclass(frozen=True, slots=True)
class ThroughputProperties:
    """The throughput limit of a namespace (Tidegate), and how often it applied since the service started."""

    units: int | None
    """Throughput units; None for no limit."""
    throttled_requests: int
    throttled_events: int
    throttled_bytes: int
    """Batches refused with ServerBusyError, and their events and bytes."""
    delayed_deliveries: int
    """How often a receiver was delayed."""


@dataclass(frozen=True, slots=True)
class StatisticsProperties:
    """Counts of an event hub since the service started, and its size now (Tidegate)."""

    incoming_events: int
    incoming_bytes: int
    outgoing_events: int
    outgoing_bytes: int
    incoming_requests: int
    """Batches, including refused ones."""
    throttled_requests: int
    """Batches refused for the throughput units."""
    stored_bytes: int
    """What the files of its log take."""


@dataclass(frozen=True, slots=True)
class BackupProperties:
    """A backup of a namespace (Tidegate), on the service's machine."""

    name: str
    place: str
    """Its directory, from which a service can be started."""
    state: str
    """``copying``, ``complete`` or ``failed``; nothing is left of one that failed."""
    partition_count: int | None
    """None, here and below: it was made before the service was last started."""
    event_count: int | None
    bytes_total: int | None
    bytes_copied: int | None
    failure: str | None
    """Why it failed."""


@dataclass(frozen=True, slots=True)
class FailedEvents:
    """Events of one batch that could not be sent."""

    partition_id: str
    error: TidegateError
    """The reason. After BrokenError or OperationTimeoutError the service may have stored them."""
    events: tuple[bytes, ...] = field(repr=False)
    """Encoded, in sending order; ``tidegate.wire.event_codec.decode_event`` decodes them."""


class SendFailedError(TidegateError):
    """Buffered events could not be sent; ``failed`` holds them, with the reason of each batch."""

    def __init__(self, failed: tuple[FailedEvents, ...]) -> None:
        count = sum(len(batch.events) for batch in failed)
        partitions = ", ".join(sorted({batch.partition_id for batch in failed}))
        super().__init__(
            f"{count} events for partition {partitions} were not acknowledged: {failed[0].error}",
            next_step="Send them again or save them: they are in the attribute failed.",
        )
        self.failed = failed
        """One item per batch, in order of failure."""


@dataclass(frozen=True, slots=True)
class ConsumerProperties:
    """What an official processor keeps in the service of one partition and consumer group."""

    consumer_group: str
    """In lower case."""
    store: str
    """ACCOUNT/CONTAINER."""
    namespace: str
    """The host name by which its processors reach the service."""
    partition_id: str
    owner: str
    """The processor that has claimed it last; empty: none."""
    renewed_at: datetime | None
    """When, in UTC; None: it was never claimed."""
    lease_age_ms: int | None
    """Milliseconds since then, by the service's clock."""
    sequence_number: int | None
    """Of the last processed event; None: there is no checkpoint."""
    checkpoint_at: datetime | None
    """When the checkpoint was written, in UTC."""
    lag_events: int | None
    """Events still to be read; None: the checkpoint is of another log."""
    lost_events: int | None
    """Events that retention removed before they were read; None as above."""
