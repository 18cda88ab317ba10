"""Runs a pipeline on Spark, from a hub through a function or a DataFrame into a table, exactly once.

pipeline = Pipeline("flights", "flights", table, handler)
query = run_pipeline(spark, pipeline, connection_string=…, database_url=…, checkpoint_location=…)
query.awaitTermination()
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import BooleanType, StructField, StructType

from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.capture.replay_source import check_replayable, plan_replay
from tidegate.spark.formats import (
    EventHubsDataSource,
    ProcessedDataSource,
    ReplayDataSource,
    SqlSinkDataSource,
    register,
)
from tidegate.spark.pipelines.identity import hub_options
from tidegate.spark.pipelines.stream_pipeline import MAX_EVENTS_PER_TRIGGER, HubSource
from tidegate.spark.runtime.connect import is_connect
from tidegate.spark.runtime.pickled import PLAN_OPTION
from tidegate.spark.runtime.session import (
    checkpoint_path,
    is_on_cluster,
    refuse_sqlite_on_cluster,
    task_options,
)
from tidegate.spark.runtime.trigger import AS_SOON_AS_POSSIBLE, Trigger
from tidegate.spark.source.hub import HubReader
from tidegate.spark.source.journal import local_path
from tidegate.spark.source.options import COMMITS_OPTION, SourceOptions
from tidegate.spark.source.ownership import claim_checkpoints
from tidegate.spark.source.positions import CHECKPOINT_PREFIX
from tidegate.spark.source.processing import ReadingPlan
from tidegate.spark.source.schema import schema_of
from tidegate.spark.sql_sink.commits import needed_columns
from tidegate.spark.sql_sink.plan import SinkPlan, policy_of
from tidegate.spark.sql_sink.writer import commit_events
from tidegate.sql import Database, Pipeline
from tidegate.sql.core.database import absolute_url
from tidegate.sql.core.row_groups import required_columns
from tidegate.sql.handlers.batches import BOOKKEEPING_COLUMNS, PARTITION_KEY_COLUMN
from tidegate.sql.handlers.pipeline import returning_rows

TRANSACTION_ROWS_MAX = 50_000
"""Most rows per transaction (our choice: fewer make commits costly, more only use memory). A task that writes
to PostgreSQL holds the rows of two transactions."""
TRANSACTION_BYTES_MAX = 32 * 1024 * 1024
"""Most bytes of a transaction's rows in Arrow."""

_NODE = re.compile(r"^[ :|+-]*[~!']?([A-Z]\w+)", re.MULTILINE)
"""A node's line in a plan as text."""
_PARTITION_KEEPING: Final = frozenset(
    (
        "CollectMetrics",
        "EventTimeWatermark",
        "Filter",
        "Generate",
        "MapInArrow",
        "MapInPandas",
        "Project",
        "StreamingRelationV2",
        "SubqueryAlias",
    )
)
"""The nodes that leave rows in the task that has them, in their order."""

_COMMITTED = StructType([StructField("committed", BooleanType())])
"""The columns of rows from tasks that commit where they read: one, always null."""

Transformation = Callable[[DataFrame], DataFrame]
"""Turns columns of the format ``eventhubs`` into ``partition``, ``sequenceNumber``, the table's columns and,
optionally, ``_error`` (a reason: the event becomes a dead letter) and ``_skip`` (true: no row).

All rows of a partition must be in one task, so a transformation that shuffles must end with
``.repartition("partition")``."""


