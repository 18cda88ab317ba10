"""Spark → hub → Spark → hub and files, while drivers and the service are killed at random moments."""

from __future__ import annotations

import functools
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from tests.spark.driver_process import driver_process

from tidegate.client import BlockingConsumer
from tidegate.spark.file_sink.commits import published_files
from tidegate.testing.hub import HubProcess

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(900)]

_COUNT_PER_KILL = 2_000
_POLL_S = 0.2
_KEYS = 40
_MODULE = ("-m", "tests.spark.sink_driver")


@pytest.fixture
def service() -> Iterator[HubProcess]:
    """A service in a process of its own, to be killed."""
    with HubProcess() as process:
        yield process


def _stored_count(service: HubProcess, hub: str) -> int:
    with BlockingConsumer(service.connection_string, hub) as consumer:
        return sum(each.next_sequence_number for each in consumer.get_all_partition_properties())


def _has_stored(service: HubProcess, hub: str, count: int) -> bool:
    return _stored_count(service, hub) >= count


def _read(spark: SparkSession, service: HubProcess, hub: str) -> DataFrame:
    reader = spark.read.format("eventhubs")
    return reader.option("eventhubs.connectionString", service.hub_connection_string(hub)).load()


@pytest.mark.parametrize("driver_kills", [1, pytest.param(2, marks=pytest.mark.repeats)])
def test_kills_lose_and_double_nothing(
    spark: SparkSession, service: HubProcess, tmp_path: Path, driver_kills: int
) -> None:
    """SIGKILL for drivers, their JVMs, and the service: contents, counts and the order per key are the same.

    The target has as many events as were written in the first place, each once, each key's in the order of
    its partition in the source; and so have the files that a listing shows.
    """
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    count = _COUNT_PER_KILL * driver_kills
    source, target = service.create_hub(partition_count=4), service.create_hub(partition_count=3)
    rows = spark.range(0, count, 1, 1).select(
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
    for _ in range(driver_kills):
        wanted = stored + 1 + rng.randrange(count // 4)
        with driver_process(log_file, *_MODULE, json.dumps(arguments)) as driver:
            driver.wait_until(functools.partial(_has_stored, service, target, wanted), poll_s=_POLL_S)
            time.sleep(rng.random() * 0.3)
            driver.check_running()
        stored = _stored_count(service, target)
        assert stored < count
    wanted = stored + 1 + rng.randrange((count - stored) // 2)
    last = json.dumps(arguments | {"max_events_per_trigger": 500})
    with driver_process(log_file, *_MODULE, last) as driver:
        driver.wait_until(functools.partial(_has_stored, service, target, wanted), poll_s=_POLL_S)
        service.kill()
        service.start()
        driver.wait_done()
    found = (
        _read(spark, service, target).select("body", "partitionKey", "partition", "sequenceNumber").collect()
    )
    assert sorted(int(row.body) for row in found) == list(range(count))
    by_key: dict[str, list[int]] = {}
    for row in sorted(found, key=lambda row: (row.partition, row.sequenceNumber)):
        by_key.setdefault(row.partitionKey, []).append(int(row.body))
    assert by_key == {str(key): list(range(key, count, _KEYS)) for key in range(_KEYS)}
    listed = list((tmp_path / "files").glob("partition=*/*.json"))
    assert {str(path) for path in listed} == set(published_files(str(tmp_path / "files")))
    bodies = [json.loads(line)["body"] for path in listed for line in path.read_text().splitlines()]
    assert sorted(map(int, bodies)) == list(range(count))
