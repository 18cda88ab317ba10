"""The reader that commits what it reads; see ``committing_source``."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from tidegate.spark.commit_messages import TaskCommitMessage, rows_of_message
from tidegate.spark.commits import needed_columns
from tidegate.spark.options import SourceOptions
from tidegate.spark.plan import load_plan
from tidegate.spark.reader import EventHubsStreamReader, read_ranges
from tidegate.spark.writer import TaskWriter


class CommittingStreamReader(EventHubsStreamReader):
    """Plans micro-batches as the source ``eventhubs`` does; a task's reading ends with its commits."""

    def __init__(self, plan_text: str, options: SourceOptions) -> None:
        # Not unpickled here, but in tasks: a handler's modules are nothing to the process that plans.
        super().__init__(options)
        self._plan_text = plan_text

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Commit the events of one task, and tell. Raises what the source and ``TaskWriter.write`` raise."""
        events = 0

        def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            nonlocal events
            for batch in batches:
                events += batch.num_rows
                yield batch

        plan = load_plan(self._plan_text)
        columns = needed_columns(plan.pipeline, is_transformed=False)
        writer = TaskWriter(plan)
        summaries = writer.write(counted(read_ranges(self._options, partition, columns)))
        yield from rows_of_message(TaskCommitMessage(summaries, writer.wait), events)
