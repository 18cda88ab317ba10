"""What a task did, on its way to the driver: as the message of a writing task, or in rows of the source that
commits.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from tidegate.spark.schema import COMMITTED_COLUMN
from tidegate.spark.writer import PartitionSummary, WriterWait

_ARROW_SCHEMA: Final = pa.schema([pa.field(COMMITTED_COLUMN, pa.binary())])
_ROWS_MAX: Final = 100_000
"""Rows of a batch that Spark is handed (our choice)."""


@dataclass
class TaskCommitMessage(WriterCommitMessage):
    """What one task did."""

    summaries: Sequence[PartitionSummary]
    wait: WriterWait
    """What it waited for SQLite's other writers."""

    def plus(self, other: TaskCommitMessage) -> TaskCommitMessage:
        """Of both together."""
        return TaskCommitMessage((*self.summaries, *other.summaries), self.wait.plus(other.wait))


def rows_of_message(message: TaskCommitMessage, events: int) -> Iterator[pa.RecordBatch]:
    """A row for each event, the first of which holds the message; at least that one."""
    values: pa.Array[Any] = pa.array([pickle.dumps(message)], pa.binary())
    left = max(events, 1)
    while left:
        count = min(left, _ROWS_MAX)
        nulls = pa.nulls(count - len(values), pa.binary())
        yield pa.RecordBatch.from_arrays([pa.concat_arrays([values, nulls])], schema=_ARROW_SCHEMA)
        values = values.slice(0, 0)
        left -= count


def messages_in(batches: Iterator[pa.RecordBatch]) -> list[TaskCommitMessage]:
    """The messages that rows of the source hold: of those tasks that had something to read."""
    found: list[Any] = [
        value
        for batch in batches
        if batch.num_rows
        for value in batch.column(COMMITTED_COLUMN).drop_null().to_pylist()
    ]
    return [pickle.loads(value) for value in found]
