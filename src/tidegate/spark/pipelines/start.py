"""Starts a declared pipeline's source, steps and sink as one streaming query.

The checkpoint directory's owner is checked first; then one method per kind of sink builds the query.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import ReceivedEvent
from tidegate.spark.formats import EventHubsDataSource, register
from tidegate.spark.ledger.ledger import LedgerResult, LedgerSink
from tidegate.spark.pipelines.failures import apply_policy
from tidegate.spark.pipelines.identity import (
    claim_checkpoint,
    hub_connection_string,
    hub_options,
    identity_of,
)
from tidegate.spark.pipelines.pipeline import run_pipeline
from tidegate.spark.pipelines.stream_pipeline import (
    OWN_FILE_FORMAT,
    FileSink,
    HubSink,
    OnFailure,
    SqlBatchSink,
    SqlSink,
    Step,
    StreamPipeline,
    declared_pipeline,
)
from tidegate.spark.runtime.options import short_name
from tidegate.spark.runtime.session import checkpoint_path, task_options
from tidegate.spark.runtime.trigger import Trigger
from tidegate.sql import Pipeline

OnWritten = Callable[[LedgerResult], None]


def start_stream_pipeline(
    spark: SparkSession,
    pipeline: StreamPipeline | Pipeline,
    *,
    connection_string: str,
    database_url: str | None = None,
    checkpoint_location: str | Path,
    trigger: Trigger | None = None,
    ca_file: str | Path | None = None,
    adopt: str | None = None,
    on_written: OnWritten | None = None,
    capture: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Start a declared pipeline and return its query; ``awaitTermination`` raises the error that ends it.

    pipeline: may be a plain ``tidegate.sql.Pipeline``. database_url: only for SQL sinks. checkpoint_location:
    a directory, new or this pipeline's. trigger: None: the declared one. adopt: for a ``SqlBatchSink``, the
    token of a LedgerMismatchError, to allow once what it refused. on_written: called in Spark's thread with
    the result of each micro-batch that a ``SqlBatchSink`` commits. capture: for a ``SqlSink``, options of the
    format ``eventhubs-capture``, to replay events that retention has deleted (see ``run_pipeline``).

    Raises InvalidArgumentError (also if the directory is another pipeline's), EventHubReplacedError,
    DatabaseError, and the service's errors.
    """
    declared = declared_pipeline(pipeline)
    start = _Start(
        spark,
        declared,
        connection_string=hub_connection_string(connection_string, declared.source.event_hub),
        database_url=database_url,
        checkpoint_location=checkpoint_path(checkpoint_location),
        trigger=trigger or declared.trigger,
        ca_file=None if ca_file is None else str(ca_file),
        adopt=adopt,
        on_written=on_written,
        capture=capture,
    )
    identity = identity_of(declared, connection_string=start.connection_string, ca_file=start.ca_file)
    claim_checkpoint(start.checkpoint_location, identity, spark)
    register(spark)
    return start.query()


