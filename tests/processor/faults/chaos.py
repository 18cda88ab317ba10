"""A run under faults: hosts killed, paused and stopped, commits cut, the service killed, until all is done.

Theory of operation. One loop draws faults from a seeded generator and notes what each makes due later: a
paused host is resumed after more than its lease, one that ended is started again. Faults go on while events
come and are processed; then everything is healed, the hosts finish, are stopped in order, and the caller
checks what they left. The seed fixes which faults are drawn, not how the processes answer to them.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sqlalchemy.engine import make_url
from tests.processor.faults.cluster import Cluster
from tests.processor.faults.host_process import FENCED_MARK, Breakage
from tests.processor.faults.publisher import Publisher
from tests.processor.faults.surroundings import Surroundings
from tests.processor.faults.work import consumer_of

from tidegate.model.errors import DatabaseUnavailableError
from tidegate.sql import CheckpointReader
from tidegate.transport.tasks import TaskOwner

_TICK_S: Final = 0.05
_REPORT_S: Final = 2.0
_FAULTS_UNTIL_SHARE: Final = 0.9
"""Faults go on until so much is processed: afterwards there is not enough work left to disturb."""
_AWAKE_MIN: Final = 2
_STOP_S: Final = 60.0
"""A COMMIT whose answer was lost is asked for 15 s before a host closes its partition."""
_COMMITS: Final = {"postgresql": b"COMMIT\0", "mariadb": b"\x03COMMIT"}
"""As the drivers send it: psycopg's text ends in a zero byte; PyMySQL's follows the byte of COM_QUERY."""


class Fault(StrEnum):
    """What is done to a run."""

    KILL = "kills"
    PAUSE = "pauses"
    STOP = "stops"
    DEATH_IN_COMMIT = "deaths in commit"
    CUT_IN_COMMIT = "cuts in commit"
    CUT_ALL = "cuts of all lines"
    SERVICE_KILL = "service kills"


@dataclass(frozen=True, slots=True)
class ChaosSettings:
    """How long and how hard a run is."""

    events: int
    seed: int
    hosts: int = 5
    events_per_s: float = 5_000.0
    """The publisher's pace."""
    lead_max: int = 200_000
    """How far the publisher may be ahead of the hosts."""
    lease_duration_s: float = 2.0
    fault_interval_s: tuple[float, float] = (0.3, 1.2)
    is_transactional: bool = True
    is_publishing: bool = False
    """Whether the handlers publish what they make rows of."""
    breakage: Breakage = Breakage.NONE
    faults: tuple[Fault, ...] = tuple(Fault)
    """The kinds that are drawn from; those that need a proxy only where there is one."""
    drain_s: float = 120.0
    """How long the healed hosts may take for what is left."""
    environments: tuple[Mapping[str, str], ...] = ({},)
    """Variables of the processes of hosts, in turn: ``tests.upgrade`` has other versions run."""


@dataclass(frozen=True, slots=True)
class ChaosReport:
    """What a run did."""

    events: int
    faults: Counter[Fault]
    starts: int
    """Processes started in place of hosts that had ended."""
    fenced: int
    """Transactions that were refused because their owner had been overtaken."""
    connections_cut: int
    """Between hosts and database; one cut in commit may take several, one of all lines takes all."""
    commits_cut: int
    """Connections that were cut while they sent a COMMIT, or waited for its answer."""
    elapsed_s: float
    """From the first event sent to the last one processed."""
    unexpected: list[str]
    """Hosts that ended by themselves, or could not be stopped in order."""


