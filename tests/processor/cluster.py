"""Partition managers on one memory store and one virtual clock, with pumps that record what they are told."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from tests.processor.virtual_processes import Process, World

from tidegate.model.errors import StoreUnavailableError
from tidegate.processor.handlers import CloseReason
from tidegate.processor.host.partition_manager import PartitionManager
from tidegate.processor.lease import GroupKey, Lease, LeaseSnapshot
from tidegate.processor.options import PartitionManagerOptions
from tidegate.processor.pump.pump import PartitionPump
from tidegate.processor.stores.memory import MemoryStore

GROUP = GroupKey("localhost", "hub", "$Default")
LEASE_DURATION_S = 30.0
RENEW_INTERVAL_S = 10.0


@dataclass(frozen=True, slots=True)
class PumpCall:
    """One thing that a pump was told."""

    at_s: float
    host: str
    partition_id: str
    what: str
    """``start``, ``stop`` (begun) or ``stopped``."""
    epoch: int
    reason: CloseReason | None = None


class Cluster:
    """Hosts on one memory store."""

    def __init__(self, world: World, partition_count: int) -> None:
        self.world = world
        self.partitions = [str(index) for index in range(partition_count)]
        self.memory = MemoryStore(world)
        self.calls: list[PumpCall] = []
        self.hosts: dict[str, Host] = {}

    def join(self, name: str, *, startup_spread_s: float = 0.0) -> Host:
        host = Host(self, name, startup_spread_s)
        self.hosts[name] = host
        return host

    def kill(self, name: str) -> None:
        self.hosts.pop(name).process.kill()

    def counts(self) -> list[int]:
        """Partitions per host, by what their pumps run."""
        return sorted(len(host.pumps.running) for host in self.hosts.values())

    def is_even(self) -> bool:
        """Every partition is run once, and no host runs two more than another."""
        run = [partition for host in self.hosts.values() for partition in host.pumps.running]
        counts = self.counts()
        return sorted(run) == sorted(self.partitions) and counts[-1] - counts[0] <= 1

    def wait_until_even(self, *, timeout_s: float = 3 * LEASE_DURATION_S) -> float:
        return self.world.wait_until(self.is_even, timeout_s=timeout_s)

    def assert_rest(self, seconds: float) -> None:
        """No pump is started or stopped for so long."""
        before = len(self.calls)
        self.world.run_for(seconds)
        assert self.calls[before:] == []

    def first_start(self, partition_id: str, *, after_s: float) -> PumpCall:
        return next(
            call
            for call in self.calls
            if call.what == "start" and call.partition_id == partition_id and call.at_s >= after_s
        )

    def overlaps(self) -> list[PumpCall]:
        """Starts of a partition's pump before another host's had stopped; a killed host's never does."""
        found: list[PumpCall] = []
        running: dict[str, set[str]] = {}
        for call in self.calls:
            hosts = running.setdefault(call.partition_id, set())
            if call.what == "start":
                found += [call] if hosts else []
                hosts.add(call.host)
            elif call.what == "stopped":
                hosts.discard(call.host)
        return found

    def assert_sound(self) -> None:
        """Each (partition, epoch) was given to one host once, in rising order; no host broke the rules."""
        for partition in self.partitions:
            epochs = [
                call.epoch for call in self.calls if (call.what, call.partition_id) == ("start", partition)
            ]
            assert epochs == sorted(set(epochs)), f"partition {partition}"
        for host in self.hosts.values():
            assert host.pumps.violations == []


class Host:
    """A partition manager in a process of its own, with its own line to the store."""

    def __init__(self, cluster: Cluster, name: str, startup_spread_s: float = 0.0) -> None:
        self.cluster = cluster
        self.name = name
        self.process: Process = cluster.world.make_process()
        self.store = Line(cluster.memory, cluster.world, self.process)
        self.pumps = Pumps(cluster, name)
        self.errors: list[tuple[Exception, str | None]] = []
        self.manager = PartitionManager(
            group=GROUP,
            store=self.store,
            owner=name,
            partition_ids=cluster.partitions,
            options=PartitionManagerOptions(
                lease_duration_s=LEASE_DURATION_S,
                renew_interval_s=RENEW_INTERVAL_S,
                startup_spread_s=startup_spread_s,
            ),
            clock=cluster.world,
            random=random.Random(cluster.world.random.random()),
            make_pump=self.pumps.make,
            on_exception=lambda error, partition_id: self.errors.append((error, partition_id)),
        )
        self.run_task = self.process.start(self.manager.run())

    def stops(self) -> list[PumpCall]:
        return [call for call in self.cluster.calls if (call.host, call.what) == (self.name, "stop")]


