"""Drivers that are killed, and drivers that overlap: in processes of their own."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.spark.support import assert_exact, make_pipeline, outcome_of, position_of, publish

from tidegate.spark import explain, run_pipeline
from tidegate.sql import Database
from tidegate.testing.hub import HubService
from tidegate.testing.postgresql import PostgresqlServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_KILLS = 10
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

    def start(self, *, max_events_per_trigger: int) -> subprocess.Popen[bytes]:
        arguments = self._arguments | {
            "max_events_per_trigger": max_events_per_trigger,
            "transaction_rows_max": max_events_per_trigger // 10,
        }
        with (self._directory / "driver.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.spark.driver", json.dumps(arguments)],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def log(self) -> str:
        return (self._directory / "driver.log").read_text()[-4000:]


def _wait_progress(driver: subprocess.Popen[bytes], database_url: str, position: int) -> None:
    """Until the driver has accounted for so many events, or has ended."""
    deadline = time.monotonic() + _DRIVER_TIMEOUT_S
    with Database.open(database_url) as database:
        while driver.poll() is None and position_of(database) < position:
            assert time.monotonic() < deadline, f"the driver did not get to event {position}"
            time.sleep(_POLL_S)


def _kill(driver: subprocess.Popen[bytes]) -> None:
    """End the driver's process group at once, if it has not ended by itself."""
    if driver.poll() is None:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def test_ten_kills_of_the_driver_leave_no_trace(
    hub_service: HubService, sqlite_url: str, tmp_path: Path
) -> None:
    """SIGKILL for the driver, its JVM and what else is in their group, ten times at random moments.

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
        # A twelfth of the work at most per life, so that ten kills fall into the work and not behind it.
        position += 1 + rng.randrange(count // 12)
        driver = drivers.start(max_events_per_trigger=200)
        try:
            _wait_progress(driver, sqlite_url, position)
            time.sleep(rng.random() * 0.3)
            assert driver.poll() is None, drivers.log()
        finally:
            _kill(driver)
        position = outcome_of(sqlite_url).position
    assert 0 < position < count
    driver = drivers.start(max_events_per_trigger=2000)
    try:
        assert driver.wait(_DRIVER_TIMEOUT_S) == 0, drivers.log()
    finally:
        _kill(driver)
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
        with Database.open(database_url) as database:
            while position_of(database) == 0:
                assert time.monotonic() < deadline
                time.sleep(_POLL_S)
        drivers = _Drivers(hub_service, hub, database_url, tmp_path)
        second = drivers.start(max_events_per_trigger=1000)
        try:
            with pytest.raises(PySparkException) as caught:
                first.awaitTermination(_DRIVER_TIMEOUT_S)
            assert "Another driver took over the pipeline readings" in explain(caught.value)
            assert second.wait(_DRIVER_TIMEOUT_S) == 0, drivers.log()
        finally:
            _kill(second)
    finally:
        first.stop()
    assert_exact(database_url, count)
