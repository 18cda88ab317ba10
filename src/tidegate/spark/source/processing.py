"""Streams whose tasks process events in the Python worker that reads them, without a way through Java.

    two workers for a task     read ─► Java ─► function ─► Java      1.2 of 7.9 µs of CPU per event (measured)
    one                        read ─► function ─► Java

The function returns rows (``mapped_events``), or none if it commits the events itself (``run_pipeline``
without a transformation). Spark's figures (``numInputRows``, rates) count a source's rows, so rows without
content are added until there are as many as events: they cost Spark next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from tidegate.spark.runtime.arrow_step import ArrowFunction
from tidegate.spark.runtime.pickled import unpickled
from tidegate.spark.source.options import SourceOptions
from tidegate.spark.source.reader import EventHubsStreamReader, RangesInputPartition, read_ranges

ENDS_KEY: Final = b"tidegate.ends"
"""Metadata of the batches that the function gets: JSON of partition id → (until sequence number, history)."""

_EMPTY_ROWS_MAX: Final = 100_000
"""Most rows without content in a batch (our choice)."""


@dataclass(frozen=True, slots=True)
class ReadingPlan:
    """What a reading task needs besides the source's options."""

    function: ArrowFunction
    """Gets a task's batches, and yields batches of ``schema``."""
    schema: pa.Schema
    columns: tuple[str, ...]
    """The event columns that the function gets."""


class ProcessingStreamReader(EventHubsStreamReader):
    """Plans micro-batches as the source ``eventhubs`` does; a task yields its function's rows."""

    def __init__(self, options: SourceOptions, plan_text: str, *, is_committing: bool) -> None:
        """plan_text: a pickled ``ReadingPlan``. is_committing: check before each micro-batch that what Spark
        considers done is committed.
        """
        super().__init__(options, is_committing=is_committing)
        # Unpickled only in tasks: the planning process does not need the function's modules.
        self._plan_text = plan_text

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The function's rows for one task. Raises what the source and the function raise."""
        plan = unpickled(self._plan_text)
        assert isinstance(plan, ReadingPlan)
        missing = 0  # rows, for Spark to count as many as there were events

        def read() -> Iterator[pa.RecordBatch]:
            nonlocal missing
            ends = _ends_of(partition)
            for events in read_ranges(self._options, partition, plan.columns):
                missing += events.num_rows
                yield events.replace_schema_metadata(ends)

        for rows in plan.function(read()):
            missing -= rows.num_rows
            yield rows
        yield from rows_without_content(missing, plan.schema)


def _ends_of(partition: InputPartition) -> dict[bytes, bytes]:
    """Metadata of a task's batches: where each partition's range ends, and in which history of the log."""
    ranges = partition.ranges if isinstance(partition, RangesInputPartition) else ()
    ends = {
        each.partition_id: (each.until_sequence_number, each.history_id)
        for each in ranges
        if each.history_id is not None
    }
    return {ENDS_KEY: msgspec.json.encode(ends)}


def rows_without_content(count: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """This many rows with null in each column; none if ``count`` is below 1."""
    for start in range(0, count, _EMPTY_ROWS_MAX):
        rows = min(count - start, _EMPTY_ROWS_MAX)
        yield pa.RecordBatch.from_arrays([pa.nulls(rows, field.type) for field in schema], schema=schema)
