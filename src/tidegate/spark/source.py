"""The data source ``eventhubs``: what Spark makes its readers from.

Spark pickles this class by its module name into every Python process that it starts, so it must stay
importable there; on a cluster Tidegate has to be installed on the driver and on every executor. Some of those
processes only ask for the schema, so the readers are imported where they are made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.options import SourceOptions

if TYPE_CHECKING:
    from tidegate.spark.reader import EventHubsBatchReader, EventHubsStreamReader


class EventHubsDataSource(DataSource):
    """``spark.read.format("eventhubs")`` and ``spark.readStream.format("eventhubs")``."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "eventhubs"

    def schema(self) -> StructType:
        """The columns; also the first place where Spark looks at the options, so they are checked here."""
        from tidegate.spark.schema import ENCODED_EVENT_SCHEMA, EVENT_SCHEMA

        return ENCODED_EVENT_SCHEMA if self._parsed_options().encoded_events else EVENT_SCHEMA

    def reader(self, schema: StructType) -> EventHubsBatchReader:
        """The reader of a batch query."""
        from tidegate.spark.reader import EventHubsBatchReader

        return EventHubsBatchReader(self._checked_options(schema))

    def streamReader(self, schema: StructType) -> EventHubsStreamReader:  # noqa: N802 - Spark's name
        """The reader of a stream."""
        from tidegate.spark.reader import EventHubsStreamReader

        return EventHubsStreamReader(self._checked_options(schema))

    def _parsed_options(self) -> SourceOptions:
        return SourceOptions.parse(self.options)

    def _checked_options(self, schema: StructType) -> SourceOptions:
        if schema != self.schema():
            raise InvalidArgumentError(
                "The format eventhubs has columns of its own.", next_step="Leave out .schema(…)."
            )
        return self._parsed_options()


def register(spark: SparkSession) -> None:
    """Make the formats ``eventhubs`` (source) and ``eventhubs-sql`` (sink) known to a session."""
    from tidegate.spark.session import share_python_path
    from tidegate.spark.sink import SqlSinkDataSource

    share_python_path(spark.sparkContext)
    spark.dataSource.register(EventHubsDataSource)
    spark.dataSource.register(SqlSinkDataSource)
