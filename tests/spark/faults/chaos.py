"""A run under faults on a Spark cluster: executors, driver, service and database killed until all is done.

Theory of operation. One loop draws faults from a seeded generator. The driver is a process of its own that is
started again whenever it has ended, as a cluster's supervisor would; what ends it (its own death, a database
or a service that was away too long) is drawn only once its present life has got somewhere. Speculation is on,
and Python workers are paused so that their tasks are run a second time beside them. In the end everything is
healed, what is left is processed, and the caller checks. The seed fixes which faults are drawn, not how the
processes answer to them.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from examples.support.processes import kill_session
from tests.processor.faults.publisher import Publisher
from tests.processor.faults.work import consumer_of
from tests.spark.faults.checker import read_totals
from tests.spark.faults.driver import ENDED_MARK
from tests.support.mariadb import MariadbServer
from tests.support.postgresql import PostgresqlServer
from tests.support.spark_cluster import SparkCluster

from tidegate.model.errors import DatabaseUnavailableError
from tidegate.sql import CheckpointReader, Database
from tidegate.testing.hub import HubProcess
from tidegate.transport.tasks import TaskOwner

ROOT: Final = Path(__file__).parents[3]
_PYTHON_PATH: Final = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
"""Of driver and executors, so that all of them run this checkout."""
_TICK_S: Final = 0.05
_REPORT_S: Final = 3.0
_NEVER: Final = (
    *("CheckpointGapError", "LedgerMismatchError", "EventHubReplacedError", "PositionOutOfRangeError"),
    *("InvalidArgumentError", "FencedError", "AttributeError", "ModuleNotFoundError", "TypeError"),
)
"""What a driver must not end with, whatever was killed: it would say that something is lost, or ours."""


class Fault(StrEnum):
    """What is done to a run."""

    EXECUTOR_KILL = "executor kills"
    PYTHON_KILL = "Python worker kills"
    PYTHON_PAUSE = "Python worker pauses"
    DRIVER_KILL = "driver kills"
    SERVICE_KILL = "service kills"
    DATABASE_KILL = "database kills"


_MAY_END_DRIVER: Final = (Fault.DRIVER_KILL, Fault.SERVICE_KILL, Fault.DATABASE_KILL)


@dataclass(frozen=True, slots=True)
class SparkChaosSettings:
    """How long and how hard a run is."""

    events: int
    seed: int
    work: str = "partitions"
    """``partitions``: a row per event, committed per hub partition; ``aggregates``: after a shuffle."""
    max_events_per_trigger: int = 10_000
    lead_max: int = 200_000
    life_events_min: int = 20_000
    """Events that a driver's life is good for before something is drawn that may end it."""
    fault_interval_s: tuple[float, float] = (0.5, 3.0)
    faults_until_share: float = 0.9
    """Faults go on until so much is processed, and each kind has been done."""
    faults: tuple[Fault, ...] = tuple(Fault)
    """The kinds that are drawn from."""
    drain_s: float = 180.0


@dataclass(frozen=True, slots=True)
class SparkSurroundings:
    """What a run has around it; made and removed by the caller."""

    service: HubProcess
    event_hub: str
    server: PostgresqlServer | MariadbServer
    database: Database
    database_url: str
    cluster: SparkCluster
    folder: Path


@dataclass(frozen=True, slots=True)
class SparkChaosReport:
    """What a run did."""

    faults: Counter[Fault]
    driver_starts: int
    driver_ends: Counter[str]
    """What drivers ended with by themselves, by class of the error."""
    elapsed_s: float
    speculations: int = 0
    """Attempts of tasks that were given up because another one was first."""
    unexpected: list[str] = field(default_factory=list)


