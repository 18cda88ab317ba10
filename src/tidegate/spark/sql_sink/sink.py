"""The writer of the format ``eventhubs-sql``, the streaming sink whose effects in a database happen once.

Start it with ``tidegate.spark.run_pipeline``, or pass ``sink_options(…)`` to a query of your own. Tasks
commit each hub partition; ``commit`` and ``abort`` of a micro-batch change nothing. The SQL checkpoint is
authoritative; Spark's own may be lost.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.runtime.options import OPTIONS_OF_SPARK, check_appends
from tidegate.spark.runtime.patience import patiently
from tidegate.spark.runtime.pickled import PLAN_OPTION
from tidegate.spark.runtime.versions import ArrowWriter
from tidegate.spark.runtime.workers import freeze_loaded_modules
from tidegate.spark.source.journal import journalled_offset
from tidegate.spark.sql_sink.accounting import Gap
from tidegate.spark.sql_sink.commits import needed_columns
from tidegate.spark.sql_sink.plan import load_plan
from tidegate.spark.sql_sink.writer import (
    TaskWriter,
    WriterWait,
    check_lost,
    check_partitions_whole,
)

_logger = logging.getLogger(__name__)


def sql_sink_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> SqlSinkWriter:
    """The writer of a streaming query. Raises InvalidArgumentError (option, column, output mode)."""
    unknown = [name for name in options if name not in (PLAN_OPTION, *OPTIONS_OF_SPARK)]
    plan_text = options.get(PLAN_OPTION)
    if unknown or plan_text is None:
        problem = f"has no option {unknown[0]!r}" if unknown else "cannot be started on its own"
        raise InvalidArgumentError(
            f"The format eventhubs-sql {problem}.",
            next_step="Use tidegate.spark.run_pipeline, or .options(**tidegate.spark.sink_options(…)).",
        )
    check_appends(overwrite, "The format eventhubs-sql", is_stream=True)
    plan = load_plan(plan_text)
    needed = needed_columns(plan.pipeline, plan.is_transformed)
    missing = [name for name in needed if name not in schema.fieldNames()]
    if missing:
        raise InvalidArgumentError(
            f"The sink eventhubs-sql needs the column {missing[0]!r}, and the query does not have it.",
            next_step="Keep the columns partition and sequenceNumber unchanged.",
        )
    return SqlSinkWriter(plan_text, options.get("checkpointLocation"))


@dataclass
class TaskCommitMessage(WriterCommitMessage):
    """What one task did."""

    skipped: Mapping[str, int]
    """See ``TaskWriter.write``."""
    wait: WriterWait
    """What it waited for SQLite's other writers."""


class SqlSinkWriter(ArrowWriter):
    """Runs ``TaskWriter`` in tasks, and checks on the driver that no event is missing."""

    def __init__(self, plan_text: str, checkpoint_location: str | None) -> None:
        self._plan_text = plan_text
        self._checkpoint_location = checkpoint_location

    # The Arrow writer's parameter differs from its base class's in pyspark as well.
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommitMessage:  # type: ignore[override]
        """Commit the events of one task. Raises what ``TaskWriter.write`` raises."""
        freeze_loaded_modules()
        writer = TaskWriter(load_plan(self._plan_text))
        return TaskCommitMessage(writer.write(iterator), writer.wait)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803
        """Report what the tasks could not see: a hub partition in two of them, and events in none.

        Keeps the histories of the micro-batch's end with the checkpoints. Raises InvalidArgumentError for the
        former, CheckpointGapError if the database is not at that end in Spark's journal.
        """
        freeze_loaded_modules()
        plan = load_plan(self._plan_text)
        tasks = [item for item in messages if isinstance(item, TaskCommitMessage)]
        warning = reduce(WriterWait.plus, [task.wait for task in tasks], WriterWait()).warning()
        if warning is not None:
            _logger.warning("Micro-batch %d of %s: %s", batchId, plan.pipeline.name, warning)
        check_partitions_whole([task.skipped for task in tasks])
        if self._checkpoint_location is None:
            return
        end = journalled_offset(self._checkpoint_location, batchId)
        if end is None:
            return
        what = f"The end of micro-batch {batchId}"
        reached = patiently(plan.checkpoints, what)
        if plan.may_filter:
            patiently(lambda: plan.pass_filtered(reached, end.partitions), what)
        else:
            for partition_id, until in end.partitions.items():
                position = reached.get(partition_id, 0)
                if position < until:
                    check_lost(plan, partition_id, Gap(position, until))
        patiently(lambda: plan.note_histories(end), what)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803
        """Do nothing: what tasks have committed stays, and the micro-batch is repeated without it."""
