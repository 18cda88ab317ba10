"""Reports a query of the user's own Spark driver to ``tidegate pipeline status`` and the console."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from pyspark.sql import SparkSession

from tidegate.model.connection_string import ConnectionString
from tidegate.model.pipeline_status import PipelineState, PipelineStatus
from tidegate.spark.progress.listener import listening
from tidegate.spark.progress.report import PipelineReporter
from tidegate.spark.runtime.errors import explain
from tidegate.sql import ConsumerKey, Database, DeadLetterFilter, DeadLetters
from tidegate.transport.clock import SystemClock
from tidegate.transport.status_files import PipelineFiles, this_process

_LAST_WORD_S = 30.0
"""Far more than Spark needs to report an end."""


@contextmanager
def reported_query(
    spark: SparkSession,
    name: str,
    consumer: ConsumerKey,
    *,
    connection_string: str,
    database_url: str,
    sink: str,
    target: str,
    checkpoint: str,
) -> Iterator[Callable[[], None]]:
    """Report the query ``name`` to ``tidegate pipeline status`` and the console.

    Enter it before the query starts, and call the yielded function once the query runs. Leaving it reports
    the end, with the error that ended the query, if any. name: the query's; for ``run_pipeline`` the
    pipeline's. sink: its kind, such as ``sql``. target: such as a table's name. database_url: where open dead
    letters are counted. The status is written to ``TIDEGATE_STATE_DIR`` or the user's state directory.
    """
    now = SystemClock().now_utc()
    first = PipelineStatus(
        name=name,
        state=PipelineState.STARTING,
        process=this_process(),
        event_hub=consumer.event_hub,
        consumer_group=consumer.consumer_group,
        namespace=ConnectionString.parse(connection_string).host,
        sink=sink,
        target=target,
        checkpoint=checkpoint,
        started_at=now,
        updated_at=now,
    )
    chosen = DeadLetterFilter(event_hub=consumer.event_hub, consumer_group=consumer.consumer_group)
    with ExitStack() as stack:
        letters = DeadLetters(stack.enter_context(Database.open(database_url)))
        reporter = stack.enter_context(
            PipelineReporter(
                first,
                clock=SystemClock(),
                write=PipelineFiles.of_user(os.environ).write,
                count_dead_letters=lambda: letters.count(chosen),
            )
        )
        listener = stack.enter_context(listening(spark, name, reporter))
        try:
            yield lambda: reporter.report_state(PipelineState.RUNNING)
        except Exception as error:
            reporter.report_state(PipelineState.FAILED, error=explain(error))
            raise
        # Spark reports the last micro-batch and the end with a delay.
        listener.wait_over(silence_s=_LAST_WORD_S)
        reporter.report_state(PipelineState.ENDED)
