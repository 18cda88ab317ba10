"""Programs of the pages on Spark, pasted as they stand."""

from __future__ import annotations

import asyncio
import os
import runpy
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.docs_support import environment_of, write_programs

from tidegate.client import EventHubProducer
from tidegate.model.events import EventData
from tidegate.testing.hub import HubService

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

_READINGS = {
    "a1": ['{"device": "a1", "celsius": 21.5}', '{"device": "a1", "celsius": 22.5}'],
    "b2": ['{"device": "b2"}'],
    "c3": ['{"device": "c3", "celsius": 19}'],
}


def _send(service: HubService, hub: str) -> None:
    async def send() -> None:
        async with EventHubProducer.from_connection_string(service.connection_string, hub) as producer:
            for device, bodies in _READINGS.items():
                await producer.send([EventData(body.encode()) for body in bodies], partition_key=device)

    asyncio.run(send())


def _rows(database: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(statement).fetchall()


def test_the_ledger_sinks_program_counts_each_device(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``minutes.py`` of the sinks' page, in a session that there is already; run again, it adds nothing."""
    monkeypatch.chdir(write_programs(tmp_path))
    with HubService() as service:
        monkeypatch.setenv("TIDEGATE_CONNECTION_STRING", service.connection_string)
        service.create_hub("telemetry", partition_count=2)
        _send(service, "telemetry")
        counted = "SELECT device, sum(readings) FROM minutes GROUP BY device ORDER BY device"
        for _ in range(2):
            runpy.run_path("minutes.py")
            spark.sparkContext.setLogLevel("OFF")
            assert _rows(tmp_path / "minutes.db", counted) == [("a1", 2), ("b2", 1), ("c3", 1)]
            assert (tmp_path / "minutes-checkpoint" / "commits").is_dir(), "relative paths are Python's here"


@pytest.mark.programs
@pytest.mark.repeats
def test_the_guide_to_pipelines_holds(tmp_path: Path) -> None:
    """``sensors.py``: one pipeline by the command, the other by a program, and its dead letter."""
    workplace = write_programs(tmp_path)
    with HubService() as service:
        service.create_hub("sensors", partition_count=4)
        _send(service, "sensors")
        environment = environment_of(service) | {"TIDEGATE_STATE_DIR": str(tmp_path / "state")}

        def run(*words: str) -> str:
            found = subprocess.run(
                [sys.executable, *words], cwd=workplace, env=environment, capture_output=True, check=False
            )
            assert found.returncode == 0, found.stderr.decode()
            return found.stdout.decode()

        command = ("-m", "tidegate.cli")
        database = ("--database", "sqlite:///sensors.db")
        run(*command, "pipeline", "run", "sensors.py:records", *database, "--available-now", "--nl")
        run("start_readings.py")
        listed = run(*command, "dlq", "list", *database, "--nl")
    warmest = _rows(tmp_path / "sensors.db", "SELECT device, celsius FROM warmest ORDER BY device")
    assert warmest == [("a1", 22.5), ("b2", None), ("c3", 19.0)]
    readings = _rows(tmp_path / "sensors.db", "SELECT device, celsius FROM reading ORDER BY 1, 2")
    assert readings == [("a1", 21.5), ("a1", 22.5), ("c3", 19.0)]
    assert listed.count(os.linesep) == 1
    assert "no device or no temperature" in listed