class ChaosRun:
    """One run; ``run`` it once."""

    def __init__(
        self, settings: ChaosSettings, around: Surroundings, *, tell: Callable[[str], None] = print
    ) -> None:
        """tell: told how it goes, every other second."""
        self._settings = settings
        self._service = around.service
        self._proxy = around.proxy
        self._commit = _COMMITS.get(make_url(around.database_url).get_backend_name(), b"")
        self._tell = tell
        self._random = random.Random(settings.seed)
        self._consumer = consumer_of(around.event_hub)
        self._database = around.database
        self._cluster = Cluster(
            around.host_settings(
                seed=settings.seed,
                lease_duration_s=settings.lease_duration_s,
                is_transactional=settings.is_transactional,
                breakage=settings.breakage,
                is_publishing=settings.is_publishing,
            ),
            settings.environments,
        )
        self._publisher = Publisher(
            around.service.connection_string,
            around.event_hub,
            events=settings.events,
            events_per_s=settings.events_per_s,
            lead_max=settings.lead_max,
            processed=lambda: self.processed,
            # On a fast machine the events would be through before each kind of fault has had its turn,
            # and on a slow one the faults may hit hosts that own nothing yet.
            may_end=lambda: not self._untried() and self._has_takeover(),
        )
        self.processed = 0
        """Events before the checkpoints, when they were last looked at."""
        self._owners: set[tuple[str, int]] = set()
        """Partitions and the epochs of those who moved their checkpoints, as far as they were seen."""
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._faults: Counter[Fault] = Counter()
        self._dying: set[str] = set()
        """Hosts that were told to end, by SIGTERM or during a commit."""
        self._begun: set[str] = set()
        """Hosts that may have met a killed service while they registered."""
        self._is_service_away = False
        self._starts = 0
        self._unexpected: list[str] = []

    async def run(self) -> ChaosReport:
        """Publish and process all events under faults.

        Raises AssertionError, with the logs, on a standstill.
        """
        began = time.monotonic()
        async with TaskOwner("chaos") as tasks:
            publishing = tasks.start(self._publisher.run(), name="publisher")
            watching = tasks.start(self._watch(began), name="progress")
            for number in range(self._settings.hosts):
                self._cluster.start(f"host-{number}")
            while not self._is_late():
                await self._do_something()
                await self._wait(self._random.uniform(*self._settings.fault_interval_s))
                for task in (publishing, watching):
                    if task.done():
                        await task
            self._heal()
            await self._drain()
            elapsed_s = time.monotonic() - began
            await publishing
            await self._stop_all()
        fenced = self._cluster.count_lines(FENCED_MARK)
        return ChaosReport(
            events=self._settings.events,
            faults=self._faults,
            starts=self._starts,
            fenced=fenced,
            connections_cut=0 if self._proxy is None else self._proxy.cut_count,
            commits_cut=0 if self._proxy is None else self._proxy.marked_cut_count,
            elapsed_s=elapsed_s,
            unexpected=self._unexpected,
        )

    def close(self) -> None:
        """End everything that this run started."""
        self._cluster.close()

    # --- faults -------------------------------------------------------------------------------------------

    def _is_late(self) -> bool:
        share = self.processed / self._settings.events
        return self._publisher.is_done and share >= _FAULTS_UNTIL_SHARE

    async def _do_something(self) -> None:
        fault = self._draw()
        names = [name for name in self._cluster.awake if name not in self._dying]
        if fault in (Fault.KILL, Fault.PAUSE, Fault.STOP, Fault.DEATH_IN_COMMIT):
            if fault in (Fault.STOP, Fault.DEATH_IN_COMMIT):
                # Before that a process does not know these signals yet.
                names = [name for name in names if self._cluster.is_ready(name)]
            if len(names) <= _AWAKE_MIN:
                return
            self._do_to_host(fault, self._random.choice(names))
        elif fault is Fault.SERVICE_KILL:
            await self._kill_service()
        else:
            assert self._proxy is not None
            if fault is Fault.CUT_IN_COMMIT:
                self._proxy.cut_at(self._commit, self._random.randint(1, 4))
            elif not self._proxy.cut_now():
                return
        self._faults[fault] += 1

    def _draw(self) -> Fault:
        """Each kind once, in random order; then any."""
        return self._random.choice(self._untried() or self._possible())

    def _possible(self) -> list[Fault]:
        needs_proxy = (Fault.CUT_ALL, Fault.CUT_IN_COMMIT)
        kinds = self._settings.faults
        return [fault for fault in kinds if self._proxy is not None or fault not in needs_proxy]

    def _untried(self) -> list[Fault]:
        return [fault for fault in self._possible() if not self._faults[fault]]

    def _has_takeover(self) -> bool:
        """Whether a partition was seen to change its owner; plain checkpoints do not say whose they are."""
        partitions = {partition_id for partition_id, _ in self._owners}
        return not self._settings.is_transactional or len(self._owners) > len(partitions)

    def _do_to_host(self, fault: Fault, name: str) -> None:
        lease_s = self._settings.lease_duration_s
        if fault is Fault.KILL:
            self._cluster.kill(name)
            self._restart_later(name)
        elif fault is Fault.PAUSE:
            self._cluster.pause(name)
            self._later(lease_s * self._random.uniform(1.2, 2.5), lambda: self._resume(name))
        else:
            # It ends when it has drained, or in a commit: the reaper starts it again.
            self._dying.add(name)
            self._cluster.send(name, signal.SIGTERM if fault is Fault.STOP else signal.SIGUSR1)

    def _resume(self, name: str) -> None:
        if name in self._cluster.paused:
            self._cluster.resume(name)

    def _restart_later(self, name: str) -> None:
        delay_s = self._random.uniform(0.0, 2.0) * self._settings.lease_duration_s
        self._later(delay_s, lambda: self._start(name))

    def _start(self, name: str) -> None:
        self._cluster.start(name)
        self._starts += 1
        if self._is_service_away:
            self._begun.add(name)

    async def _kill_service(self) -> None:
        self._begun.update(name for name in self._cluster.running if not self._cluster.is_ready(name))
        self._is_service_away = True
        self._service.kill()
        await self._wait(self._random.uniform(0.0, 1.0))
        await asyncio.to_thread(self._service.start)
        self._is_service_away = False

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + delay_s, next(self._order), action))

    async def _wait(self, seconds: float) -> None:
        """Let time go by, do what becomes due meanwhile, and see which hosts have ended."""
        until = time.monotonic() + seconds
        while True:
            while self._due and self._due[0][0] <= time.monotonic():
                heapq.heappop(self._due)[2]()
            self._reap()
            if time.monotonic() >= until:
                return
            await asyncio.sleep(_TICK_S)

    def _reap(self) -> None:
        for name, code in self._cluster.reap().items():
            is_told = name in self._dying and code in (0, -signal.SIGKILL)
            has_met_no_service = name in self._begun and not self._cluster.is_ready(name)
            if not is_told and not has_met_no_service:
                self._unexpected.append(f"{name} ended with {code}: {self._cluster.log_of(name)}")
            self._dying.discard(name)
            self._begun.discard(name)
            self._restart_later(name)

    # --- the end ------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        """No fault any more, and every host runs soon."""
        if self._proxy is not None:
            self._proxy.stop_cutting()
        for name in self._cluster.paused:
            self._cluster.resume(name)

    async def _drain(self) -> None:
        until = time.monotonic() + self._settings.drain_s
        while self.processed < self._settings.events:
            await self._wait(_TICK_S)
            assert time.monotonic() < until, (
                f"{self.processed} of {self._settings.events} events are processed and "
                f"{self._publisher.published} published {self._settings.drain_s:g} s after the last fault "
                f"(seed {self._settings.seed}).\n{self._cluster.logs()}"
            )

    async def _stop_all(self) -> None:
        """SIGTERM to all: each drains, releases its leases and ends with 0.

        One that was told before may have done so, and be a process that ends, without a handler of signals.
        """
        self._due.clear()
        for name in self._cluster.running:
            self._cluster.send(name, signal.SIGTERM)
        until = time.monotonic() + _STOP_S
        while self._cluster.running and time.monotonic() < until:
            for name, code in self._cluster.reap().items():
                is_early = code == -signal.SIGTERM and not self._cluster.is_ready(name)
                is_told = name in self._dying and code in (-signal.SIGKILL, -signal.SIGTERM)
                if code != 0 and not is_early and not is_told:
                    self._unexpected.append(f"{name} ended with {code}: {self._cluster.log_of(name)}")
            await asyncio.sleep(_TICK_S)
        self._unexpected += [
            f"{name} did not stop: {self._cluster.log_of(name)}" for name in self._cluster.running
        ]

    # --- watching -----------------------------------------------------------------------------------------

    async def _watch(self, began: float) -> None:
        """Keep ``processed`` up to date, and tell of it now and then."""
        told = began
        while True:
            try:
                self.processed = await asyncio.to_thread(self._read_processed)
            except DatabaseUnavailableError as error:
                self._tell(f"the progress could not be read: {error}")
            if time.monotonic() - told >= _REPORT_S:
                told = time.monotonic()
                faults = ", ".join(f"{count} {fault.value}" for fault, count in sorted(self._faults.items()))
                self._tell(
                    f"{told - began:6.1f} s  published {self._publisher.published:>9,}  "
                    f"processed {self.processed:>9,}  hosts {len(self._cluster.awake)} awake, "
                    f"{len(self._cluster.paused)} paused  {faults}"
                )
            await asyncio.sleep(_TICK_S * 4)

    def _read_processed(self) -> int:
        checkpoints = CheckpointReader(self._database).read(self._consumer)
        self._owners |= {
            (found.partition_id, found.lease_epoch)
            for found in checkpoints.values()
            if found.next_sequence_number and found.lease_epoch is not None
        }
        return sum(found.next_sequence_number or 0 for found in checkpoints.values())
