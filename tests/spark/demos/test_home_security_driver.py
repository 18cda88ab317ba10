"""The home security demo's Spark driver by itself, as it is started on a cluster."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from examples.home_security import driver, pipeline
from examples.home_security.check import failures_of, prepare_database, read_tables
from examples.home_security.generator import GeneratorPlan
from examples.home_security.homes import EVENT_HUB, PARTITION_COUNT
from examples.home_security.pipeline import HomeSecurity
from examples.home_security.publish import Publishing, publish
from examples.home_security.status import read_status
from examples.home_security.verify import recompute
from examples.support.processes import ROOT
from examples.support.service import CONNECTION_STRING_VARIABLE, DATABASE_VARIABLE
from pyspark.sql import SparkSession

from tidegate.model.errors import InvalidArgumentError
from tidegate.spark import checkpoint_path
from tidegate.spark.runtime.package import build_package
from tidegate.sql import Database
from tidegate.testing.hub import HubService


def test_the_url_of_a_checkpoint_stays_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As a path, ``hdfs://name:9000/homes`` would lose a slash, and its host would become a directory."""
    url, taken = "hdfs://name:9000/homes", []

    def take(**fields: object) -> HomeSecurity:
        wanted = HomeSecurity(**fields)  # type: ignore[arg-type]
        taken.append(wanted.checkpoint_location)
        raise InvalidArgumentError("Far enough.")

    monkeypatch.setattr(driver, "HomeSecurity", take)
    monkeypatch.setenv(CONNECTION_STRING_VARIABLE, "Endpoint=sb://h;SharedAccessKeyName=n;SharedAccessKey=k")
    monkeypatch.setenv(DATABASE_VARIABLE, f"sqlite:///{tmp_path}/homes.db")
    words = f"driver --checkpoint-dir {url} --status-file {tmp_path}/s --stop-file {tmp_path}/e"
    words += " --watermark-delay 1 --blocks 1 --events-per-trigger 1"
    monkeypatch.setattr(sys, "argv", words.split())
    with pytest.raises(InvalidArgumentError, match="Far enough"):
        driver.main()
    assert taken == [url]
    assert checkpoint_path(url) == url


def test_tasks_do_not_depend_on_the_executors_at_the_start(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that join later would have nothing to do. On one machine, and where it is said, it is that."""
    wanted = HomeSecurity("", "", "", None, 1.0)
    assert pipeline.task_count(spark, wanted) == spark.sparkContext.defaultParallelism
    monkeypatch.setattr(pipeline, "is_on_cluster", lambda _: True)
    assert pipeline.task_count(spark, wanted) == PARTITION_COUNT
    chosen = replace(wanted, tasks=5)
    assert pipeline.task_count(spark, chosen) == 5
    assert pipeline.reading_options(spark, chosen) == {"eventhubs.tasksMax": "5"}


@pytest.mark.programs
@pytest.mark.slow
def test_a_cluster_gets_the_example_as_a_users_package(tmp_path: Path) -> None:
    """What `tidegate spark package examples` writes is all that executors need to import the pipeline."""
    made = build_package([ROOT / "examples"], tmp_path)
    program = (
        "import examples.home_security.pipeline as found, tidegate; print(found.__file__, tidegate.__file__)"
    )
    output = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(made.path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    assert output.count(str(made.path)) == 2


@pytest.mark.programs
@pytest.mark.repeats
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_checkpoint_may_be_a_url(tmp_path: Path, sqlite_url: str) -> None:
    """``hdfs:///homes`` is no path of this machine: a URL goes to Spark as it is, and every figure holds."""
    stop, status, checkpoint = tmp_path / "stop", tmp_path / "status.json", tmp_path / "checkpoint"
    stop.touch()
    with HubService() as service, Database.open(sqlite_url) as database:
        service.create_hub(EVENT_HUB, partition_count=PARTITION_COUNT)
        plan = GeneratorPlan(homes=50, rate=2_000, co_after_s=0, malformed_share=0.05, duplicate_share=0.05)
        sending = Publishing(service.connection_string, plan, 1.0, is_paced=False)
        asyncio.run(publish(sending, lambda generator, elapsed_s: None, asyncio.Event()))
        prepare_database(database)
        words = [sys.executable, "-m", "examples.home_security.driver", "--watermark-delay", "180"]
        words += ["--checkpoint-dir", checkpoint.as_uri(), "--status-file", str(status)]
        words += ["--stop-file", str(stop), "--blocks", "32", "--events-per-trigger", "900"]
        environment = os.environ | {
            CONNECTION_STRING_VARIABLE: service.connection_string,
            DATABASE_VARIABLE: sqlite_url,
            "PYTHONPATH": str(ROOT),
        }
        found = subprocess.run(
            words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240
        )
        assert found.returncode == 0, found.stderr
        told = read_status(status)
        assert (told["events"], told["dropped"]) == (2_000, 0)
        expected = recompute(service.connection_string).finish(told["watermark_ms"])
        assert failures_of(expected, read_tables(database), None) == ()
    assert (checkpoint / "commits" / "0").exists()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("file")) == []
