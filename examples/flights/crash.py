"""Finds the moment to kill the Spark driver in mid-batch, and proves that it is in mid-batch.

Spark journals each micro-batch in its checkpoint directory: ``offsets/N`` before the batch runs,
``commits/N`` after all its tasks are done. Together with the SQL checkpoint, this shows the batch's progress:

    offsets/N exists, commits/N does not                     the batch is running
    SQL checkpoint of a partition beyond where N starts      a part of it is committed in SQL
    SQL checkpoint of a partition short of where N ends      a part of it is not

The driver is watched while it runs. When a moment looks right, its session is stopped and examined again: it
is killed only if it is still in mid-batch, and continues otherwise (``ChildSession.kill_at``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from examples.support.journal import batch_end, running_batch_id


@dataclass(frozen=True, slots=True)
class MidBatch:
    """A micro-batch that has begun but not ended, according to Spark's journal and SQL."""

    batch_id: int
    start: Mapping[str, int]
    """Partition id → sequence number of the batch's first event."""
    until: Mapping[str, int]
    """Partition id → one past its last event."""
    committed: Mapping[str, int]
    """Partition id → number of the batch's events that are in SQL."""

    @property
    def event_count(self) -> int:
        """Events of the batch."""
        return sum(self.until.values()) - sum(self.start.values())

    @property
    def committed_count(self) -> int:
        """Its events that are in SQL."""
        return sum(self.committed.values())

    def describe(self) -> str:
        """One sentence for people."""
        return (
            f"micro-batch {self.batch_id} was running: {self.committed_count:,} of its {self.event_count:,} "
            "events were committed in SQL, the others were not"
        )


def find_mid_batch(checkpoint_dir: Path, next_sequence_numbers: Mapping[str, int]) -> MidBatch | None:
    """The running micro-batch, if some of it, but not all, is committed in SQL.

    checkpoint_dir: Spark's. next_sequence_numbers: SQL's checkpoint, partition id → first unprocessed event.
    """
    batch_id = running_batch_id(checkpoint_dir)  # not the first, whose start is not in the journal
    if batch_id is None:
        return None
    until, before = batch_end(checkpoint_dir, batch_id), batch_end(checkpoint_dir, batch_id - 1)
    if until is None or before is None:
        return None
    start = {partition_id: before.get(partition_id, 0) for partition_id in until}
    committed = {
        partition_id: min(max(next_sequence_numbers.get(partition_id, 0), start[partition_id]), end)
        - start[partition_id]
        for partition_id, end in until.items()
    }
    found = MidBatch(batch_id, start, until, committed)
    return found if 0 < found.committed_count < found.event_count else None
