"""A reader's view of a log: an immutable snapshot that the writer thread replaces as a whole.

A reader gets the view once and works on it; it never contains a batch that is not durable.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.storage.segment import Segment


@dataclass(frozen=True, slots=True)
class LogView:
    """The durable part of a log at one moment."""

    segments: tuple[Segment, ...]
    """Oldest first; the last is the active one. Empty if nothing was ever appended."""
    end_position: int
    """Durable bytes of the last segment."""
    next_sequence_number: int
    """One past the last durable event."""
    last_enqueued_time_ms: int | None
    """Milliseconds since 1970-01-01 UTC; None if no event was ever enqueued."""

    @property
    def stored_bytes(self) -> int:
        """Bytes of the segment files."""
        return sum(each.sealed_bytes or 0 for each in self.segments[:-1]) + self.end_position

    @property
    def begin_sequence_number(self) -> int:
        """The first event held; ``next_sequence_number`` if there is none."""
        return self.segments[0].base_sequence_number if self.segments else self.next_sequence_number
