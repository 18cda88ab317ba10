"""What a PySpark worker knows of its task, and what makes pooled workers, which live between tasks, fast."""

from __future__ import annotations

import gc
from dataclasses import dataclass

from pyspark import TaskContext

_FREEZES_MAX = 3

_freeze_count = 0


def freeze_loaded_modules() -> None:
    """Exempt what this process has loaded from garbage collection; acts in its first few tasks.

    PySpark's worker runs a full collection after every task, which over all imported modules took 95 % of a
    small micro-batch's time (measured with PySpark 4.3).
    """
    global _freeze_count
    if _freeze_count < _FREEZES_MAX:
        _freeze_count += 1
        gc.collect()
        gc.freeze()


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """Which part of which write the task of this process does; the same for all attempts of the task."""

    write: str
    """The streaming query's id, or the name of a batch query's write."""
    batch_id: int
    """The micro-batch; 0 in a batch query."""
    task: int
    """The number of the task in the micro-batch."""

    @classmethod
    def of_this_task(cls, write: str | None = None) -> TaskIdentity:
        """write: the name of a batch query's write; None: the task is one of a stream."""
        context = TaskContext.get()
        assert context is not None
        task = context.partitionId()
        if write is not None:
            return cls(write, 0, task)
        query_id = context.getLocalProperty("sql.streaming.queryId")
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        assert query_id is not None
        assert batch_id is not None
        return cls(query_id, int(batch_id), task)
