"""Drivers that are killed, and drivers that overlap: in processes of their own."""

from __future__ import annotations

import functools
import json
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.spark.driver_process import DriverProcess, driver_process
from tests.spark.support import assert_exact, has_reached, make_pipeline, outcome_of, publish
from tests.support.postgresql import PostgresqlServer

from tidegate.spark import explain, run_pipeline
from tidegate.testing.hub import HubService

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(900)]

_KILLS = int(os.environ.get("TIDEGATE_KILLS", "4"))
"""``make chaos-spark`` kills ten times."""
_DRIVER_TIMEOUT_S = 120
_POLL_S = 0.1


class _Drivers:
    """Starts drivers over one hub and one database, each in a process group of its own."""

    def __init__(self, service: HubService, hub: str, database_url: str, directory: Path) -> None:
        self._directory = directory
        self._arguments: dict[str, object] = {
            "connection_string": service.connection_string,
            "event_hub": hub,
            "database_url": database_url,
            "checkpoint": str(directory / "checkpoint"),
        }

    @contextmanager
    def running(self, *, max_events_per_trigger: int) -> Iterator[DriverProcess]:
        arguments = self._arguments | {
            "max_events_per_trigger": max_events_per_trigger,
            "transaction_rows_max": max_events_per_trigger // 10,
        }
        words = ("-m", "tests.spark.driver", json.dumps(arguments))
        with driver_process(self._directory / "driver.log", *words) as driver:
            yield driver


@pytest.mark.repeats
def test_kills_of_the_driver_leave_no_trace(hub_service: HubService, sqlite_url: str, tmp_path: Path) -> None:
    """SIGKILL for the driver, its JVM and what else is in their group, at random moments.

    Spark's Python workers make a group of their own and may outlive their driver for a moment: zombies, which
    the next driver's claim must shut out.
    """
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    count = 12_000
    hub = hub_service.create_hub(partition_count=4)
    publish(hub_service.connection_string, hub, count)
    drivers = _Drivers(hub_service, hub, sqlite_url, tmp_path)
    position = 0
    for _ in range(_KILLS):
        # A part of the work per life, so that every kill falls into the work and not behind it.
        position += 1 + rng.randrange(count // (_KILLS + 2))
        with drivers.running(max_events_per_trigger=200) as driver:
            driver.wait_until(functools.partial(has_reached, sqlite_url, position))
            time.sleep(rng.random() * 0.3)
            driver.check_running()
        position = outcome_of(sqlite_url).position
    assert 0 < position < count
    with drivers.running(max_events_per_trigger=2000) as driver:
        driver.wait_done()
    assert_exact(sqlite_url, count)


def test_of_two_drivers_at_once_one_fails_clearly(
    spark: SparkSession, hub_service: HubService, postgresql: PostgresqlServer, tmp_path: Path
) -> None:
    """The driver started last takes the consumer group over; the other one says so and writes no more."""
    count = 8_000
    database_url = postgresql.create_schema()
    hub = hub_service.create_hub(partition_count=4)
    publish(hub_service.connection_string, hub, count)
    first = run_pipeline(
        spark,
        make_pipeline(hub),
        connection_string=hub_service.connection_string,
        database_url=database_url,
        checkpoint_location=tmp_path / "first",
        max_events_per_trigger=20,
    )
    try:
        deadline = time.monotonic() + _DRIVER_TIMEOUT_S
        while not has_reached(database_url, 1):
            assert time.monotonic() < deadline
            time.sleep(_POLL_S)
        drivers = _Drivers(hub_service, hub, database_url, tmp_path)
        with drivers.running(max_events_per_trigger=1000) as second:
            with pytest.raises(PySparkException) as caught:
                first.awaitTermination(_DRIVER_TIMEOUT_S)
            assert "Another driver took over the pipeline readings" in explain(caught.value)
            second.wait_done()
    finally:
        first.stop()
    assert_exact(database_url, count)
