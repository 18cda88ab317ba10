"""``mapped_events``: a stream of a function's results for a hub's events, computed where they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType
from pyspark.sql.utils import to_str

from tidegate.columns.names import checked_columns
from tidegate.spark.formats import ProcessedDataSource, register
from tidegate.spark.runtime.arrow_step import ArrowFunction, ArrowStep
from tidegate.spark.runtime.pickled import PLAN_OPTION, pickled
from tidegate.spark.source.options import SourceOptions
from tidegate.spark.source.processing import ReadingPlan
from tidegate.spark.source.reader import EventHubsStreamReader

_MADE: Final = "made"
"""The source's only column: the function's row as a struct, or null in a row that only counts an event."""


def mapped_events(
    spark: SparkSession,
    options: Mapping[str, str | int | bool],
    step: ArrowStep,
    *,
    columns: Sequence[str],
) -> DataFrame:
    """A stream of the rows that ``step`` makes from a hub's events, in the workers that read them.

    Equivalent to ``readStream.format("eventhubs").options(…).schema(…).load().mapInArrow(function, schema)``,
    with the same offsets, lag and row count in Spark: one row per event (or per row of the function, if a
    task has more of those). Watermarks and metrics apply to the function's rows, which must have the time
    column.

    options: of the format ``eventhubs``. step: its function gets a task's batches, each of one hub partition
    and in log order; a task may run it again for the same events. columns: those of the format (or
    ``properties.NAME``) that the function needs, in this order; nothing else is decoded.

    Raises InvalidArgumentError for invalid options or columns, and for a function that cannot be sent to
    workers. An error in the function ends the query.
    """
    register(spark)
    given = {name: str(to_str(value)) for name, value in options.items()}  # as Spark does
    EventHubsStreamReader(SourceOptions.parse(given))  # fail here instead of in a process behind Java
    names = checked_columns(columns, "A function over a hub's events")
    made = pa.schema([pa.field(_MADE, pa.struct(list(step.arrow_schema)))])
    plan = ReadingPlan(_as_structs(step.in_tasks(), made), made, names)
    rows = (
        spark.readStream.format(ProcessedDataSource.name())
        .options(**given)
        .option(PLAN_OPTION, pickled(plan, step.function, subject="The function that is to map events"))
        .schema(StructType([StructField(_MADE, step.schema)]))
        .load()
    )
    return rows.where(f"{_MADE} IS NOT NULL").select(f"{_MADE}.*")


def _as_structs(function: ArrowFunction, schema: pa.Schema) -> ArrowFunction:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in function(batches):
            yield pa.RecordBatch.from_arrays([rows.to_struct_array()], schema=schema)

    return run