class SparkChaosRun:
    """One run; ``run`` it once, then ``close``."""

    def __init__(
        self, settings: SparkChaosSettings, around: SparkSurroundings, *, tell: Callable[[str], None] = print
    ) -> None:
        """tell: told how it goes, every few seconds."""
        self._settings = settings
        self._around = around
        self._tell = tell
        self._random = random.Random(settings.seed)
        self._driver = _Driver(settings, around)
        self._publisher = Publisher(
            around.service.connection_string,
            around.event_hub,
            events=settings.events,
            events_per_s=1_000_000.0,
            lead_max=settings.lead_max,
            processed=lambda: self.processed,
            may_end=lambda: not self._untried(),
        )
        self.processed = 0
        """Events that are rows, in aggregates or dead letters, when it was last looked."""
        self._processed_at_start = 0
        self._processed_at_kill = -1
        """When the last executor or Python worker was killed: the next one waits for work to go on."""
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._faults: Counter[Fault] = Counter()
        self._paused: set[int] = set()

    async def run(self) -> SparkChaosReport:
        """Publish and process all events under faults. Raises AssertionError, with logs, on a standstill."""
        began = time.monotonic()
        speculations_before = self._around.cluster.speculation_count()
        self._driver.start()
        async with TaskOwner("chaos") as tasks:
            publishing = tasks.start(self._publisher.run(), name="publisher")
            watching = tasks.start(self._watch(began), name="progress")
            while not self._is_late():
                await self._do_something()
                await self._wait(self._random.uniform(*self._settings.fault_interval_s))
                for task in (publishing, watching):
                    if task.done():
                        await task
            for pid in list(self._paused):
                self._resume(pid)
            until = time.monotonic() + self._settings.drain_s
            while self.processed < self._settings.events:
                await self._wait(_TICK_S)
                assert time.monotonic() < until, self._standstill()
            elapsed_s = time.monotonic() - began
            await publishing
        await asyncio.to_thread(self._settle)
        ends = self._driver.ends
        unexpected = [text for name, text in ends if name in _NEVER]
        return SparkChaosReport(
            faults=self._faults,
            driver_starts=self._driver.starts,
            driver_ends=Counter(name for name, _ in ends),
            elapsed_s=elapsed_s,
            speculations=self._around.cluster.speculation_count() - speculations_before,
            unexpected=unexpected,
        )

    def close(self) -> None:
        """End the driver and everything paused."""
        for pid in list(self._paused):
            self._resume(pid)
        self._driver.kill()

    def _settle(self) -> None:
        """End the driver, and wait until no executor is left that could still write."""
        self._driver.kill()
        deadline = time.monotonic() + self._settings.drain_s
        while self._around.cluster.executor_ids() or self._around.cluster.python_worker_ids():
            assert time.monotonic() < deadline, "executors outlive their driver"
            time.sleep(_TICK_S)

    def _standstill(self) -> str:
        return (
            f"{self.processed} of {self._settings.events} events are processed and "
            f"{self._publisher.published} published {self._settings.drain_s:g} s after the last fault "
            f"(seed {self._settings.seed}).\n{self._driver.log()}\n{self._around.cluster.logs()}"
        )

    # --- faults -------------------------------------------------------------------------------------------

    def _is_late(self) -> bool:
        share = self.processed / self._settings.events
        return self._publisher.is_done and share >= self._settings.faults_until_share

    def _untried(self) -> list[Fault]:
        return [fault for fault in self._settings.faults if not self._faults[fault]]

    async def _do_something(self) -> None:
        """Each kind once, in random order; then any. Nothing where its victim is not there yet."""
        fault = self._random.choice(self._untried() or self._settings.faults)
        if not self._is_due(fault):
            return
        if fault is Fault.DRIVER_KILL:
            self._driver.kill()
        elif fault is Fault.SERVICE_KILL:
            self._around.service.kill()
            await self._wait(self._random.uniform(0.0, 1.0))
            await asyncio.to_thread(self._around.service.start)
        elif fault is Fault.DATABASE_KILL:
            await asyncio.to_thread(self._around.server.stop)
            await self._wait(self._random.uniform(0.0, 1.0))
            await asyncio.to_thread(self._around.server.start)
        elif not self._do_to_executor(fault):
            return
        self._faults[fault] += 1

    def _is_due(self, fault: Fault) -> bool:
        """Whether enough has gone well since the last fault that was as bad; else nothing would get done."""
        if 0 < self._publisher.published <= self.processed:
            return self._driver.is_running  # nothing more goes well before it: the last tenth is held back
        if fault in _MAY_END_DRIVER:
            life_events = self.processed - self._processed_at_start
            return self._driver.is_running and life_events >= self._settings.life_events_min
        return fault is Fault.PYTHON_PAUSE or self.processed > self._processed_at_kill

    def _do_to_executor(self, fault: Fault) -> bool:
        """False: there was none."""
        cluster = self._around.cluster
        victims = cluster.executor_ids() if fault is Fault.EXECUTOR_KILL else cluster.python_worker_ids()
        victims = sorted(pid for pid in victims if pid not in self._paused)
        if not victims:
            return False
        victim = self._random.choice(victims)
        number = signal.SIGSTOP if fault is Fault.PYTHON_PAUSE else signal.SIGKILL
        if not _send(victim, number):
            return False
        if fault is not Fault.PYTHON_PAUSE:
            self._processed_at_kill = self.processed
        else:
            self._paused.add(victim)
            due = time.monotonic() + self._random.uniform(0.5, 4.0)
            heapq.heappush(self._due, (due, next(self._order), lambda: self._resume(victim)))
        return True

    def _resume(self, pid: int) -> None:
        self._paused.discard(pid)
        _send(pid, signal.SIGCONT)

    async def _wait(self, seconds: float) -> None:
        """Let time go by, do what becomes due meanwhile, and start a driver that has ended again."""
        until = time.monotonic() + seconds
        while True:
            while self._due and self._due[0][0] <= time.monotonic():
                heapq.heappop(self._due)[2]()
            if not self._driver.is_running:
                self._driver.start()
                # What zombies of the life before commit meanwhile may count for this one: no matter.
                self._processed_at_start = self.processed
            if time.monotonic() >= until:
                return
            await asyncio.sleep(_TICK_S)

    # --- watching -----------------------------------------------------------------------------------------

    async def _watch(self, began: float) -> None:
        """Keep ``processed`` up to date, and tell of it now and then."""
        told = began
        while True:
            with suppress(DatabaseUnavailableError):  # it has been killed; the next look will tell
                self.processed = await asyncio.to_thread(self._read_processed)
            if time.monotonic() - told >= _REPORT_S:
                told = time.monotonic()
                faults = ", ".join(f"{count} {fault.value}" for fault, count in sorted(self._faults.items()))
                self._tell(
                    f"{told - began:6.1f} s  published {self._publisher.published:>9,}  "
                    f"processed {self.processed:>9,}  driver {self._driver.starts}  {faults}"
                )
            await asyncio.sleep(_TICK_S * 4)

    def _read_processed(self) -> int:
        if self._settings.work == "partitions":
            found = CheckpointReader(self._around.database).read(consumer_of(self._around.event_hub))
            return sum(each.next_sequence_number or 0 for each in found.values())
        totals = read_totals(self._around.database, self._settings.work)
        return totals.rows + totals.dead_letters


