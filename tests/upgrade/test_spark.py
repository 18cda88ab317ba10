"""A pipeline whose checkpoint directory changes hands between versions, killed in between."""

from __future__ import annotations

import functools
import random
from pathlib import Path

import pytest
from tests.spark.support import assert_exact, has_reached, outcome_of, publish
from tests.upgrade.lives import KILLS, Lives
from tests.upgrade.versions import Version

from tidegate.testing.hub import HubService

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

_COUNT = 6_000


@pytest.mark.repeats
def test_a_pipelines_checkpoint(
    old: Version, hub_service: HubService, sqlite_url: str, tmp_path: Path, seed: int
) -> None:
    """Old, new, old and so on, each killed, and the rest by whose turn it is: each event is one row, or one
    dead letter."""
    rng = random.Random(seed)
    hub = hub_service.create_hub(partition_count=4)
    publish(hub_service.connection_string, hub, _COUNT)
    lives = Lives(old, tmp_path / "driver.log", rng, "tests.spark.driver")
    arguments: dict[str, object] = {
        "connection_string": hub_service.connection_string,
        "event_hub": hub,
        "database_url": sqlite_url,
        "checkpoint": str(tmp_path / "checkpoint"),
        "max_events_per_trigger": 150,
        "transaction_rows_max": 15,
    }
    position = 0
    for _ in range(KILLS):
        wanted = position + 1 + rng.randrange(_COUNT // (2 * KILLS + 2))
        lives.killed(arguments, functools.partial(has_reached, sqlite_url, wanted))
        position = outcome_of(sqlite_url).position
    assert 0 < position < _COUNT
    lives.done(arguments | {"max_events_per_trigger": 2000})
    assert_exact(sqlite_url, _COUNT)
