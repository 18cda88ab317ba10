"""Options for reading and for holding leases, with the names of the classic EventProcessorHost.

Source of the defaults: EventProcessorOptions and PartitionManagerOptions of the .NET package
Microsoft.Azure.EventHubs.Processor 4.3 (batch 10, prefetch 300, receive time-out 60 s, lease 30 s, renewal
10 s), except where a field says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tidegate.client.receiver import PREFETCH_BYTES
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.position import EventPosition
from tidegate.processor.policies import FailurePolicy, PositionLostPolicy, check_positive

InitialPosition = EventPosition | Callable[[str], EventPosition]
"""One position for all partitions, or a function of the partition id."""

OnException = Callable[[Exception, str | None], None]
"""Called with (error, partition id or None) for every failure outside the handler's own calls."""


@dataclass(frozen=True, slots=True)
class EventProcessorOptions:
    """How each partition is read, and how its handler is called."""

    max_batch_size: int = 500
    """Events per call, at most (our choice; the classic host's 10 pays too much per event)."""
    max_transaction_events: int = 8000
    """With ``transactional=True``: events of the calls that share a transaction at most, while a partition is
    behind (our choice: then most of the time goes into rows). Slow calls are fewer: half a second's."""
    prefetch_count: int = 3000
    """Events fetched ahead per partition; at least ``max_batch_size`` (our choice: PREFETCH_EVENTS)."""
    prefetch_bytes: int = PREFETCH_BYTES
    """Bytes fetched ahead per partition; the only limit with batched delivery."""
    receive_timeout_s: float = 30.0
    """Seconds to wait for events before an empty call."""
    invoke_after_receive_timeout: bool = False
    """Whether the handler is called without events when none arrived within ``receive_timeout_s``."""
    initial_position: InitialPosition = field(default_factory=EventPosition.earliest)
    """Where a partition without a checkpoint starts. One that is added to the hub while the host runs starts
    at its beginning."""
    checkpoint_every_events: int | None = None
    """Checkpoint automatically after this many processed events; None: only when the handler does."""
    checkpoint_every_s: float | None = None
    """Checkpoint automatically this many seconds after the last one; None: as above."""
    on_position_lost: PositionLostPolicy = PositionLostPolicy.STOP
    failure_policy: FailurePolicy = field(default_factory=FailurePolicy)
    """For transactional processing. Otherwise an error of the handler is passed to its ``process_error``, and
    the batch is processed again."""
    on_exception: OnException | None = None
    close_timeout_s: float = 30.0
    """Seconds that a running handler call gets when its partition is closed, before it is cancelled."""

    def __post_init__(self) -> None:
        if self.max_batch_size < 1:
            raise InvalidArgumentError(f"max_batch_size must be at least 1, got {self.max_batch_size}.")
        if self.prefetch_count < self.max_batch_size:
            raise InvalidArgumentError(
                f"prefetch_count ({self.prefetch_count}) is less than max_batch_size "
                f"({self.max_batch_size}): no batch could ever be full.",
                next_step="Raise prefetch_count, or lower max_batch_size.",
            )
        for name in (
            "max_transaction_events",
            "prefetch_bytes",
            "receive_timeout_s",
            "close_timeout_s",
            "checkpoint_every_events",
            "checkpoint_every_s",
        ):
            check_positive(name, getattr(self, name))

    def position_of(self, partition_id: str) -> EventPosition:
        """Where a partition without a checkpoint starts."""
        position = self.initial_position
        return position if isinstance(position, EventPosition) else position(partition_id)


@dataclass(frozen=True, slots=True)
class PartitionManagerOptions:
    """How leases are held, and how partitions are shared."""

    lease_duration_s: float = 30.0
    """A lease expires if not renewed for this long; other hosts may then take it."""
    renew_interval_s: float = 10.0
    """How often leases are renewed; at most half the duration."""
    look_interval_s: float = 1.5
    """How often the group's leases are read, at most: released and requested partitions move within it (our
    choice). A reading is a query, a file, or two listings of blobs, which cost money."""
    startup_spread_s: float = 0.0
    """A host waits a random part of this before it first reads leases: spreads hosts that start together."""
    stall_timeout_s: float | None = None
    """A partition with events to process but no progress for this long is reported and restarted; None: twice
    the lease duration."""

    def __post_init__(self) -> None:
        check_positive("lease_duration_s", self.lease_duration_s)
        check_positive("renew_interval_s", self.renew_interval_s)
        check_positive("look_interval_s", self.look_interval_s)
        if self.renew_interval_s * 2 > self.lease_duration_s:
            raise InvalidArgumentError(
                f"renew_interval_s ({self.renew_interval_s}) is more than half of lease_duration_s "
                f"({self.lease_duration_s}): one late renewal would lose the lease.",
                next_step="Renew at least twice per lease.",
            )
        if self.startup_spread_s < 0:
            raise InvalidArgumentError(f"startup_spread_s must not be negative, got {self.startup_spread_s}.")
        check_positive("stall_timeout_s", self.stall_timeout_s)

    @property
    def effective_stall_timeout_s(self) -> float:
        """``stall_timeout_s``, or twice the lease duration."""
        return 2 * self.lease_duration_s if self.stall_timeout_s is None else self.stall_timeout_s