class _Driver:
    """The driver's process, through all its lives."""

    def __init__(self, settings: SparkChaosSettings, around: SparkSurroundings) -> None:
        self._arguments = {
            "master": around.cluster.master_url,
            "work": settings.work,
            "connection_string": around.service.connection_string,
            "event_hub": around.event_hub,
            "database_url": around.database_url,
            "checkpoint": str(around.folder / "checkpoint"),
            "max_events_per_trigger": settings.max_events_per_trigger,
            "python_path": _PYTHON_PATH,
        }
        self._log = around.folder / "driver.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def ends(self) -> list[tuple[str, str]]:
        """Class and sentence of each error that a driver ended with by itself."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        words = [line.removeprefix(f"{ENDED_MARK} ") for line in lines if line.startswith(ENDED_MARK)]
        return [(text.partition(":")[0], text) for text in words]

    def start(self) -> None:
        """Start it; a life before this one is over for good, with all of its processes."""
        self.kill()
        self.starts += 1
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
        environment |= {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": _PYTHON_PATH}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.faults.driver", json.dumps(self._arguments)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=environment,
                start_new_session=True,
            )

    def kill(self) -> None:
        """SIGKILL to it, its JVM and its Python processes."""
        if self._process is not None:
            kill_session(self._process)
            self._process = None

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-4000:] if self._log.exists() else ""


def _send(pid: int, number: signal.Signals) -> bool:
    """False: it has ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
