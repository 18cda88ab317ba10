"""The reader that commits what it reads; see ``committing_source``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from tidegate.spark.commits import needed_columns
from tidegate.spark.options import SourceOptions
from tidegate.spark.plan import load_plan
from tidegate.spark.reader import EventHubsStreamReader, read_ranges
from tidegate.spark.schema import COMMITTED_COLUMN
from tidegate.spark.writer import TaskWriter

_ARROW_SCHEMA: Final = pa.schema([pa.field(COMMITTED_COLUMN, pa.bool_())])
_ROWS_MAX: Final = 100_000
"""Rows of a batch that Spark is handed (our choice)."""

_logger = logging.getLogger(__name__)


class CommittingStreamReader(EventHubsStreamReader):
    """Plans micro-batches as the source ``eventhubs`` does; a task's reading ends with its commits."""

    def __init__(self, plan_text: str, options: SourceOptions) -> None:
        # Not unpickled here, but in tasks: a handler's modules are nothing to the process that plans.
        super().__init__(options)
        self._plan_text = plan_text

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Commit the events of one task. Raises what the source and ``TaskWriter.write`` raise."""
        events = 0

        def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            nonlocal events
            for batch in batches:
                events += batch.num_rows
                yield batch

        plan = load_plan(self._plan_text)
        columns = needed_columns(plan.pipeline, is_transformed=False)
        writer = TaskWriter(plan)
        writer.write(counted(read_ranges(self._options, partition, columns)))
        warning = writer.wait.warning()
        if warning is not None:
            _logger.warning("%s: %s", plan.pipeline.name, warning)
        yield from rows_without_content(events)


def rows_without_content(count: int) -> Iterator[pa.RecordBatch]:
    """That many of them."""
    for start in range(0, count, _ROWS_MAX):
        nulls = pa.nulls(min(count - start, _ROWS_MAX), pa.bool_())
        yield pa.RecordBatch.from_arrays([nulls], schema=_ARROW_SCHEMA)
