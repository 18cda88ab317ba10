"""Starts a declared pipeline's source, steps and sink as one streaming query.

The checkpoint directory's owner is checked first; then the query is built for the kind of sink.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import ReceivedEvent
from tidegate.spark.formats import EventHubsDataSource, register
from tidegate.spark.ledger.ledger import LedgerSink, OnWritten
from tidegate.spark.pipelines.failures import apply_policy
from tidegate.spark.pipelines.identity import (
    claim_checkpoint,
    hub_connection_string,
    hub_options,
    identity_of,
)
from tidegate.spark.pipelines.pipeline import start_query
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
    sink, source = declared.sink, declared.source
    connection_string = hub_connection_string(connection_string, source.event_hub)
    checkpoint_location = checkpoint_path(checkpoint_location)
    trigger = trigger or declared.trigger
    if capture is not None and not isinstance(sink, SqlSink):
        raise _not_replayable(declared)
    identity = identity_of(declared, connection_string=connection_string, ca_file=ca_file)
    claim_checkpoint(checkpoint_location, identity, spark)
    register(spark)
    if isinstance(sink, SqlSink):
        policy = declared.failure_policy
        return start_query(
            spark,
            declared.sql_pipeline(sink.handler or _no_handler),
            source,
            connection_string=connection_string,
            database_url=_checked(database_url, declared),
            checkpoint_location=checkpoint_location,
            transform=functools.partial(_through_steps, declared.steps, policy) if declared.steps else None,
            trigger=trigger,
            ca_file=ca_file,
            capture=capture,
        )
    rows = _rows(spark, declared, hub_options(source, connection_string, ca_file))
    if isinstance(sink, SqlBatchSink):
        ledger = LedgerSink(
            name=declared.name,
            database_url=_checked(database_url, declared),
            tables=sink.tables,
            consumer=declared.consumer,
            adopt=adopt,
            on_written=on_written,
        )
        return ledger.start(
            rows, checkpoint_location=checkpoint_location, output_mode=sink.output_mode, trigger=trigger
        )
    if isinstance(sink, HubSink):
        writer = _to_hub(rows.writeStream, sink, connection_string, ca_file)
    else:
        writer = _to_files(rows.writeStream, sink)
    writer = writer.queryName(declared.name).outputMode("append")
    return trigger.applied_to(writer.option("checkpointLocation", checkpoint_location)).start()


def _not_replayable(pipeline: StreamPipeline) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"The pipeline {pipeline.name} does not write to SQL per hub partition, so it cannot be replayed.",
        next_step='Use a SqlSink, or read captured events as a table with .format("eventhubs-capture").',
    )


def _checked(database_url: str | None, pipeline: StreamPipeline) -> str:
    if database_url is None:
        raise InvalidArgumentError(
            f"The pipeline {pipeline.name} writes to a table, but no database is given.",
            next_step="Set --database or TIDEGATE_DATABASE (database_url in a program).",
        )
    return database_url


def _rows(spark: SparkSession, pipeline: StreamPipeline, options: dict[str, str]) -> DataFrame:
    """The source's events after all steps."""
    own = pipeline.source.options
    if not any(short_name(name) in ("tasksmin", "tasksmax") for name in own):
        options |= task_options(spark)
    reader = spark.readStream.format(EventHubsDataSource.name()).options(**(options | dict(own)))
    return apply_policy(_through_steps(pipeline.steps, None, reader.load()), pipeline.failure_policy)


def _to_hub(
    writer: DataStreamWriter, sink: HubSink, connection_string: str, ca_file: str | Path | None
) -> DataStreamWriter:
    parsed = ConnectionString.parse(sink.connection_string or connection_string)
    options = {"eventhubs.connectionString": parsed.with_entity_path(sink.event_hub).format()}
    if ca_file is not None:
        options["eventhubs.caFile"] = str(ca_file)
    return writer.format(EventHubsDataSource.name()).options(**options, **sink.options)


def _to_files(writer: DataStreamWriter, sink: FileSink) -> DataStreamWriter:
    writer = writer.format(sink.format)
    if sink.partition_by and sink.format == OWN_FILE_FORMAT:
        # Spark does not pass partitionBy on to a Python sink.
        writer = writer.option("partitionColumns", ",".join(sink.partition_by))
    elif sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    return writer.options(**sink.options).option("path", sink.path)


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
