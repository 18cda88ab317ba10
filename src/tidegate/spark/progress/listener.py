"""Passes a query's reports to a reporter, through a ``StreamingQueryListener``.

Spark calls a Python listener over a socket, from the one listener thread of all of the session's queries, so
the listener only puts strings into a queue.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from tidegate.spark.progress.report import PipelineReporter

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
