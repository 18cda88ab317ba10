"""Which events go into a partition's next file: until size or time is reached first. Does no I/O.

Time is the events' enqueued time or, once there is none left to read, the clock's. So a service that was
stopped, or could not reach its destination, later writes the files that it would have written then, named for
the same times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from tidegate.model.capture import CaptureSettings
from tidegate.model.limits import CAPTURE_EVENT_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """When a file is closed."""

    size_bytes: int
    """Includes the event that reaches it."""
    time_ms: int
    """Most milliseconds of enqueued time that one file covers."""
    is_empty_skipped: bool
    event_overhead_bytes: int = CAPTURE_EVENT_OVERHEAD_BYTES
    """Counted for each event, besides its bytes as stored."""

    @classmethod
    def of(cls, settings: CaptureSettings) -> WindowLimits:
        """As a hub's settings say."""
        return cls(settings.size_window_bytes, settings.time_window_s * 1000, settings.is_empty_skipped)


@dataclass(frozen=True, slots=True)
class ClosedWindow:
    """The content of one file."""

    start_ms: int
    """When the window opened: milliseconds since 1970-01-01 UTC."""
    start_sequence_number: int
    until_sequence_number: int
    """Equal to the start in a file without events. Numbers missing in between were given up by a repair."""
    event_bytes: int
    """As stored."""
    next_start_ms: int
    """When the next window opens."""
    is_full: bool = False
    """True if size closed it, False if time did."""


class Window:
    """The open window of a partition. Add batches in order; once it is ``closed``, create the next."""

    def __init__(self, limits: WindowLimits, *, start_sequence_number: int, start_ms: int | None) -> None:
        """start_ms: when it opened; None: with its first event ("runs automatically when you send your first
        event", Azure "Event Hubs Capture", 2017-08-21).
        """
        self.limits = limits
        self.start_sequence_number = start_sequence_number
        self.until_sequence_number = start_sequence_number
        """The next event to add."""
        self.start_ms = start_ms
        self.event_bytes = 0
        self._size_bytes = 0  # with the overhead
        self.missing_events = 0
        """Sequence numbers that the log no longer held when they were next."""
        self.closed: ClosedWindow | None = None

    @property
    def is_empty(self) -> bool:
        return self.event_bytes == 0

    def skip_to(self, sequence_number: int) -> None:
        """Note that the log no longer holds anything before ``sequence_number``."""
        missing = sequence_number - self.until_sequence_number
        if missing > 0:
            self.missing_events += missing
            self.until_sequence_number = sequence_number
            if self.is_empty:
                self.start_sequence_number = sequence_number

    def add_batch(self, base_sequence_number: int, lengths: Sequence[int], enqueued_time_ms: int) -> None:
        """Add the events of a record batch that are next, as many as fit.

        A batch may begin before ``until_sequence_number``. Does nothing once ``closed``.
        """
        if self.closed is not None:
            return
        self.skip_to(base_sequence_number)
        if self.start_ms is None:
            self.start_ms = enqueued_time_ms
        end_ms = self.start_ms + self.limits.time_ms
        if enqueued_time_ms >= end_ms:
            if not self.is_empty:
                self._close(end_ms)
                return
            self.start_ms = self._grid_point(enqueued_time_ms)
        skipped = self.until_sequence_number - base_sequence_number
        due = lengths[skipped:] if skipped else lengths
        size, overhead = sum(due), self.limits.event_overhead_bytes
        if self._size_bytes + size + overhead * len(due) >= self.limits.size_bytes:
            # Split the batch after the event that reaches the size.
            free = self.limits.size_bytes - self._size_bytes
            totals = enumerate(accumulate(due), 1)
            count, size = next(each for each in totals if each[1] + overhead * each[0] >= free)
            self._add(count, size)
            self._close(max(enqueued_time_ms, self.start_ms), is_full=True)
            return
        self._add(len(due), size)

    def _add(self, count: int, size_bytes: int) -> None:
        self.event_bytes += size_bytes
        self._size_bytes += size_bytes + self.limits.event_overhead_bytes * count
        self.until_sequence_number += count

    def pass_time(self, now_ms: int) -> None:
        """Close the window if it is over at ``now_ms``; call it when there is no event to add."""
        if self.closed is not None or self.start_ms is None:
            return
        end_ms = self.start_ms + self.limits.time_ms
        if now_ms < end_ms:
            return
        if not self.is_empty:
            self._close(end_ms)
        elif self.limits.is_empty_skipped:
            self.start_ms = self._grid_point(now_ms)
        else:
            # One file for all windows that passed meanwhile, so that a long stop does not leave many files.
            self._close(self._grid_point(now_ms))

    def _grid_point(self, time_ms: int) -> int:
        """When the window around ``time_ms`` opened, if windows follow each other without gaps."""
        assert self.start_ms is not None
        return time_ms - (time_ms - self.start_ms) % self.limits.time_ms

    def _close(self, next_start_ms: int, *, is_full: bool = False) -> None:
        assert self.start_ms is not None
        self.closed = ClosedWindow(
            self.start_ms,
            self.start_sequence_number,
            self.until_sequence_number,
            self.event_bytes,
            next_start_ms,
            is_full,
        )

    def __repr__(self) -> str:
        return (
            f"<Window {self.start_sequence_number}..{self.until_sequence_number} bytes={self.event_bytes} "
            f"start_ms={self.start_ms}{' closed' if self.closed else ''}>"
        )
