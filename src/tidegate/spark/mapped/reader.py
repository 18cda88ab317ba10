"""The reader that applies a function to what it reads; see ``pipelines.mapped_events``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from tidegate.spark.runtime.arrow_step import ArrowFunction
from tidegate.spark.runtime.event_count import CountedBatches, rows_without_content
from tidegate.spark.runtime.pickled import unpickled
from tidegate.spark.source.options import SourceOptions
from tidegate.spark.source.reader import EventHubsStreamReader, read_ranges
from tidegate.spark.source.schema import MADE_COLUMN


@dataclass(frozen=True, slots=True)
class ReadingPlan:
    """What a reading task needs besides the source's options."""

    function: ArrowFunction
    schema: pa.Schema
    """Of the function's rows."""
    columns: tuple[str, ...]
    """The event columns that the function gets."""

    @property
    def row_schema(self) -> pa.Schema:
        """Of the rows that Spark gets."""
        return pa.schema([pa.field(MADE_COLUMN, pa.struct(list(self.schema)))])


class MappedStreamReader(EventHubsStreamReader):
    """Plans micro-batches as the source ``eventhubs`` does; a task yields the function's rows."""

    def __init__(self, plan_text: str, options: SourceOptions) -> None:
        # Unpickled only in tasks: the planning process does not need the function's modules.
        super().__init__(options)
        self._plan_text = plan_text

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The function's rows for one task. Raises what the source and the function raise."""
        plan = unpickled(self._plan_text)
        assert isinstance(plan, ReadingPlan)
        events = CountedBatches(read_ranges(self._options, partition, plan.columns))
        made = 0
        for rows in plan.function(iter(events)):
            made += rows.num_rows
            yield pa.RecordBatch.from_arrays([rows.to_struct_array()], schema=plan.row_schema)
        yield from rows_without_content(events.rows - made, plan.row_schema)
