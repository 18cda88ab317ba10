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
    journal_bytes: int = 16 * 1024 * 1024
    """The size of each of the two files of the journal."""
    journal_part_bytes: int = 128 * 1024
    """Rounds with more than this for each partition but one are synced in the segments: what the journal
    saves in syncs, it costs by writing everything twice. A sync takes as long as writing about as much."""
    save_interval_bytes: int = 32 * 1024 * 1024
    """The manifest is saved after so many bytes: a start after a crash reads about as much per partition."""
    mark_after_s: float = 0.5
    """So long after a write (half as long again if many are due) a partition notes how far it went: that the
    events before it existed is then known, and their loss is damage instead of a torn write."""
    idle_save_s: float = 1.0
    """The manifest of a partition that has had no append for so long is saved."""
    reserve_bytes: int = 1024 * 1024
    """Disk space that is kept for deletions on a full disk; see ``Reserve``."""
    queued_bytes_max: int = 256 * 1024 * 1024
    """Appends beyond this raise ServerBusyError."""
    congested_bytes: int = 8 * 1024 * 1024
    """Above this, the log is congested, and connections should stop reading from producers."""
    producers_max: int = 1000
    """Idempotent producers remembered per partition; the longest silent is forgotten first. 1,000 take about
    1 MB, which nothing else counts."""
    open_segments_max: int = 256
    """Segments held open for reading, over all partitions."""
