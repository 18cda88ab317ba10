"""The reader that commits what it reads; see ``committing_source``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from tidegate.spark.runtime.event_count import CountedBatches, rows_without_content
from tidegate.spark.source.hub import HubDescription
from tidegate.spark.source.offsets import StreamOffset
from tidegate.spark.source.options import SourceOptions
from tidegate.spark.source.reader import EventHubsStreamReader, read_ranges, sql_positions
from tidegate.spark.source.schema import COMMITTED_COLUMN
from tidegate.spark.sql_sink.commits import needed_columns
from tidegate.spark.sql_sink.plan import load_plan
from tidegate.spark.sql_sink.writer import TaskWriter

_ARROW_SCHEMA: Final = pa.schema([pa.field(COMMITTED_COLUMN, pa.bool_())])

_logger = logging.getLogger(__name__)


class CommittingStreamReader(EventHubsStreamReader):
    """Plans micro-batches as the source ``eventhubs`` does; a task's reading ends with its commits."""

    def __init__(self, plan_text: str, options: SourceOptions) -> None:
        # Unpickled in tasks: the planning process does not need the handler's modules.
        super().__init__(options)
        self._plan_text = plan_text
        self._compared: StreamOffset | None = None

    def _check_not_ahead(self, offset: StreamOffset, description: HubDescription) -> None:
        """Check before each micro-batch that what Spark considers done is committed."""
        if offset == self._compared:
            return  # nothing was read since
        positions = sql_positions(self._options, description)
        if self._sql_start is None:
            self._sql_start = positions
        self._compare(offset, positions, description)
        self._compared = offset

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Commit the events of one task. Raises what the source and ``TaskWriter.write`` raise."""
        plan = load_plan(self._plan_text)
        columns = needed_columns(plan.pipeline, is_transformed=False)
        events = CountedBatches(read_ranges(self._options, partition, columns))
        writer = TaskWriter(plan)
        writer.write(iter(events))
        warning = writer.wait.warning()
        if warning is not None:
            _logger.warning("%s: %s", plan.pipeline.name, warning)
        yield from rows_without_content(events.rows, _ARROW_SCHEMA)
