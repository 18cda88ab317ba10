"""Functions per Arrow and per pandas batch in Spark's tasks: exactly once, with dead letters and redrive."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import orjson
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.needs import ci_has
from tests.spark.support import assert_exact, outcome_of, publish, readings, score
from tests.support.sqlserver import SQL_SERVERS

from tidegate.client.blocking.consumer import BlockingConsumer
from tidegate.model.errors import InvalidArgumentError
from tidegate.spark import Trigger, explain, run_pipeline
from tidegate.sql import ArrowHandler, Database, DeadLetterFilter, DeadLetters, PandasHandler, Pipeline
from tidegate.testing.hub import HubService

_COUNT = 3000


def _score_arrow(batch: pa.RecordBatch) -> pa.Table:
    """``support.score`` with columns: it raises for the first half of the hub, and sets ``_error`` else."""
    bodies: list[Any] = batch.column("body").to_pylist()
    values = [orjson.loads(body)["value"] for body in bodies]
    errors = [f"value {value % 10} cannot be scored" if value % 7 == 3 else None for value in values]
    for value, error in zip(values, errors, strict=True):
        if error is not None and value % 2:
            raise ValueError(error)
    return pa.table(
        {
            "partition": batch.column("partition"),
            "number": batch.column("sequenceNumber"),
            "value": values,
            "_error": pa.array(errors, pa.string()),
        }
    )


def _score_pandas(frame: pd.DataFrame) -> pd.DataFrame:
    values = [json.loads(body)["value"] for body in frame["body"]]
    if any(value % 7 == 3 for value in values):
        raise ValueError(f"value {values[0] % 10} cannot be scored")
    return frame[["partition"]].assign(number=frame["sequenceNumber"], value=values)


def _run(
    spark: SparkSession,
    service: HubService,
    pipeline: Pipeline,
    database_url: str,
    directory: Path,
    **options: Any,
) -> None:
    query = run_pipeline(
        spark,
        pipeline,
        connection_string=service.connection_string,
        database_url=database_url,
        checkpoint_location=directory / f"checkpoint-{pipeline.event_hub}",
        trigger=Trigger(is_available_now=True),
        max_events_per_trigger=1200,
        transaction_rows_max=200,
        **options,
    )
    query.awaitTermination()


class _Unlucky:
    """Scores, but kills the first task that has come half-way."""

    def __init__(self, directory: Path) -> None:
        self.marker = directory / "killed"

    def __call__(self, batch: pa.RecordBatch) -> pa.Table:
        if batch.column("sequenceNumber")[0].as_py() > 300 and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return _score_arrow(batch)


@pytest.mark.programs
@ci_has("database_url", "sqlite", "postgresql", "mariadb", *SQL_SERVERS)
def test_a_function_over_batches_is_exactly_once(
    spark: SparkSession, hub_service: HubService, database_url: str, tmp_path: Path
) -> None:
    """A worker dies in the middle; what it was to do is done by another, once; a redrive closes the rest."""
    hub = hub_service.create_hub(partition_count=4)
    publish(hub_service.connection_string, hub, _COUNT)
    handler = ArrowHandler(_Unlucky(tmp_path), ("sequenceNumber", "body", "partition"))
    _run(spark, hub_service, Pipeline("readings", hub, readings, handler), database_url, tmp_path)
    assert (tmp_path / "killed").exists()
    assert_exact(database_url, _COUNT)
    corrected = ArrowHandler(
        lambda batch: pa.table(
            {
                "partition": batch.column("partition"),
                "number": batch.column("sequenceNumber"),
                "value": pa.array([-1] * batch.num_rows),
            }
        )
    )
    with Database.open(database_url) as database, BlockingConsumer(hub_service.connection_string) as reader:
        letters = DeadLetters(database).list(DeadLetterFilter(), limit=None)
        assert {letter.error_type for letter in letters} == {"ValueError", "TransformationError"}
        report = DeadLetters(database).redrive(Pipeline("readings", hub, readings, corrected), reader)
    assert report.redriven == len(letters) == sum(value % 7 == 3 for value in range(_COUNT))
    assert outcome_of(database_url).rows == _COUNT


def test_all_forms_leave_the_same_dead_letters(
    spark: SparkSession, hub_service: HubService, sqlite_url: str, tmp_path: Path
) -> None:
    """With their place, and with a copy of the event where that is wanted; read back from the hub at need."""
    forms: dict[str, Any] = {"event": score, "pandas": PandasHandler(_score_pandas)}
    found = []
    for name, handler in forms.items():
        hub = hub_service.create_hub(partition_count=2)
        publish(hub_service.connection_string, hub, 300)
        url = sqlite_url.replace("tidegate.db", f"{name}.db")
        pipeline = Pipeline("readings", hub, readings, handler, is_payload_copied=True)
        _run(spark, hub_service, pipeline, url, tmp_path)
        assert_exact(url, 300)
        with Database.open(url) as database:
            found.append(
                [
                    (
                        letter.partition_id,
                        letter.sequence_number,
                        letter.offset,
                        letter.reason,
                        letter.payload,
                    )
                    for letter in DeadLetters(database).list(DeadLetterFilter(), limit=None)
                ]
            )
    assert found[0] == found[1]
    assert len(found[0]) == sum(value % 7 == 3 for value in range(300))


def test_an_event_that_does_not_come_out_stops_the_query(
    spark: SparkSession, hub_service: HubService, sqlite_url: str, tmp_path: Path
) -> None:
    """It says which one, nothing of its batch is written, and the corrected function goes on there."""
    hub = hub_service.create_hub(partition_count=1)
    publish(hub_service.connection_string, hub, 50)
    filtering = ArrowHandler(lambda batch: _score_arrow(batch.slice(0, 2)))
    with pytest.raises(PySparkException) as caught:
        _run(spark, hub_service, Pipeline("readings", hub, readings, filtering), sqlite_url, tmp_path)
    assert "without a column sequenceNumber" in explain(caught.value)
    assert outcome_of(sqlite_url).rows == 0
    _run(
        spark,
        hub_service,
        Pipeline("readings", hub, readings, ArrowHandler(_score_arrow)),
        sqlite_url,
        tmp_path,
    )
    assert_exact(sqlite_url, 50)


def test_a_function_that_cannot_travel_is_refused_before_anything_runs(
    spark: SparkSession, hub_service: HubService, sqlite_url: str, tmp_path: Path
) -> None:
    """A lock in its closure: said on the driver, with what to do."""
    import threading

    lock = threading.Lock()
    hub = hub_service.create_hub(partition_count=1)

    def locked(batch: pa.RecordBatch) -> pa.RecordBatch:
        with lock:
            return batch

    with pytest.raises(InvalidArgumentError, match="cannot be sent to Spark's workers"):
        _run(
            spark,
            hub_service,
            Pipeline("readings", hub, readings, ArrowHandler(locked)),
            sqlite_url,
            tmp_path,
        )
