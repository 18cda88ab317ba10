"""Runs a pipeline on Spark: events of a hub, through a function or a DataFrame, into a table, exactly once.

pipeline = Pipeline("flights", "flights", table, handler)
query = run_pipeline(spark, pipeline, connection_string=…, database_url=…, checkpoint_location=…)
query.awaitTermination()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.capture.replay_source import ReplayDataSource, check_replayable, plan_replay
from tidegate.spark.formats import EventHubsDataSource, register
from tidegate.spark.runtime.pickled import PLAN_OPTION
from tidegate.spark.runtime.session import checkpoint_path, refuse_sqlite_on_cluster, task_options
from tidegate.spark.runtime.trigger import AS_SOON_AS_POSSIBLE, Trigger
from tidegate.spark.source.hub import HubReader
from tidegate.spark.source.options import CHECKPOINT_PREFIX, SourceOptions
from tidegate.spark.source.ownership import claim_checkpoints
from tidegate.spark.source.schema import event_field
from tidegate.spark.sql_sink.commits import BOOKKEEPING_COLUMNS, needed_columns
from tidegate.spark.sql_sink.committing_source import SINK_FORMAT, CommittingDataSource
from tidegate.spark.sql_sink.plan import SinkPlan
from tidegate.spark.sql_sink.sink import SqlSinkDataSource
from tidegate.sql import Database, Pipeline
from tidegate.sql.core.database import absolute_url
from tidegate.sql.core.row_groups import required_columns
from tidegate.sql.handlers.batches import PARTITION_KEY_COLUMN

TRANSACTION_ROWS_MAX = 50_000
"""Rows of one transaction at most (our choice: below it the commit is felt, above it only memory is). A task
that writes to PostgreSQL holds those of two."""
TRANSACTION_BYTES_MAX = 32 * 1024 * 1024
"""Bytes of a transaction's rows in Arrow, at most."""
MAX_EVENTS_PER_TRIGGER = 500_000
"""Events of one micro-batch at most, unless said otherwise; bounds what one failure repeats."""

Transformation = Callable[[DataFrame], DataFrame]
"""From the columns of the format ``eventhubs`` to ``partition``, ``sequenceNumber``, the table's columns and,
where wanted, ``_error`` (a reason: the event becomes a dead letter) and ``_skip`` (true: no row).

All rows of a partition have to come to one task: what shuffles ends with ``.repartition("partition")``."""


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
    """Start the pipeline and return its query; ``awaitTermination`` raises what it ends with.

    transform: None runs the pipeline's handler, a function per event or per batch; else the DataFrame that it
    returns is written, and the handler is only for redrives. checkpoint_location: Spark's own directory, new
    or of this pipeline; it may be lost, because the SQL checkpoint is what counts. starting_position: where
    partitions without a SQL checkpoint start, as in the source's option ``startingPosition``.

    capture: options of the format ``eventhubs-capture``: what retention has dropped is read from there, as
    ``replay_pipeline`` says.

    The driver started last owns the consumer group: one that runs already fails with a FencedError.
    Raises InvalidArgumentError, DatabaseError, EventHubReplacedError, and what the service says.
    """
    database_url = absolute_url(database_url)
    is_batched = transform is None and pipeline.batch_handler is not None
    is_per_event = transform is None and not is_batched
    options = {
        "eventhubs.connectionString": _hub_string(connection_string, pipeline.event_hub),
        "eventhubs.consumerGroup": pipeline.consumer_group,
        "eventhubs.startingPosition": starting_position,
        "eventhubs.failOnDataLoss": str(fail_on_data_loss).lower(),
        "eventhubs.maxEventsPerTrigger": str(max_events_per_trigger),
        **task_options(spark),
        "eventhubs.encodedEvents": str(is_per_event).lower(),
        "eventhubs.splitPartitions": "false",  # a transaction holds a partition's events in one piece
    }
    if ca_file is not None:
        options["eventhubs.caFile"] = str(ca_file)
    replay = None if capture is None else plan_replay(options, capture)
    if replay is not None:
        options["eventhubs.startingPositions"] = replay.starting_positions
    replayed_columns = _replayed_columns(pipeline) if replay is not None and is_batched else []
    # With nothing in between, events need not go through Java from the task's reading to its writing.
    is_committed_by_source = transform is None and replay is None
    claimed = sink_options(
        pipeline,
        options,
        database_url,
        is_transformed=transform is not None,
        rows_max=transaction_rows_max,
    )
    register(spark)
    # From here on the SQL checkpoints say where to start, for they exist now.
    options["eventhubs.startingPosition"] = CHECKPOINT_PREFIX + database_url
    reader = spark.readStream.format(EventHubsDataSource.name()).options(**options)
    if is_committed_by_source:
        reader = reader.format(CommittingDataSource.name()).options(**claimed)
    if replay is not None:
        reader = reader.format(ReplayDataSource.name()).options(**replay.options)
    if replayed_columns:
        reader = reader.schema(StructType([event_field(name) for name in replayed_columns]))
    rows = reader.load()
    if transform is not None:
        rows = _checked(transform(rows), pipeline)
        if replay is not None:
            check_replayable(rows.columns, pipeline)
    if is_committed_by_source:
        writer = rows.writeStream.format(SINK_FORMAT)
    else:
        writer = rows.writeStream.format(SqlSinkDataSource.name()).options(**claimed)
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
    """Claim the pipeline's checkpoints for this driver; the options for a ``writeStream`` of its own making.

    source_options: those of the ``eventhubs`` stream that feeds it. Creates the table where it is missing.
    Raises as ``run_pipeline``.
    """
    source = SourceOptions.parse(source_options)
    if source.split_partitions:
        raise InvalidArgumentError(
            "The sink eventhubs-sql needs each partition's events in one task.",
            next_step="Leave the option eventhubs.splitPartitions out.",
        )
    database_url = absolute_url(database_url)  # Spark's workers run in a directory of their own
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
    )
    plan = SinkPlan(
        pipeline=pipeline,
        database_url=database_url,
        source=source,
        claim=claim,
        is_transformed=is_transformed,
        transaction_rows_max=rows_max,
        transaction_bytes_max=TRANSACTION_BYTES_MAX,
    )
    return {PLAN_OPTION: plan.to_text()}


