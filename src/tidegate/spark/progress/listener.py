"""Reports a query, through a ``StreamingQueryListener``, to a reporter, also of a user's own driver.

Spark calls a Python listener over a socket, from the one listener thread of all of the session's queries, so
the listener only puts strings into a queue.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from tidegate.model.pipeline_status import PipelineState
from tidegate.spark.progress.report import PipelineReporter, counting_dead_letters, first_status
from tidegate.spark.runtime.errors import explain
from tidegate.sql import ConsumerKey
from tidegate.transport.clock import SystemClock
from tidegate.transport.status_files import PipelineFiles

_LAST_WORD_S = 30.0
"""Far more than Spark needs to report an end."""

_logger = logging.getLogger(__name__)


class ProgressListener(StreamingQueryListener):
    """Reports one query of a session, found by its name."""

    def __init__(self, query_name: str, reporter: PipelineReporter) -> None:
        self._query_name = query_name
        self._reporter = reporter
        self._run_id: object = None
        self._heard_count = 0
        self.is_over = threading.Event()
        """Set once the query has ended."""

    def wait_over(self, *, silence_s: float) -> bool:
        """Wait until Spark has reported the query's end, which follows it with a delay. Returns False if
        nothing is reported for ``silence_s``.
        """
        heard_count = self._heard_count
        while not self.is_over.wait(silence_s):
            if self._heard_count == heard_count:
                return False
            heard_count = self._heard_count
        return True

    # Spark calls these methods. An exception in one is logged by Java, and the report is lost.

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Remember the run's id, because not all events have the name."""
        if event.name == self._query_name:
            self._run_id = event.runId

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self._heard_count += 1
        try:
            if event.progress.runId == self._run_id:
                self._reporter.report_progress(event.progress.json)
        except Exception:  # a report is lost, the query is not
            _logger.warning("A progress report of %s could not be read.", self._query_name, exc_info=True)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        if event.runId == self._run_id:
            self._reporter.report_idle()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        if event.runId == self._run_id:
            self.is_over.set()


@contextmanager
def listening(spark: SparkSession, query_name: str, reporter: PipelineReporter) -> Iterator[ProgressListener]:
    """Report the query of this name; enter before the query starts."""
    listener = ProgressListener(query_name, reporter)
    spark.streams.addListener(listener)
    try:
        yield listener
    finally:
        spark.streams.removeListener(listener)


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
    first = first_status(
        name,
        event_hub=consumer.event_hub,
        consumer_group=consumer.consumer_group,
        connection_string=connection_string,
        sink=sink,
        target=target,
        checkpoint=checkpoint,
    )
    files = PipelineFiles.of_user(os.environ)
    with suppress(OSError):  # then no status can be written either
        files.delete_log(name)
    with ExitStack() as stack:
        count = stack.enter_context(counting_dead_letters(database_url, consumer))
        reporter = stack.enter_context(
            PipelineReporter(first, clock=SystemClock(), write=files.write, count_dead_letters=count)
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
