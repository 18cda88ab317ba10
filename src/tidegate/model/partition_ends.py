"""``PartitionEnds``: where a partition's log begins and ends, as shared by all packages."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tidegate.model.times import time_of


@dataclass(frozen=True, slots=True)
class PartitionEnds:
    """Where a partition's log begins and ends, at one moment: ``[begin_…, next_sequence_number)``."""

    event_hub: str
    partition_id: str
    begin_sequence_number: int
    """The first event still held; ``next_sequence_number`` if the partition holds none."""
    next_sequence_number: int
    """One past the last event: the number that the next event gets."""
    last_enqueued_offset: str = "-1"
    """"-1" if no event was ever enqueued."""
    last_enqueued_time_ms: int | None = None
    """Milliseconds since 1970-01-01 UTC; None if no event was ever enqueued."""

    @property
    def last_enqueued_sequence_number(self) -> int:
        """-1 if no event was ever enqueued."""
        return self.next_sequence_number - 1

    @property
    def last_enqueued_time(self) -> datetime | None:
        """Aware, in UTC; None if no event was ever enqueued."""
        return None if self.last_enqueued_time_ms is None else time_of(self.last_enqueued_time_ms)

    @property
    def is_empty(self) -> bool:
        """Whether the partition holds no event: none was ever enqueued, or retention removed all."""
        return self.begin_sequence_number >= self.next_sequence_number
