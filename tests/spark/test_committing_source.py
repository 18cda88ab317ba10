"""A pipeline without a transformation commits where it reads; Spark hears of it, and counts events."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.support import assert_exact, make_pipeline, publish

from tidegate.spark import Trigger, run_pipeline, sink_options
from tidegate.spark.formats import ProcessedDataSource
from tidegate.spark.sql_sink.plan import SinkPlan
from tidegate.testing.hub import HubService

_COUNT = 1000


def test_spark_counts_events_although_they_do_not_pass_through_it(
    spark: SparkSession,
    hub_service: HubService,
    sqlite_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its progress says how many were read and given to the sink, in each micro-batch."""
    hub = hub_service.create_hub(partition_count=4)
    publish(hub_service.connection_string, hub, _COUNT)
    seen: list[str] = []
    pickled = SinkPlan.pickled

    def noted(self: SinkPlan, value: object) -> str:
        seen.append(pickled(self, value))
        return seen[-1]

    monkeypatch.setattr(SinkPlan, "pickled", noted)
    query = run_pipeline(
        spark,
        make_pipeline(hub),
        connection_string=hub_service.connection_string,
        database_url=sqlite_url,
        checkpoint_location=tmp_path / "checkpoint",
        trigger=Trigger(is_available_now=True),
        max_events_per_trigger=400,
    )
    assert query.awaitTermination(300)
    assert_exact(sqlite_url, _COUNT)
    found = [json.loads(progress.json) for progress in query.recentProgress]
    found = [progress for progress in found if progress["numInputRows"]]
    assert len(found) > 1
    assert sum(progress["numInputRows"] for progress in found) == _COUNT
    assert sum(progress["sink"]["numOutputRows"] for progress in found) == _COUNT
    java_query = query._jsq
    plan: str = java_query.explainInternal(True)
    assert ProcessedDataSource.name() in plan
    assert hub_service.connection_string not in plan
    # The plan holds secrets, pickled.
    assert seen
    assert all(text[:60] not in plan for text in seen)


def test_a_query_of_ones_own_goes_through_spark(
    spark: SparkSession, hub_service: HubService, sqlite_url: str, tmp_path: Path
) -> None:
    """With the sink's options: encoded events come to the handler in the tasks that write."""
    hub = hub_service.create_hub(partition_count=4)
    publish(hub_service.connection_string, hub, _COUNT)
    source = {
        "eventhubs.connectionString": hub_service.hub_connection_string(hub),
        "eventhubs.startingPosition": "earliest",
        "eventhubs.encodedEvents": "true",
    }
    sink = sink_options(make_pipeline(hub), source, sqlite_url, is_transformed=False)
    query = (
        spark.readStream.format("eventhubs")
        .options(**source)
        .load()
        .writeStream.format("eventhubs-sql")
        .options(**sink)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    assert_exact(sqlite_url, _COUNT)
