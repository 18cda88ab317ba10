"""What a client is told about hubs and partitions, and about events that could not be sent: values."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from tidegate.model.errors import TidegateError
from tidegate.model.hub_settings import HubSettings


@dataclass(frozen=True, slots=True)
class EventHubProperties(HubSettings):
    """An event hub as its service describes it."""

    name: str
    created_at: datetime
    """Aware, in UTC."""
    partition_ids: tuple[str, ...]
    """In the order of their numbers: "0", "1", …"""


@dataclass(frozen=True, slots=True)
class PolicyProperties:
    """A shared access policy of a Tidegate."""

    name: str
    event_hub: str | None
    """The hub that it is for; None: the whole namespace."""
    claims: tuple[str, ...]
    """Of Send, Listen and Manage."""
    primary_key: str | None = field(default=None, repr=False)
    secondary_key: str | None = field(default=None, repr=False)
    """Worth the same; None where policies are listed."""


@dataclass(frozen=True, slots=True)
class ThroughputProperties:
    """What a Tidegate's namespace may take in and give out, and what that refused since the service
    started.
    """

    units: int | None
    """Throughput units; None: no limit."""
    throttled_requests: int
    throttled_events: int
    throttled_bytes: int
    """Batches that were refused with ServerBusyError, and what was in them."""
    delayed_deliveries: int
    """Times that a receiver was made to wait."""


@dataclass(frozen=True, slots=True)
class FailedEvents:
    """Events of one batch that were finally not acknowledged."""

    partition_id: str
    error: TidegateError
    """Why. After a BrokenError or an OperationTimeoutError the service may nevertheless have stored them."""
    events: tuple[bytes, ...] = field(repr=False)
    """Encoded, in the order they were given; ``tidegate.wire.event_codec.decode_event`` reads them."""


class SendFailedError(TidegateError):
    """Buffered events were finally not acknowledged; ``failed`` holds them, with the reason of each batch."""

    def __init__(self, failed: tuple[FailedEvents, ...]) -> None:
        count = sum(len(batch.events) for batch in failed)
        partitions = ", ".join(sorted({batch.partition_id for batch in failed}))
        super().__init__(
            f"{count} events for partition {partitions} were not acknowledged: {failed[0].error}",
            next_step="They are in this error's failed attribute; send them again or save them.",
        )
        self.failed = failed
        """One item per batch, in the order of failing."""
