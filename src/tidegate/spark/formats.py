"""Tidegate's data sources: the classes that Spark asks for readers and writers.

Spark pickles these classes by their module's name into every Python process that it starts, so Tidegate must
be installed on the driver and every executor. Some of those processes only ask for the schema, so readers and
writers are imported where they are created.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NoReturn

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.runtime.pickled import PLAN_OPTION
from tidegate.spark.runtime.workers import end_quietly_if_planning, freeze_loaded_modules
from tidegate.spark.source.options import COMMITS_OPTION, SourceOptions

if TYPE_CHECKING:
    from tidegate.spark.capture.reader import CaptureReader
    from tidegate.spark.capture.replay_source import ReplayStreamReader
    from tidegate.spark.file_sink.sink import FileWriter
    from tidegate.spark.hub_sink.writer import HubWriter
    from tidegate.spark.source.processing import ProcessingStreamReader
    from tidegate.spark.source.reader import EventHubsBatchReader, EventHubsStreamReader
    from tidegate.spark.sql_sink.sink import SqlSinkWriter

end_quietly_if_planning()


class _Format(DataSource):
    """A data source that Spark knows by ``FORMAT``."""

    FORMAT: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        return cls.FORMAT


class EventHubsDataSource(_Format):
    """``eventhubs``: reads a hub, as a table or a stream, and publishes rows to one."""

    FORMAT = "eventhubs"

    def schema(self) -> StructType:
        """All columns, unless ``.schema(…)`` names some; also checks the options."""
        return _event_schema(self._source_options())

    def reader(self, schema: StructType) -> EventHubsBatchReader:
        """The reader of a batch query, with the columns that ``.schema(…)`` names."""
        from tidegate.spark.source.reader import EventHubsBatchReader, FilteringBatchReader

        options = SourceOptions.parse(self.options)
        kind = FilteringBatchReader if options.push_filters else EventHubsBatchReader
        return kind(options, _chosen(schema, _event_schema(options)))

    def streamReader(self, schema: StructType) -> EventHubsStreamReader:  # noqa: N802 - Spark's name
        """The reader of a stream, with the columns that ``.schema(…)`` names."""
        from tidegate.spark.source.reader import EventHubsStreamReader

        options = self._source_options()
        columns = _chosen(schema, _event_schema(options))
        return EventHubsStreamReader(options, columns, is_committing=COMMITS_OPTION in self.options)

    def _source_options(self) -> SourceOptions:
        # run_pipeline adds the option to its stream.
        return SourceOptions.parse(
            {name: value for name, value in self.options.items() if name.lower() != COMMITS_OPTION}
        )

    def writer(self, schema: StructType, overwrite: bool) -> HubWriter:
        """The writer of ``df.write.format("eventhubs").mode("append")``."""
        from tidegate.spark.hub_sink.writer import hub_writer

        return hub_writer(self.options, schema, overwrite, is_stream=False)

    def streamWriter(self, schema: StructType, overwrite: bool) -> HubWriter:  # noqa: N802 - Spark's name
        """The writer of ``df.writeStream.format("eventhubs")``."""
        from tidegate.spark.hub_sink.writer import hub_writer

        freeze_loaded_modules()
        return hub_writer(self.options, schema, overwrite, is_stream=True)


class ProcessedDataSource(_Format):
    """``eventhubs-processed``: a stream whose tasks process events where they read them.

    Only ``run_pipeline`` and ``mapped_events`` create it, with a schema and a plan.
    """

    FORMAT = "eventhubs-processed"

    def schema(self) -> NoReturn:
        """Raises InvalidArgumentError: Spark asks only if neither of the two created the stream."""
        raise self._unusable()

    def streamReader(self, schema: StructType) -> ProcessingStreamReader:  # noqa: N802 - Spark's name
        """The reader that processes events."""
        from tidegate.spark.source.processing import ProcessingStreamReader

        options = {**self.options}
        plan, commits = options.pop(PLAN_OPTION, None), options.pop(COMMITS_OPTION, None)
        if plan is None:
            raise self._unusable()
        return ProcessingStreamReader(SourceOptions.parse(options), plan, is_committing=commits is not None)

    def _unusable(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"The format {self.name()} cannot be used directly.",
            next_step="Use tidegate.spark.run_pipeline or tidegate.spark.mapped_events, or "
            '.format("eventhubs").',
        )


class CaptureDataSource(_Format):
    """``eventhubs-capture``: captured events as a table with the columns of ``eventhubs``."""

    FORMAT = "eventhubs-capture"

    def schema(self) -> StructType:
        """The columns; also checks the options, because Spark calls this first."""
        from tidegate.spark.capture.options import CaptureOptions
        from tidegate.spark.source.schema import EVENT_SCHEMA

        CaptureOptions.parse(self.options)
        return EVENT_SCHEMA

    def reader(self, schema: StructType) -> CaptureReader:
        """The reader of a batch query, with the columns that ``.schema(…)`` names."""
        from tidegate.spark.capture.options import CaptureOptions
        from tidegate.spark.capture.reader import CaptureReader, FilteringCaptureReader
        from tidegate.spark.source.schema import EVENT_SCHEMA

        options = CaptureOptions.parse(self.options)
        kind = FilteringCaptureReader if options.push_filters else CaptureReader
        return kind(options, _chosen(schema, EVENT_SCHEMA))

    def streamReader(self, schema: StructType) -> NoReturn:  # noqa: N802 - Spark's name
        """Raises InvalidArgumentError: files appear late, so they are only a table."""
        raise InvalidArgumentError(
            "The format eventhubs-capture is a table, not a stream.",
            next_step='Read live events with .format("eventhubs"), or run a pipeline over captured and then '
            "live events with `tidegate pipeline replay`.",
        )


class ReplayDataSource(_Format):
    """``eventhubs-replay``: a hub's stream, with deleted events read from Capture; see ``run_pipeline``."""

    FORMAT = "eventhubs-replay"

    def schema(self) -> StructType:
        """The columns of ``eventhubs``; also checks the options."""
        from tidegate.spark.capture.replay_source import parse_options

        return _event_schema(parse_options(self.options)[0])

    def reader(self, schema: StructType) -> NoReturn:
        """Raises InvalidArgumentError: a batch query reads captured events or the log."""
        raise InvalidArgumentError(
            "The format eventhubs-replay is a stream.",
            next_step='Read captured events with .format("eventhubs-capture"), the log with "eventhubs".',
        )

    def streamReader(self, schema: StructType) -> ReplayStreamReader:  # noqa: N802 - Spark's name
        """The reader of a stream, with the columns that ``.schema(…)`` names."""
        from tidegate.spark.capture.replay_source import ReplayStreamReader, parse_options

        source, capture = parse_options(self.options)
        return ReplayStreamReader(source, _chosen(schema, _event_schema(source)), capture)


