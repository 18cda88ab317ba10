"""A pipeline on a standalone cluster: executors that have no Tidegate but what the package brings, and some
that join while it runs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text
from tests.spark.cluster.submitting import PROGRAMS, log_of, make_package, submit
from tests.spark.support import assert_exact, cluster_environment, position_of, publish
from tests.support.postgresql import PostgresqlServer
from tests.support.spark_cluster import SparkCluster

from tidegate.client import EventHubProducer
from tidegate.model.events import EventData
from tidegate.spark.source.offsets import TASK_EVENTS
from tidegate.sql import Database
from tidegate.testing.hub import HubService

pytestmark = [pytest.mark.programs, pytest.mark.spark, pytest.mark.timeout(600)]

_WAIT_S = 240.0
"""A deadline, not a promise."""
_FILES = (str(PROGRAMS / "readings_pipeline.py"), str(PROGRAMS / "readings_scoring.py"))


def _environment(
    service: HubService, event_hub: str, database_url: str, directory: Path, per_trigger: int
) -> dict[str, str]:
    return {
        "TIDEGATE_CONNECTION_STRING": service.connection_string,
        "TIDEGATE_DATABASE": database_url,
        "READINGS_HUB": event_hub,
        "READINGS_CHECKPOINT": str(directory / "checkpoint"),
        "READINGS_PER_TRIGGER": str(per_trigger),
    }


def _wait_position(
    driver: subprocess.Popen[bytes], database_url: str, position: int, directory: Path
) -> None:
    with Database.open(database_url) as database:
        _wait(driver, lambda: position_of(database) >= position, directory)


def _wait(driver: subprocess.Popen[bytes], condition: Callable[[], bool], directory: Path) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not condition():
        assert driver.poll() is None, log_of(directory)
        assert time.monotonic() < deadline, log_of(directory)
        time.sleep(0.05)


def _finish(driver: subprocess.Popen[bytes], directory: Path) -> None:
    try:
        assert driver.wait(_WAIT_S) == 0, log_of(directory)
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()


def test_a_zip_brings_tidegate_and_the_users_modules(
    spark_cluster: SparkCluster,
    executor_python: Path,
    hub_service: HubService,
    postgresql: PostgresqlServer,
    tmp_path: Path,
) -> None:
    """The printed command runs the pipeline exactly once, though an executor is killed in the middle.

    Neither driver nor executors can import Tidegate but from the zip. Speculation runs tasks twice.
    """
    count = 6_000
    hub = hub_service.create_hub(partition_count=4)
    publish(hub_service.connection_string, hub, count)
    url = postgresql.create_schema()
    command = make_package(
        *_FILES, "--python", str(executor_python), output=tmp_path / "dist", cluster=spark_cluster
    )
    environment = _environment(hub_service, hub, url, tmp_path, count // 10)
    driver = submit(
        command,
        tmp_path,
        environment,
        spark__speculation="true",
        spark__speculation__interval="50ms",
        spark__speculation__multiplier="1.1",
        spark__speculation__quantile="0.1",
        spark__speculation__minTaskRuntime="0ms",
    )
    try:
        _wait_position(driver, url, 1, tmp_path)
        os.kill(spark_cluster.executor_ids()[0], signal.SIGKILL)
        _wait_position(driver, url, count, tmp_path)
    finally:
        _finish(driver, tmp_path)
    assert_exact(url, count)


@pytest.mark.repeats
def test_an_environment_brings_every_package(
    spark_cluster: SparkCluster, hub_service: HubService, postgresql: PostgresqlServer, tmp_path: Path
) -> None:
    """The printed command runs the pipeline on executors whose Python has no package at all, over TLS."""
    count = 400
    hub = hub_service.create_hub(partition_count=4)
    publish(hub_service.connection_string, hub, count)
    url = postgresql.create_schema()
    command = make_package(*_FILES, "--environment", output=tmp_path / "dist", cluster=spark_cluster)
    driver = submit(command, tmp_path, _environment(hub_service, hub, url, tmp_path, count))
    _finish(driver, tmp_path)
    assert_exact(url, count)


def test_what_is_missing_is_said(spark_cluster: SparkCluster, tmp_path: Path) -> None:
    """Executors without Tidegate are found out before a query fails on them; SQLite is refused."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    command = (
        f'PATH={Path(sys.prefix) / "bin"}:"$PATH" PYSPARK_PYTHON={name} '
        f"spark-submit --master {spark_cluster.master_url} {PROGRAMS / 'refusals.py'}"
    )
    driver = submit(command, tmp_path, {})
    _finish(driver, tmp_path)
    log = (tmp_path / "submit.log").read_text()
    assert "cannot import tidegate. Create a package with `tidegate spark package`" in log
    assert "database: SQLite is a file on one machine" in log


@pytest.mark.repeats
def test_executors_that_join_take_load_over(
    hub_service: HubService, postgresql: PostgresqlServer, tmp_path: Path
) -> None:
    """A pipeline starts with one core, and two executors join in its first micro-batch. The second one has a
    task on each of the three. (With one it would prove nothing: Spark takes a cluster of one core for two.)
    """
    hub, url = hub_service.create_hub(partition_count=3), postgresql.create_schema()
    _publish_evenly(hub_service, hub, ["0", "1", "2"], 2 * TASK_EVENTS)
    environment = cluster_environment(tmp_path)
    secrets = {"TIDEGATE_CONNECTION_STRING": hub_service.connection_string, "TIDEGATE_DATABASE": url}
    with SparkCluster(workers=1, environment=environment) as cluster:
        program = f"{PROGRAMS / 'joined_executors.py'} {hub} {3 * TASK_EVENTS} 3 {tmp_path}"
        command = f"spark-submit --master {cluster.master_url} {program}"
        driver = submit(command, tmp_path, environment | secrets)
        try:
            _wait(driver, (tmp_path / "started").exists, tmp_path)
            cluster.start_worker(1)
            cluster.start_worker(2)
        finally:
            _finish(driver, tmp_path)
    query = text("SELECT stage, executor, count(*) FROM places GROUP BY stage, executor ORDER BY stage")
    with Database.open(url) as database, database.read() as connection:
        first, *_, last = found = [tuple(row) for row in connection.execute(query)]
    assert first[0] < last[0], found
    assert [count for stage, _, count in found if stage == last[0]] == [TASK_EVENTS] * 3, found


def _publish_evenly(service: HubService, hub: str, partition_ids: list[str], count_each: int) -> None:
    async def send() -> None:
        async with EventHubProducer.from_connection_string(service.connection_string, hub) as producer:
            for partition_id in partition_ids:
                await producer.enqueue_many([EventData(b"x")] * count_each, partition_id=partition_id)
            await producer.flush()

    asyncio.run(send())
