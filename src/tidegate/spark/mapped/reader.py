"""The reader that hands what it reads to a function; see ``pipelines.mapped_events``."""

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
    """What a reading task needs to know besides the source's options."""

    function: ArrowFunction
    schema: pa.Schema
    """Of what it yields."""
    columns: tuple[str, ...]
    """Of the events that it is given."""

    @property
    def row_schema(self) -> pa.Schema:
        """Of what Spark is handed."""
        return pa.schema([pa.field(MADE_COLUMN, pa.struct(list(self.schema)))])


class MappedStreamReader(EventHubsStreamReader):
    """Plans micro-batches as the source ``eventhubs`` does; a task yields what the function makes."""

    def __init__(self, plan_text: str, options: SourceOptions) -> None:
        # Not unpickled here, but in tasks: a function's modules are nothing to the process that plans.
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