@dataclass(frozen=True, slots=True)
class _Start:
    """One start of one pipeline."""

    spark: SparkSession
    pipeline: StreamPipeline
    connection_string: str = field(repr=False)
    """Names the event hub in ``EntityPath``."""
    database_url: str | None = field(repr=False)
    checkpoint_location: str
    trigger: Trigger
    ca_file: str | None
    adopt: str | None
    on_written: OnWritten | None
    capture: Mapping[str, str] | None = field(repr=False)

    def query(self) -> StreamingQuery:
        """Start it."""
        sink = self.pipeline.sink
        if isinstance(sink, SqlSink):
            return self._start_sql(sink)
        if self.capture is not None:
            raise InvalidArgumentError(
                f"The pipeline {self.pipeline.name} does not write to SQL per hub partition, so it cannot be "
                "replayed.",
                next_step="Use a SqlSink, or read captured events as a table with "
                '.format("eventhubs-capture").',
            )
        if isinstance(sink, SqlBatchSink):
            return self._start_sql_batch(sink)
        writer = self._hub_writer(sink) if isinstance(sink, HubSink) else self._file_writer(sink)
        writer = writer.queryName(self.pipeline.name).option("checkpointLocation", self.checkpoint_location)
        return self.trigger.applied_to(writer).start()

    def _start_sql(self, sink: SqlSink) -> StreamingQuery:
        pipeline, source = self.pipeline, self.pipeline.source
        policy = pipeline.failure_policy
        handler = _no_handler if sink.handler is None else sink.handler
        return run_pipeline(
            self.spark,
            pipeline.sql_pipeline(handler),
            connection_string=self.connection_string,
            database_url=self._database_url(),
            checkpoint_location=self.checkpoint_location,
            transform=functools.partial(_through_steps, pipeline.steps, policy) if pipeline.steps else None,
            trigger=self.trigger,
            max_events_per_trigger=source.max_events_per_trigger,
            starting_position=source.starting_position,
            fail_on_data_loss=source.fail_on_data_loss,
            ca_file=self.ca_file,
            capture=self.capture,
        )

    def _start_sql_batch(self, sink: SqlBatchSink) -> StreamingQuery:
        write = _ReportingLedgerSink(
            name=self.pipeline.name,
            database_url=self._database_url(),
            tables=sink.tables,
            consumer=self.pipeline.consumer,
            adopt=self.adopt,
        )
        write.on_written = self.on_written
        return write.start(
            self._rows(),
            checkpoint_location=self.checkpoint_location,
            output_mode=sink.output_mode,
            trigger=self.trigger,
        )

    def _hub_writer(self, sink: HubSink) -> DataStreamWriter:
        parsed = ConnectionString.parse(sink.connection_string or self.connection_string)
        options = {"eventhubs.connectionString": parsed.with_entity_path(sink.event_hub).format()}
        if self.ca_file is not None:
            options["eventhubs.caFile"] = self.ca_file
        writer = self._rows().writeStream.format(EventHubsDataSource.name())
        return writer.outputMode("append").options(**options, **sink.options)

    def _file_writer(self, sink: FileSink) -> DataStreamWriter:
        writer = self._rows().writeStream.format(sink.format).outputMode("append")
        if sink.partition_by and sink.format == OWN_FILE_FORMAT:
            # Spark does not pass partitionBy on to a Python sink.
            writer = writer.option("partitionColumns", ",".join(sink.partition_by))
        elif sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
        return writer.options(**sink.options).option("path", sink.path)

    def _rows(self) -> DataFrame:
        """The source's events after all steps."""
        source = self.pipeline.source
        options = hub_options(source, self.connection_string, self.ca_file)
        if not any(short_name(name) in ("tasksmin", "tasksmax") for name in source.options):
            options |= task_options(self.spark)
        options |= source.options
        reader = self.spark.readStream.format(EventHubsDataSource.name()).options(**options)
        rows = _through_steps(self.pipeline.steps, None, reader.load())
        return apply_policy(rows, self.pipeline.failure_policy)

    def _database_url(self) -> str:
        if self.database_url is None:
            raise InvalidArgumentError(
                f"The pipeline {self.pipeline.name} writes to a table, but no database is given.",
                next_step="Set --database or TIDEGATE_DATABASE (database_url in a program).",
            )
        return self.database_url


class _ReportingLedgerSink(LedgerSink):
    """Calls ``on_written`` after each micro-batch."""

    on_written: OnWritten | None = None

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        result = self.write(rows, batch_id)
        if self.on_written is not None:
            self.on_written(result)


def _through_steps(steps: Sequence[Step], policy: OnFailure | None, rows: DataFrame) -> DataFrame:
    """The result of the steps; the policy is applied if the sink writes per hub partition."""
    for position, step in enumerate(steps, start=1):
        result = step(rows)
        if not isinstance(result, DataFrame):
            name = getattr(step, "__name__", type(step).__name__)
            raise InvalidArgumentError(
                f"The step {name} (number {position}) returned a {type(result).__name__}.",
                next_step="Let it return the DataFrame.",
            )
        rows = result
    return rows if policy is None else apply_policy(rows, policy, is_per_partition=True)


def _no_handler(event: ReceivedEvent) -> None:
    """Stands in for the handler of a pipeline that has only steps; never called."""
    raise NotImplementedError("This pipeline has steps and no handler.")