class SqlSinkDataSource(_Format):
    """``eventhubs-sql``: the streaming sink whose effects in a database happen exactly once."""

    FORMAT = "eventhubs-sql"

    def streamWriter(self, schema: StructType, overwrite: bool) -> SqlSinkWriter:  # noqa: N802 - Spark's name
        """The writer of a streaming query in append mode."""
        from tidegate.spark.sql_sink.sink import sql_sink_writer

        freeze_loaded_modules()
        return sql_sink_writer(self.options, schema, overwrite)


class FileSinkDataSource(_Format):
    """``eventhubs-files``: writes each row once to Parquet or JSON files."""

    FORMAT = "eventhubs-files"

    def streamWriter(self, schema: StructType, overwrite: bool) -> FileWriter:  # noqa: N802 - Spark's name
        """The writer of a streaming query in append mode."""
        from tidegate.spark.file_sink.sink import file_writer

        freeze_loaded_modules()
        return file_writer(self.options, schema, overwrite, is_stream=True)

    def writer(self, schema: StructType, overwrite: bool) -> FileWriter:
        """The writer of a batch query in append mode."""
        from tidegate.spark.file_sink.sink import file_writer

        return file_writer(self.options, schema, overwrite, is_stream=False)


def _event_schema(options: SourceOptions) -> StructType:
    from tidegate.spark.source.schema import ENCODED_EVENT_SCHEMA, EVENT_SCHEMA

    return ENCODED_EVENT_SCHEMA if options.encoded_events else EVENT_SCHEMA


def _chosen(schema: StructType, available: StructType) -> list[str]:
    """The names of the columns that ``.schema(…)`` gives. Raises InvalidArgumentError."""
    from tidegate.spark.source.schema import check_chosen_columns

    check_chosen_columns(schema, available)
    return schema.fieldNames()


def register(spark: SparkSession) -> None:
    """Register Tidegate's formats with a session: ``eventhubs``, ``eventhubs-capture``, ``eventhubs-files``,
    and the internal ones of pipelines.

    spark: any session, also a notebook's or one of Spark Connect. The setting that the option
    ``pushFilters`` needs is set in it.
    """
    from tidegate.spark.runtime.session import FILTER_SETTING, share_python_path

    share_python_path()
    spark.conf.set(FILTER_SETTING, "true")
    for source in (
        EventHubsDataSource,
        ProcessedDataSource,
        CaptureDataSource,
        ReplayDataSource,
        SqlSinkDataSource,
        FileSinkDataSource,
    ):
        spark.dataSource.register(source)
