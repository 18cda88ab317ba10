"""A query of a driver of one's own is shown as one of `tidegate pipeline run` is."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.support import make_pipeline, publish

from tidegate.model.pipeline_status import PipelineState
from tidegate.spark import Trigger, reported_query, run_pipeline
from tidegate.testing.hub import HubService
from tidegate.transport.status_files import PipelineFiles

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("is_failing", [False, True], ids=["ends", "fails"])
def test_its_states_are_reported(
    spark: SparkSession,
    hub_service: HubService,
    event_hub: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_failing: bool,
) -> None:
    """From its start to its end, or to the error that ended it, with its micro-batches between."""
    monkeypatch.setenv("TIDEGATE_STATE_DIR", str(tmp_path))
    files = PipelineFiles(tmp_path)

    pipeline = make_pipeline(event_hub, "counted")
    publish(hub_service.connection_string, event_hub, 5)
    url = f"sqlite:///{tmp_path}/tidegate.db"

    def run() -> None:
        with reported_query(
            spark,
            pipeline.name,
            pipeline.consumer,
            connection_string=hub_service.connection_string,
            database_url=url,
            sink="sql",
            target=pipeline.table.name,
            checkpoint=str(tmp_path / "checkpoint"),
        ) as tell_running:
            states.append(files.read(pipeline.name).state)
            assert not files.log_file(pipeline.name).exists()
            query = run_pipeline(
                spark,
                pipeline,
                connection_string=hub_service.connection_string,
                database_url=url,
                checkpoint_location=tmp_path / "checkpoint",
                trigger=Trigger(is_available_now=True),
            )
            tell_running()
            query.awaitTermination()
            if is_failing:
                raise RuntimeError("the tables are gone")

    # Of an earlier run under that name, which may have been another hub's.
    files.log_file(pipeline.name).parent.mkdir(parents=True)
    files.log_file(pipeline.name).write_text("another tenant's events")
    states: list[PipelineState] = []
    if is_failing:
        with pytest.raises(RuntimeError):
            run()
    else:
        run()
    status = files.read(pipeline.name)
    assert states == [PipelineState.STARTING]
    assert (status.event_hub, status.target) == (event_hub, pipeline.table.name)
    if is_failing:
        assert status.state is PipelineState.FAILED
        assert "the tables are gone" in str(status.error)
    else:
        assert status.state is PipelineState.ENDED
        assert status.events_total == 5
