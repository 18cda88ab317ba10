"""Pipelines on a cluster under random faults: what they leave behind is whole, whatever was killed.

``make chaos-spark`` runs the same with a million events.
"""

from __future__ import annotations

import pytest
from tests.processor.faults.surroundings import chosen_seed
from tests.spark.faults.chaos import Fault, SparkChaosSettings
from tests.spark.faults.runs import run_chaos
from tests.support.spark_cluster import SparkCluster

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize(
    ("work", "database"),
    [
        ("partitions", "postgresql"),
        pytest.param("aggregates", "postgresql", marks=pytest.mark.repeats),
        pytest.param("partitions", "mariadb", marks=pytest.mark.repeats),
        pytest.param("aggregates", "mariadb", marks=pytest.mark.repeats),
    ],
)
def test_faults_leave_each_event_once(spark_cluster: SparkCluster, work: str, database: str) -> None:
    """Rows + dead letters = events, none twice; aggregates are what the log gives. Speculation is on."""
    kinds = tuple(Fault) if work == "partitions" else (Fault.EXECUTOR_KILL, Fault.DRIVER_KILL)
    settings = SparkChaosSettings(
        events=20_000,
        seed=chosen_seed(),
        work=work,
        max_events_per_trigger=2_500,
        life_events_min=2_500,
        fault_interval_s=(0.1, 0.5),
        faults_until_share=0.1,
        faults=kinds,
    )
    result = run_chaos(settings, spark_cluster, database)
    assert result.findings == []
    assert result.totals.rows + result.totals.dead_letters == settings.events
    assert result.report.faults.keys() == set(kinds)
    assert result.report.driver_starts > 1