class Line:
    """One host's way to the store: takes its time, counts calls, and can fail or hang."""

    has_epochs = True

    def __init__(self, store: MemoryStore, world: World, process: Process) -> None:
        self.store = store
        self.calls: Counter[str] = Counter()
        self.is_refusing = False
        self.is_hanging = False
        self.delays_s: dict[str, float] = {}
        """By call: added on the way there, and again on the way back."""
        self.answers_lost = 0
        """How many calls will be performed and fail all the same."""
        self.renewals_wait_until_s = 0.0
        """Renewals are performed then, one after the other, even those that nobody waits for any more."""
        self._world = world
        self._process = process

    async def list_leases(self, group: GroupKey) -> LeaseSnapshot:
        await self._go("list")
        answer = await self.store.list_leases(group)
        await self._wait("list", is_answer=True)
        return answer

    async def acquire(
        self, group: GroupKey, partition_id: str, owner: str, *, expected: Lease | None
    ) -> Lease | None:
        await self._go("acquire")
        answer = await self.store.acquire(group, partition_id, owner, expected=expected)
        await self._wait("acquire", is_answer=True)
        return answer

    async def request(self, group: GroupKey, lease: Lease, requester: str) -> None:
        await self._go("request")
        await self.store.request(group, lease, requester)
        await self._wait("request", is_answer=True)

    async def renew(self, group: GroupKey, leases: Sequence[Lease]) -> Mapping[str, Lease]:
        await self._go("renew")
        answer = await asyncio.shield(self._process.start(self._renew_in_turn(group, leases)))
        await self._wait("renew", is_answer=True)
        return answer

    async def release(self, group: GroupKey, leases: Sequence[Lease]) -> None:
        await self._go("release")
        await self.store.release(group, leases)
        await self._wait("release", is_answer=True)

    async def _renew_in_turn(self, group: GroupKey, leases: Sequence[Lease]) -> Mapping[str, Lease]:
        """As in a thread: whoever asked may have gone away."""
        turn_s = self.renewals_wait_until_s + self.calls["renew"] / 1000
        if self.renewals_wait_until_s:
            await asyncio.sleep(max(0.0, turn_s - self._world.now))
        return await self.store.renew(group, leases)

    async def _go(self, what: str) -> None:
        self.calls[what] += 1
        await self._wait(what, is_answer=False)

    async def _wait(self, what: str, *, is_answer: bool) -> None:
        if self.is_hanging:
            await asyncio.sleep(100_000)
        await asyncio.sleep(self.delays_s.get(what, 0.0) + self._world.random.uniform(0.001, 0.02))
        if self.is_refusing:
            raise StoreUnavailableError("The line is cut.")
        if is_answer and self.answers_lost:
            self.answers_lost -= 1
            raise StoreUnavailableError("The line is cut after the call.")


@dataclass
class Pump:
    """One of ``Pumps``."""

    pumps: Pumps
    lease: Lease

    def start(self) -> None:
        self.pumps.start_pump(self.lease)

    async def stop(self, reason: CloseReason) -> None:
        await self.pumps.stop_pump(self.lease.partition_id, reason)

    def renew_lease(self, lease: Lease) -> None:
        self.pumps.lease_renewed(lease)


class Pumps:
    """Records what it is told, and who breaks its rules."""

    def __init__(self, cluster: Cluster, host: str) -> None:
        self.running: dict[str, Lease] = {}
        self.stop_takes_s: dict[str, float] = {}
        self.start_failures = 0
        self.violations: list[str] = []
        self._cluster = cluster
        self._host = host
        self._stopping: set[str] = set()

    def make(self, lease: Lease) -> PartitionPump:
        return cast(PartitionPump, Pump(self, lease))

    def start_pump(self, lease: Lease) -> None:
        if lease.partition_id in self.running:
            self.violations.append(f"{lease} was started twice")
        if self.start_failures:
            self.start_failures -= 1
            raise ValueError("It does not start.")
        self.running[lease.partition_id] = lease
        self._note("start", lease)

    async def stop_pump(self, partition_id: str, reason: CloseReason) -> None:
        if partition_id in self._stopping or partition_id not in self.running:
            self.violations.append(f"{partition_id} was stopped twice")
        self._stopping.add(partition_id)
        self._note("stop", self.running[partition_id], reason)
        await asyncio.sleep(self.stop_takes_s.get(partition_id, 0.01))
        self._stopping.discard(partition_id)
        self._note("stopped", self.running.pop(partition_id), reason)

    def lease_renewed(self, lease: Lease) -> None:
        old = self.running[lease.partition_id]
        if lease.epoch < old.epoch or lease.renewed_at < old.renewed_at or lease.version == old.version:
            self.violations.append(f"{lease} is no renewal of {old}")
        self.running[lease.partition_id] = lease

    def _note(self, what: str, lease: Lease, reason: CloseReason | None = None) -> None:
        self._cluster.calls.append(
            PumpCall(self._cluster.world.now, self._host, lease.partition_id, what, lease.epoch, reason)
        )
