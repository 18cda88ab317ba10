"""What a host's process reports: its statistics as plain values, which travel between processes as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from tidegate.processor.host.host import EventProcessorHost


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """An owned partition."""

    partition: str
    state: str
    """A ``PartitionState``."""
    next_sequence_number: int | None
    """The resume point; None while unknown."""
    last_progress_s: float | None
    """When a batch was last processed, in seconds since 1970-01-01 UTC; None: not since it was acquired."""
    error: str | None
    """The latest error since the last progress."""


@dataclass(frozen=True, slots=True)
class HostReport:
    """A host, at one moment."""

    host: str
    events_total: int
    """Events processed since its process started."""
    dead_letters_total: int
    """Dead letters written since then."""
    event_hub: str
    consumer_group: str
    partitions: tuple[PartitionReport, ...]
    outbox_events: int = 0
    """Published events that wait to be sent."""
    relayed_total: int = 0
    """Published events in their hubs since its process started."""
    outbox_error: str | None = None
    """Why they wait."""

    @classmethod
    def of(cls, host: EventProcessorHost) -> HostReport:
        """The report of a host, with the names that it was given: those of the service's metrics."""
        statistics = host.statistics()
        published = statistics.published
        return cls(
            statistics.host_name,
            statistics.events_total,
            statistics.dead_letters_total,
            host.event_hub,
            host.consumer_group,
            tuple(
                PartitionReport(
                    each.partition_id,
                    each.state.value,
                    each.next_sequence_number,
                    None if each.last_progress_at is None else each.last_progress_at.timestamp(),
                    None if each.error is None else str(each.error),
                )
                for each in statistics.partitions.values()
            ),
            0 if published is None else published.waiting,
            0 if published is None else published.relayed_total,
            None if published is None or published.error is None else str(published.error),
        )


ENCODER: Final = msgspec.json.Encoder()
DECODER: Final = msgspec.json.Decoder(HostReport)
"""A report as one line of JSON, and back."""
