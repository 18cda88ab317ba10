"""Capture, then live: together they are the log, whatever is killed, and what is missing is named."""

from __future__ import annotations

import functools
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from sqlalchemy import select
from tests.spark.capture_support import capture_to_end, captured_then_live, drop_all
from tests.spark.driver_process import driver_process
from tests.spark.support import (
    assert_exact,
    has_reached,
    make_pipeline,
    outcome_of,
    publish,
    readings,
)

from tidegate.model.errors import InvalidArgumentError
from tidegate.spark import Trigger, explain, run_pipeline
from tidegate.sql import ArrowHandler, Database, Pipeline
from tidegate.testing.hub import HubService

pytestmark = pytest.mark.spark

_NOW = Trigger(is_available_now=True)
_DRIVER_TIMEOUT_S = 240
_POLL_S = 0.1


def _replay(
    spark: SparkSession,
    service: HubService,
    hub: str,
    url: str,
    path: Path,
    checkpoint: Path,
    **options: object,
) -> None:
    query = run_pipeline(
        spark,
        make_pipeline(hub),
        capture={"path": str(path)},
        connection_string=service.connection_string,
        database_url=url,
        checkpoint_location=checkpoint,
        trigger=_NOW,
        **options,  # type: ignore[arg-type]
    )
    query.awaitTermination(_DRIVER_TIMEOUT_S)


@pytest.mark.programs
@pytest.mark.repeats
def test_a_handler_goes_over_capture_and_then_live(
    spark: SparkSession, hub_service: HubService, database_url: str, tmp_path: Path
) -> None:
    """From the first captured event, in micro-batches that end in files and in the log; then again."""
    hub = captured_then_live(hub_service, tmp_path / "capture", 2000, 600)
    arguments = (spark, hub_service, hub, database_url, tmp_path / "capture", tmp_path / "checkpoint")
    _replay(*arguments, max_events_per_trigger=700)
    assert_exact(database_url, 2600)
    publish(hub_service.connection_string, hub, 100, first_value=2600)
    _replay(*arguments)
    assert_exact(database_url, 2700)


def _score_batch(batch: pa.RecordBatch) -> pa.Table:
    bodies: list[Any] = batch.column("body").to_pylist()
    values = [json.loads(body)["value"] for body in bodies]
    assert batch.column("properties.parity").to_pylist() == ["odd" if each % 2 else "even" for each in values]
    errors = [f"value {value % 10} cannot be scored" if value % 7 == 3 else None for value in values]
    return pa.table(
        {
            "partition": batch.column("partition"),
            "number": batch.column("sequenceNumber"),
            "value": values,
            "_error": pa.array(errors, pa.string()),
        }
    )


def test_a_function_over_batches_goes_over_capture_and_then_live(
    spark: SparkSession, hub_service: HubService, sqlite_url: str, tmp_path: Path
) -> None:
    """A replay does not commit where it reads: batches come to the function through Spark."""
    hub = captured_then_live(hub_service, tmp_path / "capture", 500, 100)
    handler = ArrowHandler(_score_batch, ("body", "partition", "sequenceNumber", "properties.parity"))
    pipeline = Pipeline("readings", hub, readings, handler)

    def start(pipeline: Pipeline) -> StreamingQuery:
        return run_pipeline(
            spark,
            pipeline,
            capture={"path": str(tmp_path / "capture")},
            connection_string=hub_service.connection_string,
            database_url=sqlite_url,
            checkpoint_location=tmp_path / "checkpoint",
            trigger=_NOW,
        )

    with pytest.raises(InvalidArgumentError, match="has no copy of an event"):
        start(replace(pipeline, is_payload_copied=True))
    query = start(pipeline)
    assert query.awaitTermination(_DRIVER_TIMEOUT_S)
    assert_exact(sqlite_url, 600)


def _score(rows: DataFrame) -> DataFrame:
    return rows.selectExpr(
        "partition",
        "sequenceNumber",
        "offset",
        "enqueuedTime",
        "sequenceNumber as number",
        "cast(get_json_object(cast(body as string), '$.value') as int) as value",
    ).selectExpr("*", "if(value % 7 = 3, 'cannot be scored', null) as _error")


