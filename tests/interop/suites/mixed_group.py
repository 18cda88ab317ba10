"""A consumer group that processors of four kinds share, while members are killed at random.

The official processors for Python, JavaScript and Go and our own host share leases and checkpoints in one
container (Azurite). ``TIDEGATE_SEED`` draws the same kills again, ``TIDEGATE_MIXED_S`` sets how long they
last.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from azure.storage.blob import ContainerClient
from tests.interop.suites.lasting import PREPARE, LastingProgram
from tests.interop.suites.service import SuiteService
from tests.interop.suites.suite import Case, Outcome, Suite, Transport

from tidegate.client import EventHubProducer
from tidegate.model.connection_string import ConnectionString
from tidegate.model.events import EventData

MEMBERS = {
    "python": ("python", "member"),
    "javascript": ("javascript", "member"),
    "go": ("go", "member"),
    "tidegate": ("python", "host"),
}
"""Member → the language and the name of its program."""

PARTITIONS = 16
EACH = 5
"""Events sent to each partition at a time."""
WAIT_S = 120.0
"""Longest wait for the rest to be processed, and then for balance, once nobody is killed any more."""
_EVEN = [PARTITIONS // len(MEMBERS)] * len(MEMBERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedGroup(Suite):
    """Cases: nothing lost, everybody took part, balanced at the end."""

    def prepare(self) -> None:
        """Build the programs."""
        for language in {language for language, _ in MEMBERS.values()}:
            PREPARE[language]()

    def run(self, service: SuiteService, transport: Transport, cases: Sequence[str] = ()) -> Iterable[Case]:
        """One run gives all cases, whichever are asked for."""
        seed = int(os.environ.get("TIDEGATE_SEED") or secrets.randbelow(2**31))
        group = _Group(service, transport, random.Random(seed))
        with group.members:
            group.disturb(float(os.environ.get("TIDEGATE_MIXED_S", "60")))
            yield from group.judge(seed)


class _Group:
    """The members, what was sent, and what was processed."""

    def __init__(self, service: SuiteService, transport: Transport, draw: random.Random) -> None:
        self._draw = draw
        self._connection_string = service.connection_string_for(transport)
        self._hub = service.create_hub(partition_count=PARTITIONS)
        self._storage = service.storage.connection_string()
        self._container = service.storage.create_container()
        address = ConnectionString.parse(self._connection_string)
        self._environment = {
            "TIDEGATE_CONNECTION_STRING": self._connection_string,
            "TIDEGATE_HUB": self._hub,
            "TIDEGATE_NAMESPACE": f"{address.host}:{address.port}",
            "AZURITE_CONNECTION_STRING": self._storage,
            "TIDEGATE_CONTAINER": self._container,
        }
        self._running: dict[str, LastingProgram] = {}
        self._ended: list[tuple[str, LastingProgram]] = []
        self._sent = 0
        """Events in each partition."""
        self.members = ExitStack()

    def disturb(self, duration_s: float) -> None:
        """Send all the time; kill a member every few seconds, and start it again a little later."""
        for member in MEMBERS:
            self._start(member)
        until = time.monotonic() + duration_s
        next_kill, restarts = time.monotonic() + 10, list[tuple[float, str]]()
        while time.monotonic() < until:
            asyncio.run(self._send())
            now = time.monotonic()
            if now >= next_kill and len(self._running) > 1:
                member = self._draw.choice(sorted(self._running))
                self._running[member].kill()
                self._ended.append((member, self._running.pop(member)))
                restarts.append((now + self._draw.uniform(0, 6), member))
                next_kill = now + self._draw.uniform(2, 8)
            for due in [due for due in restarts if due[0] <= now]:
                restarts.remove(due)
                self._start(due[1])
            time.sleep(0.2)
        for _, member in restarts:
            self._start(member)

    def judge(self, seed: int) -> Iterable[Case]:
        """The cases, once everything is processed and everybody has the same share."""
        wanted = {(str(partition), number) for partition in range(PARTITIONS) for number in range(self._sent)}
        started = time.monotonic()
        while (missing := wanted - set(self._processed())) and time.monotonic() < started + WAIT_S:
            time.sleep(0.5)
        repeated = sum(self._processed().values()) - len(wanted)
        told = (
            f"{len(wanted)} events, {len(missing)} lost, {repeated} processed again, "
            f"{len(self._ended)} kills, seed {seed}"
        )
        yield _case("every event is processed at least once", not missing, told)
        shares = {name: len(self._of(name)) for name in MEMBERS}
        yield _case(
            "every member takes part", all(shares.values()), f"events by member {shares}, seed {seed}"
        )
        started = time.monotonic()
        while (owned := self._owned()) != _EVEN and time.monotonic() < started + WAIT_S:
            time.sleep(0.5)
        ended = [name for name, program in self._running.items() if program.has_ended]
        told = f"partitions by owner {owned}, seed {seed}, ended by themselves: {ended}"
        yield _case("balanced at the end", owned == _EVEN and not ended, told)

    def _start(self, member: str) -> None:
        language, program = MEMBERS[member]
        started = LastingProgram(language, program, self._environment, log=f"mixed-group-{member}")
        self._running[member] = self.members.enter_context(started)

    async def _send(self) -> None:
        async with EventHubProducer.from_connection_string(self._connection_string, self._hub) as producer:
            for partition in range(PARTITIONS):
                await producer.send([EventData(b"x")] * EACH, partition_id=str(partition))
        self._sent += EACH

    def _of(self, member: str) -> Counter[tuple[str, int]]:
        """How often each event was processed by a member, over all its starts."""
        programs = [program for name, program in [*self._ended, *self._running.items()] if name == member]
        return Counter(
            (line.said["partition"], number)
            for program in programs
            for line in program.lines()
            for number in line.said.get("numbers", ())
        )

    def _processed(self) -> Counter[tuple[str, int]]:
        return sum((self._of(member) for member in MEMBERS), Counter[tuple[str, int]]())

    def _owned(self) -> list[int]:
        """How many partitions each owner has, by the store."""
        with ContainerClient.from_connection_string(self._storage, self._container) as blobs:
            found = [blob for blob in blobs.list_blobs(include=["metadata"]) if "/ownership/" in blob.name]
            owners = Counter((blob.metadata or {}).get("ownerid", "") for blob in found)
        del owners[""]
        return sorted(owners.values())


def _case(name: str, is_met: bool, detail: str) -> Case:
    return Case(name, Outcome.PASSED if is_met else Outcome.FAILED, detail)


SUITES = (
    MixedGroup(
        name="mixed-group",
        sdk="azure-eventhub, @azure/event-hubs, azeventhubs, Tidegate",
        version="5.15, 6.0, 2.0",
        transports=(Transport.PLAIN,),
    ),
)