def run_pipeline(
    spark: SparkSession,
    pipeline: Pipeline,
    *,
    connection_string: str,
    database_url: str,
    checkpoint_location: str | Path,
    transform: Transformation | None = None,
    trigger: Trigger = AS_SOON_AS_POSSIBLE,
    max_events_per_trigger: int = MAX_EVENTS_PER_TRIGGER,
    starting_position: str = "earliest",
    fail_on_data_loss: bool = True,
    ca_file: str | Path | None = None,
    transaction_rows_max: int = TRANSACTION_ROWS_MAX,
    capture: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Start the pipeline and return its query; ``awaitTermination`` raises the error that ends it.

    transform: returns the DataFrame to write (the handler is then only for redrives); None: run the
    pipeline's handler, a function per event or per batch. checkpoint_location: Spark's own directory, new or
    this pipeline's; it may be lost, because the SQL checkpoint is authoritative. starting_position: where
    partitions without a SQL checkpoint start, as in the source's option ``startingPosition``.
    fail_on_data_loss: True ends the query with a PositionOutOfRangeError that names events that are gone;
    False skips them and logs this in Spark's workers.

    capture: options of the format ``eventhubs-capture``, at least ``path``, to replay events that retention
    has deleted. Each partition's events come from its capture files up to the log's beginning, then from the
    log: in order, none missing or repeated. A partition without a SQL checkpoint starts at its first captured
    event. The pipeline may be stopped, killed and restarted at any time, without ``capture`` once its
    checkpoint is in the log.

    A query waits for the service, the database (up to 5 minutes) and what the handler calls
    (``Pipeline.policy``) inside its micro-batch, and continues by itself.

    The driver started last owns the consumer group; an earlier one fails with a FencedError. Raises
    InvalidArgumentError (also if no events of this hub are captured), CaptureFileError,
    DatabaseError, EventHubReplacedError, and the service's errors.
    """
    source = HubSource(
        pipeline.event_hub,
        pipeline.consumer_group,
        starting_position,
        max_events_per_trigger,
        fail_on_data_loss,
    )
    return start_query(
        spark,
        pipeline,
        source,
        connection_string=connection_string,
        database_url=database_url,
        checkpoint_location=checkpoint_location,
        transform=transform,
        trigger=trigger,
        ca_file=ca_file,
        rows_max=transaction_rows_max,
        capture=capture,
    )


def start_query(
    spark: SparkSession,
    pipeline: Pipeline,
    source: HubSource,
    *,
    connection_string: str,
    database_url: str,
    checkpoint_location: str | Path,
    transform: Transformation | None,
    trigger: Trigger,
    ca_file: str | Path | None,
    capture: Mapping[str, str] | None,
    rows_max: int = TRANSACTION_ROWS_MAX,
) -> StreamingQuery:
    """As ``run_pipeline``, for a declared source."""
    pipeline = returning_rows(pipeline)
    if transform is not None and pipeline.policy is not None:
        raise InvalidArgumentError(
            f"The policy of the pipeline {pipeline.name} is for its handler, which a transformation "
            "replaces.",
            next_step="Leave it out; rows with _error become dead letters.",
        )
    is_per_event = transform is None and pipeline.batch_handler is None
    options = {
        **hub_options(source, connection_string, ca_file),
        **task_options(spark),
        "eventhubs.encodedEvents": str(is_per_event).lower(),
        "eventhubs.splitPartitions": "false",  # a transaction holds a partition's events in one piece
    }
    replay: dict[str, str] | None = None
    columns: list[str] = []
    if capture is not None:
        replay, options["eventhubs.startingPositions"] = plan_replay(options, capture)
        if transform is None and not is_per_event:
            columns = _replayed_columns(pipeline)
    plan = _claimed_plan(
        pipeline, options, database_url, is_transformed=transform is not None, rows_max=rows_max
    )
    # From here on, the SQL checkpoints created by the claim say where to start.
    options["eventhubs.startingPosition"] = CHECKPOINT_PREFIX + plan.database_url
    register(spark)
    reader = spark.readStream.options(**options)
    if transform is None and replay is None:
        # Events need not pass through Java between reading and writing; any other sink than this one would
        # end in Python: two more processes.
        rows = (
            reader.format(ProcessedDataSource.name()).options(**_committing(plan)).schema(_COMMITTED).load()
        )
        writer = rows.writeStream.format("noop")
    else:
        rows = _load(reader, replay, columns)
        if transform is not None:
            rows = _checked(transform(rows), pipeline, is_replayed=replay is not None)
            is_end_known = local_path(str(checkpoint_location)) is not None and not is_on_cluster()
            may_filter = is_end_known and replay is None and _PARTITION_KEEPING.issuperset(_nodes(rows))
            plan = replace(plan, may_filter=may_filter)
        writer = rows.writeStream.format(SqlSinkDataSource.name()).option(PLAN_OPTION, plan.to_text())
    writer = writer.queryName(pipeline.name).outputMode("append")
    writer = writer.option("checkpointLocation", checkpoint_path(checkpoint_location))
    return trigger.applied_to(writer).start()


def sink_options(
    pipeline: Pipeline,
    source_options: dict[str, str],
    database_url: str,
    *,
    is_transformed: bool,
    rows_max: int = TRANSACTION_ROWS_MAX,
) -> dict[str, str]:
    """Claim the pipeline's checkpoints for this driver, and return options for your own ``writeStream``.

    source_options: of the ``eventhubs`` stream that feeds it. Creates a missing table. Raises as
    ``run_pipeline``.
    """
    plan = _claimed_plan(
        pipeline, source_options, database_url, is_transformed=is_transformed, rows_max=rows_max
    )
    return {PLAN_OPTION: plan.to_text()}


def _claimed_plan(
    pipeline: Pipeline,
    source_options: Mapping[str, str],
    database_url: str,
    *,
    is_transformed: bool,
    rows_max: int,
) -> SinkPlan:
    """The plan of the tasks, after claiming the pipeline's checkpoints for this driver."""
    pipeline = returning_rows(pipeline)
    source = SourceOptions.parse(source_options)
    if source.split_partitions:
        raise InvalidArgumentError(
            "The sink eventhubs-sql requires each partition's events in one task.",
            next_step="Leave the option eventhubs.splitPartitions out.",
        )
    database_url = absolute_url(database_url)  # Spark's workers run in another directory
    refuse_sqlite_on_cluster(database_url)
    database = Database.shared(database_url)
    database.ensure_table(pipeline.table)
    hub = HubReader(source)
    description = hub.describe()
    claim = claim_checkpoints(
        database,
        pipeline.consumer,
        event_hub_created_at_ms=description.created_at_ms,
        start_sequence_numbers=hub.resolve(source.starting, description),
        begin_sequence_numbers={
            key: bounds.begin_sequence_number for key, bounds in description.bounds.items()
        },
    )
    policy = pipeline.policy
    if policy is not None and policy.is_payload_copied:
        pipeline = replace(pipeline, is_payload_copied=True)
    return SinkPlan(
        pipeline=pipeline,
        database_url=database_url,
        source=source,
        claim=claim,
        is_transformed=is_transformed,
        transaction_rows_max=rows_max,
        transaction_bytes_max=TRANSACTION_BYTES_MAX,
    )


def _committing(plan: SinkPlan) -> dict[str, str]:
    """Options of the source, so that the tasks that read events also commit them."""
    reading = ReadingPlan(
        partial(commit_events, plan),
        pa.schema([(_COMMITTED.names[0], pa.bool_())]),
        tuple(needed_columns(plan.pipeline, is_transformed=False)),
    )
    return {PLAN_OPTION: plan.pickled(reading), COMMITS_OPTION: "true"}


def _load(reader: DataStreamReader, replay: Mapping[str, str] | None, columns: Sequence[str]) -> DataFrame:
    """The hub's events, or those of a replay. columns: empty: the format's own."""
    if replay is None:
        return reader.format(EventHubsDataSource.name()).option(COMMITS_OPTION, "true").load()
    reader = reader.format(ReplayDataSource.name()).options(**replay)
    if columns:
        reader = reader.schema(schema_of(columns))
    return reader.load()


def _replayed_columns(pipeline: Pipeline) -> list[str]:
    """The columns for a function over batches in a replay: those that it asks for, and the partition key,
    which the log can no longer provide for a dead letter. Raises InvalidArgumentError if more is needed.
    """
    if not policy_of(pipeline).is_plain:
        raise InvalidArgumentError(
            f"The policy of the pipeline {pipeline.name} needs whole events, which a replay does not have "
            "for a function over batches.",
            next_step="Replay with the default policy, or with a function per event.",
        )
    needed = needed_columns(pipeline, is_transformed=False)
    columns = list(dict.fromkeys([*needed, PARTITION_KEY_COLUMN]))
    check_replayable(columns, pipeline)
    return columns


def _checked(rows: DataFrame, pipeline: Pipeline, *, is_replayed: bool) -> DataFrame:
    """A transformation's result. Raises InvalidArgumentError if the sink cannot write it."""
    table = pipeline.table
    for name in needed_columns(pipeline, is_transformed=True):
        if name not in rows.columns:
            raise InvalidArgumentError(
                f"The transformation dropped the column {name!r}.",
                next_step="Keep the columns partition and sequenceNumber unchanged.",
            )
    for name in rows.columns:
        if name not in BOOKKEEPING_COLUMNS and name not in table.columns:
            raise InvalidArgumentError(
                f"The transformation returned the column {name!r}, which the table {table.name} lacks.",
                next_step=f"The table has {', '.join(table.columns.keys())}.",
            )
    for name in required_columns(table):
        if name not in rows.columns:
            raise InvalidArgumentError(
                f"The transformation returned no column {name!r}, which the table {table.name} requires.",
                next_step=f"It returned {', '.join(rows.columns)}. Select the column, or give it a default "
                "in the table (FetchedValue() where a trigger fills it).",
            )
    if sum(name.startswith("StreamingRelation") for name in _nodes(rows)) > 1:
        raise InvalidArgumentError(
            "The transformation reads the stream more than once (a union or a join with itself), so the rows "
            "of an event would come to different tasks and transactions.",
            next_step="Make all rows of an event in one pass, for example with explode(array(…)).",
        )
    if is_replayed:
        check_replayable(rows.columns, pipeline)
    return rows


def _nodes(rows: DataFrame) -> list[str]:
    """The names of the nodes of a DataFrame's analyzed plan."""
    if is_connect(rows.sparkSession):
        with redirect_stdout(StringIO()) as printed:
            rows.explain(extended=True)
        text = printed.getvalue().partition("== Analyzed")[2].partition("\n== ")[0]
    else:
        java_rows: Any = rows._jdf  # type: ignore[operator,unused-ignore]
        text = java_rows.queryExecution().analyzed().toString()
    return _NODE.findall(text)
