"""Kills the Spark driver in mid-batch, and proves that it was in mid-batch.

Spark journals each micro-batch in its checkpoint directory: ``offsets/N`` before the batch runs,
``commits/N`` after all its tasks are done. Together with the SQL checkpoint that tells how far a batch is:

    offsets/N there, commits/N not there                     the batch is running
    SQL checkpoint of a partition beyond where N starts      something of it is already committed in SQL
    SQL checkpoint of a partition short of where N ends      something of it is still missing

The driver is looked at while it runs, and when a moment looks right its whole session is frozen (SIGSTOP)
and looked at again: only what still holds then is followed by SIGKILL; else the session goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from examples.support.journal import batch_end, last_batch_id


@dataclass(frozen=True, slots=True)
class MidBatch:
    """A micro-batch that has begun and not ended, as Spark's journal and SQL tell together."""

    batch_id: int
    start: Mapping[str, int]
    """Partition id → sequence number of the batch's first event."""
    until: Mapping[str, int]
    """Partition id → one past its last event."""
    committed: Mapping[str, int]
    """Partition id → how many of the batch's events SQL holds already."""

    @property
    def event_count(self) -> int:
        """Events of the batch."""
        return sum(self.until.values()) - sum(self.start.values())

    @property
    def committed_count(self) -> int:
        """Events of it that SQL holds."""
        return sum(self.committed.values())

    def describe(self) -> str:
        """One sentence for people."""
        return (
            f"micro-batch {self.batch_id} was running: {self.committed_count:,} of its {self.event_count:,} "
            "events were committed in SQL, the others were not"
        )


def find_mid_batch(checkpoint_dir: Path, next_sequence_numbers: Mapping[str, int]) -> MidBatch | None:
    """The micro-batch that is running now, if a part of it, and only a part, is committed in SQL.

    checkpoint_dir: Spark's. next_sequence_numbers: SQL's checkpoint, partition id → first event not
    processed.
    """
    batch_id = last_batch_id(checkpoint_dir)
    if batch_id is None or (checkpoint_dir / "commits" / str(batch_id)).exists():
        return None
    until, before = batch_end(checkpoint_dir, batch_id), batch_end(checkpoint_dir, batch_id - 1)
    if until is None or before is None:
        # The very first micro-batch starts where SQL was, which the journal does not tell.
        return None
    start = {partition_id: before.get(partition_id, 0) for partition_id in until}
    committed = {
        partition_id: min(max(next_sequence_numbers.get(partition_id, 0), start[partition_id]), end)
        - start[partition_id]
        for partition_id, end in until.items()
    }
    found = MidBatch(batch_id, start, until, committed)
    return found if 0 < found.committed_count < found.event_count else None
