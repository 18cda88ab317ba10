"""The home security demo on a cluster whose executors come and go while it runs."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from examples.home_security.check import failures_of, prepare_places, read_tables
from examples.home_security.homes import EVENT_HUB, PARTITION_COUNT
from examples.home_security.status import read_status
from examples.home_security.summaries import SummaryStore
from examples.home_security.verify import recompute
from examples.support.processes import ROOT, ChildSession
from examples.support.service import CONNECTION_STRING_VARIABLE, DATABASE_VARIABLE
from tests.spark.conftest import QUICK_START
from tests.spark.support import cluster_environment
from tests.support.ports import free_ports
from tests.support.postgresql import PostgresqlServer
from tests.support.spark_cluster import SparkCluster

from tidegate.sql import Database
from tidegate.testing.hub import HubService

T = TypeVar("T")

_WAIT_S: Final = 240.0
"""For one step; a deadline, not a promise."""
_POLL_S: Final = 0.3
_SPEED: Final = 60
_WATERMARK_DELAY_S: Final = 20 * _SPEED
"""Partitions may be 20 s apart on a busy machine before a timer is too early."""


@dataclass(frozen=True, slots=True)
class _Executor:
    """What Spark says of an executor."""

    name: str
    is_active: bool
    written_bytes: int
    """To the shuffle, by tasks that have read the hub."""
    read_bytes: int
    """From the shuffle, by tasks that have the state of blocks of homes."""

    @property
    def has_taken_over(self) -> bool:
        """It has finished tasks of both kinds."""
        return self.written_bytes > 0 and self.read_bytes > 0


class _Run:
    """The demo's driver on a cluster, and the generator; both are there while ``running`` is."""

    def __init__(self, folder: Path, cluster: SparkCluster, environment: dict[str, str]) -> None:
        self._folder, self._cluster = folder, cluster
        (self._ui_port,) = free_ports(1)
        settings = folder / "spark-settings"
        settings.mkdir()
        (settings / "spark-defaults.conf").write_text(_spark_defaults(self._ui_port))
        self._environment = environment | {
            "SPARK_CONF_DIR": str(settings),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TIDEGATE_STATE_DIR": str(folder / "state"),
        }
        self._stop_file = folder / "stop"
        self._children: list[ChildSession] = []
        self.summaries = SummaryStore(str(folder / "summaries"))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Driver and generator, until this is closed. Events begin once Spark has started."""
        with ExitStack() as children:
            self._children = [children.enter_context(self._child("driver", self._driver_words()))]
            self.wait(lambda: self.driver, "Spark does not start")
            self._children.append(children.enter_context(self._generator()))
            yield

    @property
    def driver(self) -> dict[str, Any]:
        """What the driver says of itself."""
        return read_status(self._folder / "driver.json")

    @property
    def published(self) -> int:
        """How many events the generator knows to be in the hub."""
        return int(read_status(self._folder / "generator.json").get("events", 0))

    def executors(self) -> dict[str, _Executor]:
        """All that the application has had so far, from its web interface; empty while that is not up."""
        url = f"http://127.0.0.1:{self._ui_port}/api/v1/applications"
        try:
            (application,) = _json_of(url)
            found = _json_of(f"{url}/{application['id']}/allexecutors")
        except (OSError, ValueError):
            return {}
        return {
            each["id"]: _Executor(
                each["id"], each["isActive"], each["totalShuffleWrite"], each["totalShuffleRead"]
            )
            for each in found
            if each["id"] != "driver"
        }

    def active_executors(self) -> set[str]:
        """Those of them that Spark gives tasks to."""
        return {each.name for each in self.executors().values() if each.is_active}

    def takers(self) -> set[str]:
        """Those that have read events and had state, too."""
        return {each.name for each in self.executors().values() if each.has_taken_over}

    def wait(self, condition: Callable[[], T], failure: str) -> T:
        """Until the condition holds, while events are published and the driver runs; returns its answer."""
        deadline = time.monotonic() + _WAIT_S
        while not (answer := condition()):
            for child in self._children:
                child.check_running()
            assert time.monotonic() < deadline, self._story(failure)
            time.sleep(_POLL_S)
        return answer

    def end(self) -> None:
        """End the events, let the driver bring all of them to SQL, and wait for its end."""
        driver, events = self._children
        events.terminate(timeout_s=60)
        assert events.exit_code == 0, events.log_end()
        self._stop_file.touch()
        deadline = time.monotonic() + _WAIT_S
        while driver.exit_code is None:
            assert time.monotonic() < deadline, self._story("The driver did not end")
            time.sleep(_POLL_S)
        assert driver.exit_code == 0, driver.log_end(60)

    def _story(self, failure: str) -> str:
        ends = "\n".join(child.log_end() for child in self._children)
        return f"{failure}: {self.driver}, {self.executors()}\n{ends}\n{self._cluster.logs()}"

    def _generator(self) -> ChildSession:
        words = ["publish", "--status-file", str(self._folder / "generator.json"), "--duration", "3600"]
        words += ["--homes", "200", "--seed", "1", "--rate", "300", "--speed", str(_SPEED), "--co-after", "5"]
        words += ["--malformed-share", "0.02", "--delayed-share", "0.05", "--duplicate-share", "0.05"]
        return self._child("generator", words)

    def _driver_words(self) -> list[str]:
        words = ["driver", "--master", self._cluster.master_url, "--summaries", self.summaries.url]
        words += ["--checkpoint-dir", str(self._folder / "checkpoint"), "--blocks", "32", "--tasks", "4"]
        words += ["--watermark-delay", str(_WATERMARK_DELAY_S), "--events-per-trigger", "10000"]
        return [
            *words,
            *("--status-file", str(self._folder / "driver.json"), "--stop-file", str(self._stop_file)),
        ]

    def _child(self, name: str, words: list[str]) -> ChildSession:
        command = [sys.executable, "-m", f"examples.home_security.{words[0]}", *words[1:]]
        return ChildSession(
            name, command, log_file=self._folder / f"{name}.log", environment=self._environment
        )


def _cluster_environment(home: Path) -> dict[str, str]:
    """Executors import the example from the clone, as its guide says."""
    given = cluster_environment(home)
    return given | {"PYTHONPATH": os.pathsep.join((str(ROOT), given["PYTHONPATH"]))}


def _spark_defaults(ui_port: int) -> str:
    """So that a cluster fits into a test, and its web interface is found; none of the rest is needed."""
    settings = {
        "spark.ui.port": ui_port,
        "spark.driver.memory": "600m",
        "spark.executor.memory": "600m",
        "spark.driver.extraJavaOptions": QUICK_START,
        "spark.executor.extraJavaOptions": QUICK_START,
        # State goes to whoever has time, instead of waiting for the executor that has it: it moves often.
        "spark.locality.wait": "0s",
        # All of it is on one machine: Spark's default forks two processes for each file of a checkpoint.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
    }
    return "".join(f"{name} {value}\n" for name, value in settings.items())


def _json_of(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


@pytest.mark.programs
@pytest.mark.repeats
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_executors_take_load_over(tmp_path: Path, postgresql: PostgresqlServer) -> None:
    """A second executor joins, reads the hub and gets state; then the first one's machine is gone. Events are
    published all the time, and at the end every figure is what the log says."""
    url = postgresql.create_schema()
    with (
        HubService() as service,
        Database.open(url) as database,
        SparkCluster(workers=1, environment=_cluster_environment(tmp_path)) as cluster,
    ):
        service.create_hub(EVENT_HUB, partition_count=PARTITION_COUNT)
        secrets = {CONNECTION_STRING_VARIABLE: service.connection_string, DATABASE_VARIABLE: url}
        run = _Run(tmp_path, cluster, secrets)
        prepare_places(database, run.summaries)
        with run.running():
            first = run.wait(
                lambda: run.driver.get("batches", 0) >= 2 and run.takers(), "The first executor does nothing"
            )
            cluster.start_worker(1)
            second = run.wait(lambda: run.takers() - first, "The second executor takes nothing over")
            cluster.kill_worker(0)
            published = run.published
            run.wait(
                lambda: run.driver["position"] > published and run.active_executors() == second,
                "It does not go on without the first",
            )
            run.end()
        told = run.driver
        # Its ``events`` may be more: Spark counts what it has to read again when an executor is lost.
        assert (told["position"], told["dropped"]) == (run.published, 0)
        expected = recompute(service.connection_string).finish(told["watermark_ms"])
        assert expected.event_count == run.published
        found = read_tables(database)
        assert failures_of(expected, found, run.summaries) == ()
    assert len(found.dead_letters) > 0
    readings = sum(minute[0] + minute[4] for minute in found.minutes.values())
    assert readings + len(found.dead_letters) + expected.status_count == expected.event_count