def test_a_transformation_goes_over_capture_and_then_live(
    spark: SparkSession, hub_service: HubService, sqlite_url: str, tmp_path: Path
) -> None:
    """The same rows as with the handler; columns that only a log could give back are asked for at once."""
    hub = captured_then_live(hub_service, tmp_path / "capture", 500, 100)
    arguments = (spark, hub_service, hub, sqlite_url, tmp_path / "capture")
    with pytest.raises(InvalidArgumentError, match="dropped the column 'offset'"):
        _replay(*arguments, tmp_path / "cp", transform=lambda rows: _score(rows).drop("offset"))
    _replay(*arguments, tmp_path / "checkpoint", transform=_score)
    assert_exact(sqlite_url, 600)


def test_events_that_are_nowhere_are_named_or_passed_over(
    spark: SparkSession, hub_service: HubService, sqlite_url: str, tmp_path: Path
) -> None:
    """Captured, then a time without Capture that retention has dropped, then captured again, then live."""
    hub = hub_service.create_hub(partition_count=1)
    path = tmp_path / "capture"
    publish(hub_service.connection_string, hub, 50)
    capture_to_end(hub_service, hub, str(path))
    publish(hub_service.connection_string, hub, 20, first_value=50)
    drop_all(hub_service, hub)
    publish(hub_service.connection_string, hub, 30, first_value=70)
    capture_to_end(hub_service, hub, str(path))
    drop_all(hub_service, hub)
    publish(hub_service.connection_string, hub, 10, first_value=100)
    arguments = (spark, hub_service, hub, sqlite_url, path, tmp_path / "checkpoint")
    with pytest.raises(PySparkException) as caught:
        _replay(*arguments)
    assert explain(caught.value).startswith(
        "Partition 0: sequence number 50 was wanted, but the first available one is 70: retention has "
        "deleted the events between, and no capture file has them."
    )
    _replay(*arguments, fail_on_data_loss=False)
    with Database.open(sqlite_url) as database, database.read() as connection:
        numbers = set(connection.execute(select(readings.c.number)).scalars())
    dead = {number for number in range(110) if number % 7 == 3}
    assert numbers == {*range(50), *range(70, 110)} - dead


def test_captured_events_of_another_hub_are_not_taken(
    spark: SparkSession, hub_service: HubService, sqlite_url: str, tmp_path: Path
) -> None:
    """A path of one's neighbour would fill the table with his events."""
    neighbour = captured_then_live(hub_service, tmp_path / "capture", 40, 0)
    hub = hub_service.create_hub(partition_count=4)
    with pytest.raises(InvalidArgumentError, match="no captured events of the event hub"):
        _replay(spark, hub_service, hub, sqlite_url, tmp_path / "capture", tmp_path / "checkpoint")
    assert neighbour in {item.name for item in (tmp_path / "capture" / "tidegate").iterdir()}


_DRIVER = """
import json, sys
from tests.spark.conftest import QUICK_START
from tests.spark.support import make_pipeline
from tidegate.spark import Trigger, explain, run_pipeline, spark_session
arguments = json.loads(sys.argv[1])
spark = spark_session("driver", cores=2, java_options=QUICK_START, log_level="OFF")
try:
    hub = arguments.pop("event_hub")
    trigger = Trigger(is_available_now=True)
    run_pipeline(spark, make_pipeline(hub), trigger=trigger, **arguments).awaitTermination()
except Exception as error:
    print(explain(error), flush=True)
    sys.exit(1)
"""


@pytest.mark.timeout(600)
@pytest.mark.faults
@pytest.mark.repeats
def test_kills_within_capture_and_at_the_seam_leave_no_trace(
    hub_service: HubService, sqlite_url: str, tmp_path: Path
) -> None:
    """SIGKILL while files are read, then where the log takes over; the log's early part is really gone."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    captured, live = 2400, 800
    hub = captured_then_live(hub_service, tmp_path / "capture", captured, live)
    arguments = json.dumps(
        {
            "event_hub": hub,
            "capture": {"path": str(tmp_path / "capture")},
            "connection_string": hub_service.connection_string,
            "database_url": sqlite_url,
            "checkpoint_location": str(tmp_path / "checkpoint"),
            "max_events_per_trigger": 300,
            "transaction_rows_max": 50,
        }
    )
    log_file = tmp_path / "driver.log"

    for position in (1 + rng.randrange(captured // 2), captured - 100 + rng.randrange(100)):
        with driver_process(log_file, "-c", _DRIVER, arguments) as driver:
            driver.wait_until(functools.partial(has_reached, sqlite_url, position))
            driver.check_running()
    assert outcome_of(sqlite_url).position < captured + live
    with driver_process(log_file, "-c", _DRIVER, arguments) as driver:
        driver.wait_done()
    assert_exact(sqlite_url, captured + live)
