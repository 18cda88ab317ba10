"""Runs a pipeline over captured events for what retention has dropped, and then goes on live.

query = replay_pipeline(spark, pipeline, capture={"path": "/var/lib/capture"}, connection_string=…, …)
query.awaitTermination()
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tidegate.spark.pipelines.pipeline import (
    MAX_EVENTS_PER_TRIGGER,
    TRANSACTION_ROWS_MAX,
    Transformation,
    run_pipeline,
)
from tidegate.spark.runtime.trigger import AS_SOON_AS_POSSIBLE, Trigger
from tidegate.sql import Pipeline


def replay_pipeline(
    spark: SparkSession,
    pipeline: Pipeline,
    *,
    capture: Mapping[str, str],
    connection_string: str,
    database_url: str,
    checkpoint_location: str | Path,
    transform: Transformation | None = None,
    trigger: Trigger = AS_SOON_AS_POSSIBLE,
    max_events_per_trigger: int = MAX_EVENTS_PER_TRIGGER,
    is_gap_allowed: bool = False,
    ca_file: str | Path | None = None,
    transaction_rows_max: int = TRANSACTION_ROWS_MAX,
) -> StreamingQuery:
    """Start the pipeline where its SQL checkpoint stands, or with the first captured event; return its query.

    capture: options of the format ``eventhubs-capture``, ``path`` at least. Each partition's events come from
    its files up to where its log begins, and from the log after that: in order, none missing, none twice. It
    may be stopped, killed and started again at any time, also by ``run_pipeline`` once the checkpoint is in
    the log. The other parameters as in ``run_pipeline``.

    is_gap_allowed: events that are neither in the log nor in the files are passed over, and told in the log
    of Spark's workers; else the query ends with a PositionOutOfRangeError that names them.

    Raises InvalidArgumentError where no events of this hub are captured there, CaptureFileError, and what
    ``run_pipeline`` raises: EventHubReplacedError where the checkpoint is of another hub of that name.
    """
    return run_pipeline(
        spark,
        pipeline,
        connection_string=connection_string,
        database_url=database_url,
        checkpoint_location=checkpoint_location,
        transform=transform,
        trigger=trigger,
        max_events_per_trigger=max_events_per_trigger,
        fail_on_data_loss=not is_gap_allowed,
        ca_file=ca_file,
        transaction_rows_max=transaction_rows_max,
        capture=capture,
    )
