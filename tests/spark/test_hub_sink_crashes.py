"""Spark → hub → Spark → hub and files, while drivers and the service are killed at random moments."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from tidegate.client import BlockingConsumer
from tidegate.spark.file_sink_commits import published_files
from tidegate.testing.hub import HubProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_COUNT = 4_000
_KEYS = 40
_DRIVER_KILLS = 2
_DEADLINE_S = 240


@pytest.fixture
def service() -> Iterator[HubProcess]:
    """A service in a process of its own, to be killed."""
    with HubProcess() as process:
        yield process


def _start(arguments: dict[str, object], log_file: Path) -> subprocess.Popen[bytes]:
    with log_file.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.spark.sink_driver", json.dumps(arguments)],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _kill(driver: subprocess.Popen[bytes]) -> None:
    if driver.poll() is None:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def _stored_count(service: HubProcess, hub: str) -> int:
    with BlockingConsumer(service.connection_string, hub) as consumer:
        return sum(each.next_sequence_number for each in consumer.get_all_partition_properties())


def _wait_stored(driver: subprocess.Popen[bytes], service: HubProcess, hub: str, count: int) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while driver.poll() is None and _stored_count(service, hub) < count:
        assert time.monotonic() < deadline, f"the driver did not get to event {count}"
        time.sleep(0.05)


def _read(spark: SparkSession, service: HubProcess, hub: str) -> DataFrame:
    reader = spark.read.format("eventhubs")
    return reader.option("eventhubs.connectionString", service.hub_connection_string(hub)).load()


def test_kills_lose_and_double_nothing(spark: SparkSession, service: HubProcess, tmp_path: Path) -> None:
    """SIGKILL for drivers, their JVMs, and the service: contents, counts and the order per key are the same.

    The target has as many events as were written in the first place, each once, each key's in the order of
    its partition in the source; and so have the files that a listing shows.
    """
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    source, target = service.create_hub(partition_count=4), service.create_hub(partition_count=3)
    rows = spark.range(0, _COUNT, 1, 1).select(
        sf.col("id").cast("string").alias("body"), (sf.col("id") % _KEYS).cast("string").alias("partitionKey")
    )
    writer = rows.write.format("eventhubs").mode("append")
    writer.option("eventhubs.connectionString", service.hub_connection_string(source)).save()
    arguments: dict[str, object] = {
        "source": service.hub_connection_string(source),
        "target": service.hub_connection_string(target),
        "files": str(tmp_path / "files"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "max_events_per_trigger": 250,
    }
    log_file = tmp_path / "driver.log"
    stored = 0
    for _ in range(_DRIVER_KILLS):
        driver = _start(arguments, log_file)
        try:
            _wait_stored(driver, service, target, stored + 1 + rng.randrange(_COUNT // 4))
            time.sleep(rng.random() * 0.3)
            assert driver.poll() is None, log_file.read_text()[-2000:]
        finally:
            _kill(driver)
        stored = _stored_count(service, target)
        assert stored < _COUNT
    driver = _start(arguments | {"max_events_per_trigger": 500}, log_file)
    try:
        _wait_stored(driver, service, target, stored + 1 + rng.randrange((_COUNT - stored) // 2))
        service.kill()
        service.start()
        assert driver.wait(_DEADLINE_S) == 0, log_file.read_text()[-2000:]
    finally:
        _kill(driver)
    found = (
        _read(spark, service, target).select("body", "partitionKey", "partition", "sequenceNumber").collect()
    )
    assert sorted(int(row.body) for row in found) == list(range(_COUNT))
    by_key: dict[str, list[int]] = {}
    for row in sorted(found, key=lambda row: (row.partition, row.sequenceNumber)):
        by_key.setdefault(row.partitionKey, []).append(int(row.body))
    assert by_key == {str(key): list(range(key, _COUNT, _KEYS)) for key in range(_KEYS)}
    listed = list((tmp_path / "files").glob("partition=*/*.json"))
    assert {str(path) for path in listed} == set(published_files(str(tmp_path / "files")))
    bodies = [json.loads(line)["body"] for path in listed for line in path.read_text().splitlines()]
    assert sorted(map(int, bodies)) == list(range(_COUNT))
