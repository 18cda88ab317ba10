"""The sizes of a log, in one value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Sizes of a log; the defaults are our choice, for disks that sync in 0.2 to 20 ms."""

    segment_bytes_max: int = 128 * 1024 * 1024
    """A segment that would exceed this is sealed, and a new one begun. Retention removes whole segments."""
    index_interval_bytes: int = 64 * 1024
    """Bytes of log per index entry: the most that a look-up reads to find its place."""
    snapshot_interval_bytes: int = 32 * 1024 * 1024
    """Recovery after a crash reads at most about this much per partition."""
    idle_snapshot_s: float = 1.0
    """A partition that has had no append for so long gets a snapshot: what was acknowledged before it is then
    known to have existed, and its loss is damage instead of a torn write."""
    queued_bytes_max: int = 256 * 1024 * 1024
    """Appends beyond this raise ServerBusyError."""
    congested_bytes: int = 8 * 1024 * 1024
    """Above this, the log is congested, and connections should stop reading from producers."""
    producers_max: int = 1000
    """Idempotent producers remembered per partition; the longest silent is forgotten first."""
    open_segments_max: int = 256
    """Segments held open for reading, over all partitions."""
