"""Queries into hubs, files and ledgers whose checkpoint directories change hands between versions."""

from __future__ import annotations

import functools
import json
import random
from datetime import timedelta
from pathlib import Path

import pytest
from tests.spark.ledger_driver import final_minutes, minutes
from tests.spark.support import publish
from tests.spark.test_ledger_crashes import has_done, next_batch, stored, write_readings
from tests.upgrade.lives import KILLS, Lives
from tests.upgrade.versions import Version

from tidegate.client import BlockingConsumer
from tidegate.spark.file_sink.commits import published_files
from tidegate.testing.hub import HubService

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

_COUNT = 6_000


def test_the_checkpoints_of_sinks_into_a_hub_and_files(
    old: Version, hub_service: HubService, tmp_path: Path, seed: int
) -> None:
    """Every event is once in the other hub, and once in the files that count."""
    rng = random.Random(seed)
    source, target = (hub_service.create_hub(partition_count=3) for _ in range(2))
    publish(hub_service.connection_string, source, _COUNT)
    lives = Lives(old, tmp_path / "driver.log", rng, "tests.spark.sink_driver")
    arguments: dict[str, object] = {
        "source": hub_service.hub_connection_string(source),
        "target": hub_service.hub_connection_string(target),
        "files": str(tmp_path / "files"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "max_events_per_trigger": 250,
    }
    expected = [{"value": value} for value in range(_COUNT)]
    with BlockingConsumer(hub_service.connection_string, target) as consumer:

        def copied() -> int:
            return sum(each.next_sequence_number for each in consumer.get_all_partition_properties())

        def has_copied(count: int) -> bool:
            return copied() >= count

        for _ in range(KILLS):
            wanted = copied() + 1 + rng.randrange(_COUNT // (2 * KILLS + 2))
            lives.killed(arguments, functools.partial(has_copied, wanted))
            assert copied() < _COUNT
        lives.done(arguments | {"max_events_per_trigger": 1000})
        bodies = [
            event.body
            for ends in consumer.get_all_partition_properties()
            for event in consumer.read_events(target, ends.partition_id, range(ends.next_sequence_number))
        ]
    assert sorted(map(json.loads, bodies), key=lambda body: body["value"]) == expected
    listed = list((tmp_path / "files").glob("partition=*/*.json"))
    assert {str(path) for path in listed} == set(published_files(str(tmp_path / "files")))
    lines = [json.loads(line)["body"] for path in listed for line in path.read_text().splitlines()]
    assert sorted(map(json.loads, lines), key=lambda body: body["value"]) == expected


def test_the_checkpoints_of_ledger_sinks(
    old: Version, postgresql_url: str, sqlite_url: str, tmp_path: Path, seed: int
) -> None:
    """Windows are what the readings come to, each row once: upserts in PostgreSQL, closed ones in SQLite."""
    rng = random.Random(seed)
    expected = write_readings(tmp_path / "readings", rng)
    lives = Lives(old, tmp_path / "driver.log", rng, "tests.spark.ledger_driver")
    arguments: dict[str, object] = {
        "readings": str(tmp_path / "readings"),
        "checkpoints": str(tmp_path),
        "update_url": postgresql_url,
        "append_url": sqlite_url,
    }
    for _ in range(KILLS):
        wanted = next_batch(postgresql_url) + 1 + rng.randrange(2)
        lives.killed(arguments, functools.partial(has_done, postgresql_url, wanted))
    lives.done(arguments)
    assert stored(postgresql_url, minutes) == expected
    last = max(minute for minute, _ in expected)
    found = stored(sqlite_url, final_minutes)
    closed = {key: value for key, value in expected.items() if key[0] < last - timedelta(minutes=3)}
    assert closed.items() <= found.items() <= expected.items()
