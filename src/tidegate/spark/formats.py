"""The data source ``eventhubs``, from which Spark gets its readers and writers.

Spark pickles this class by its module name into every Python process that it starts, so Tidegate must be
installed on the driver and every executor. Some of those processes only ask for the schema, so readers are
imported where they are created.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from tidegate.spark.source.options import SourceOptions

if TYPE_CHECKING:
    from tidegate.spark.hub_sink.writer import HubBatchWriter, HubStreamWriter
    from tidegate.spark.source.reader import EventHubsBatchReader, EventHubsStreamReader


class EventHubsDataSource(DataSource):
    """``spark.read.format("eventhubs")`` and ``spark.readStream.format("eventhubs")``."""

    @classmethod
    def name(cls) -> str:
        return "eventhubs"

    def schema(self) -> StructType:
        """All columns, unless ``.schema(…)`` names some; also checks the options."""
        return _available_columns(SourceOptions.parse(self.options))

    def reader(self, schema: StructType) -> EventHubsBatchReader:
        """The reader of a batch query, with the columns that ``.schema(…)`` names."""
        from tidegate.spark.source.reader import EventHubsBatchReader

        return EventHubsBatchReader(_checked_options(self.options, schema), schema.fieldNames())

    def streamReader(self, schema: StructType) -> EventHubsStreamReader:  # noqa: N802 - Spark's name
        """The reader of a stream, with the columns that ``.schema(…)`` names."""
        from tidegate.spark.source.reader import EventHubsStreamReader

        return EventHubsStreamReader(_checked_options(self.options, schema), schema.fieldNames())

    def writer(self, schema: StructType, overwrite: bool) -> HubBatchWriter:
        """The writer of ``df.write.format("eventhubs").mode("append")``."""
        from tidegate.spark.hub_sink.writer import hub_batch_writer

        return hub_batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> HubStreamWriter:  # noqa: N802 - Spark's name
        """The writer of ``df.writeStream.format("eventhubs")``."""
        from tidegate.spark.hub_sink.writer import hub_stream_writer

        return hub_stream_writer(self.options, schema, overwrite)


def _available_columns(options: SourceOptions) -> StructType:
    from tidegate.spark.source.schema import ENCODED_EVENT_SCHEMA, EVENT_SCHEMA

    return ENCODED_EVENT_SCHEMA if options.encoded_events else EVENT_SCHEMA


def _checked_options(options: Mapping[str, str], schema: StructType) -> SourceOptions:
    from tidegate.spark.source.schema import check_chosen_columns

    parsed = SourceOptions.parse(options)
    check_chosen_columns(schema, _available_columns(parsed))
    return parsed


def register(spark: SparkSession) -> None:
    """Register Tidegate's formats with a session: ``eventhubs``, ``eventhubs-capture``, ``eventhubs-files``,
    and the internal ones of pipelines.
    """
    from tidegate.spark.capture.replay_source import ReplayDataSource
    from tidegate.spark.capture.source import CaptureDataSource
    from tidegate.spark.file_sink.sink import FileSinkDataSource
    from tidegate.spark.mapped.source import MappedDataSource
    from tidegate.spark.runtime.session import share_python_path
    from tidegate.spark.sql_sink.committing_source import CommittingDataSource
    from tidegate.spark.sql_sink.sink import SqlSinkDataSource

    share_python_path()
    for source in (
        EventHubsDataSource,
        CaptureDataSource,
        ReplayDataSource,
        CommittingDataSource,
        MappedDataSource,
        SqlSinkDataSource,
        FileSinkDataSource,
    ):
        spark.dataSource.register(source)
