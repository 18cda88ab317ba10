"""The source of a pipeline without a transformation: tasks commit what they read in the reading worker.

Otherwise every event goes from the Python that reads it to Java and from there to the Python that writes it,
in the same task. Here nothing is left to write: Spark gets a row without content for each event, so that its
own metrics still count events, and discards them.

    read ─► handler ─► SQL          in one worker
              └─► a row per event, once all is committed ─► ``noop``, Spark's sink for nothing

A hub partition is planned for one task, and a range is committed whole or raises. What a task cannot see,
such as a database restored to an older state, is checked when the next micro-batch is planned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from tidegate.spark.runtime.pickled import plan_and_options
from tidegate.spark.source.options import SourceOptions

if TYPE_CHECKING:
    from tidegate.spark.source.reader import EventHubsStreamReader

SINK_FORMAT: Final = "noop"
"""Spark's sink that discards rows; any other would end in Python, which costs two processes."""


class CommittingDataSource(DataSource):
    """``readStream.format("eventhubs-committing")``: only created by ``run_pipeline``."""

    @classmethod
    def name(cls) -> str:
        return "eventhubs-committing"

    def schema(self) -> str:
        """One column, always null."""
        from tidegate.spark.source.schema import COMMITTED_COLUMN

        return f"{COMMITTED_COLUMN} boolean"

    def streamReader(self, schema: StructType) -> EventHubsStreamReader:  # noqa: N802 - Spark's name
        """The reader that commits."""
        from tidegate.spark.sql_sink.committing_reader import CommittingStreamReader

        plan, options = plan_and_options(
            self.options,
            self.name(),
            next_step='Use tidegate.spark.run_pipeline, or .format("eventhubs").',
        )
        return CommittingStreamReader(plan, SourceOptions.parse(options))