def _replayed_columns(pipeline: Pipeline) -> list[str]:
    """Those that come to a function over batches in a replay: what it asks for, and the key, which the log
    could not give back for a dead letter. Raises InvalidArgumentError where there would be more of that.
    """
    needed = needed_columns(pipeline, is_transformed=False)
    columns = list(dict.fromkeys([*needed, PARTITION_KEY_COLUMN]))
    check_replayable(columns, pipeline)
    return columns


def _hub_string(connection_string: str, event_hub: str) -> str:
    parsed = ConnectionString.parse(connection_string)
    if parsed.entity_path is not None and parsed.entity_path.lower() != event_hub.lower():
        raise InvalidArgumentError(
            f"The connection string's EntityPath says {parsed.entity_path!r}, and the pipeline reads "
            f"{event_hub!r}.",
            next_step="Leave EntityPath out of the connection string.",
        )
    return parsed.with_entity_path(event_hub).format()


def _checked(rows: DataFrame, pipeline: Pipeline) -> DataFrame:
    """What a transformation returned, if the sink can write it."""
    missing = [name for name in needed_columns(pipeline, is_transformed=True) if name not in rows.columns]
    unknown = [
        name
        for name in rows.columns
        if name not in BOOKKEEPING_COLUMNS and name not in pipeline.table.columns
    ]
    if missing:
        raise InvalidArgumentError(
            f"The transformation dropped the column {missing[0]!r}.",
            next_step="Keep the columns partition and sequenceNumber as they came.",
        )
    if unknown:
        raise InvalidArgumentError(
            f"The transformation returned the column {unknown[0]!r}, which the table {pipeline.table.name} "
            "lacks.",
            next_step=f"It has {', '.join(pipeline.table.columns.keys())}.",
        )
    forgotten = [name for name in required_columns(pipeline.table) if name not in rows.columns]
    if forgotten:
        raise InvalidArgumentError(
            f"The transformation returns no column {forgotten[0]!r}, without which the table "
            f"{pipeline.table.name} takes no row.",
            next_step=f"It returns {', '.join(rows.columns)}. Select the column, or give it a default in the "
            "table (FetchedValue() where a trigger fills it).",
        )
    if _streaming_input_count(rows) > 1:
        raise InvalidArgumentError(
            "The transformation reads the stream more than once (a union or a join with itself), so the rows "
            "of an event would come to different tasks and transactions.",
            next_step="Make all rows of an event in one pass, such as with explode(array(…)).",
        )
    return rows


def _streaming_input_count(rows: DataFrame) -> int:
    java_rows: Any = rows._jdf  # type: ignore[operator,unused-ignore]
    leaves = java_rows.queryExecution().analyzed().collectLeaves()
    return sum(leaves.apply(index).isStreaming() for index in range(leaves.size()))
