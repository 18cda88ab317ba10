"""What every attack program is given: where the service is, until when, and a count of what came back.

``python -m bench.floods.attack NAME`` runs one, in a process of its own: it reads a JSON object with the
service's addresses from standard input, says when it begins, and prints what it counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import ssl
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn

import uvloop

from tidegate.model.sas import make_sas_token

HUB: Final = "flood"
POLICY: Final = "tenant"
PARTITIONS: Final = 16
GROUPS: Final = [f"group-{number}" for number in range(13)]
"""The hub that floods are about, the policy of attackers that have a key, the hub's partitions and groups."""
_NICENESS: Final = 10
"""Attackers stand for other machines: they should not take the processor from the service."""
_NEVER_EXPIRES: Final = 4_000_000_000


@dataclass(frozen=True, slots=True)
class Target:
    """Where the service is; addresses read ``host:port``."""

    amqp: str
    amqps: str
    http: str
    https: str
    key: str = field(repr=False)
    """Of the policy ``POLICY``, with Send and Listen on the hub ``HUB``."""

    def token(self, audience: str = f"sb://localhost/{HUB}", *, key: str | None = None) -> str:
        """A token of the attackers' policy. key: None is the right one."""
        return make_sas_token(audience=audience, key_name=POLICY, key=key or self.key, expiry=_NEVER_EXPIRES)


@dataclass(slots=True)
class Attack:
    """One run of an attack program."""

    target: Target
    until: float
    """By ``time.monotonic``."""
    scale: float = 1.0
    tally: Counter[str] = field(default_factory=Counter)
    """What came back, by kind: ``connected``, ``hung up``, error conditions, ``HTTP 200`` …"""

    def count(self, number: int) -> int:
        """So many, scaled: 1 at least."""
        return max(1, round(number * self.scale))

    async def connect(
        self, address: str, *, source: str = "127.0.1.1", tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection from one of loopback's addresses, so that one machine can be many peers."""
        host, _, port = address.rpartition(":")
        try:
            streams = await asyncio.open_connection(
                host, int(port), local_addr=(source, 0), ssl=tls, server_hostname="localhost" if tls else None
            )
        except OSError as error:
            self.tally[f"connect: {type(error).__name__}"] += 1
            raise
        self.tally["connected"] += 1
        return streams

    async def repeat(
        self, attackers: int, work: Callable[[int], Awaitable[None]], *, pause_s: float = 0.05
    ) -> None:
        """So many attackers at once, each beginning again soon after its connection has ended.

        ``work`` gets the attacker's number.
        """

        async def attack(number: int) -> None:
            while True:
                try:
                    await work(number)
                except (OSError, EOFError, ssl.SSLError):
                    self.tally["cut off"] += 1
                await asyncio.sleep(pause_s)

        async with asyncio.TaskGroup() as group:
            for number in range(attackers):
                group.create_task(attack(number))


Program = Callable[[Attack], Awaitable[None]]

FROM_NETWORK: Final[Mapping[str, object]] = {}
"""Settings that limit loopback's addresses as those of other machines."""


@dataclass(frozen=True, slots=True)
class Flood:
    """An attack program and how to run the service for it."""

    name: str
    item: int
    """The point of the issue that it stands for."""
    what: str
    attack: Program = field(repr=False)
    settings: Mapping[str, object] = field(default_factory=dict)
    """Of the service, beside its defaults; those that a tree does not know are left out."""
    open_files_max: int | None = None
    """RLIMIT_NOFILE of the service; None: this process's."""
    filled_mb: int = 0
    """What the hub holds before it begins."""
    growth_mb_max: float = 400.0
    """How much memory the service may take under it."""
    kept_mb_max: float = 150.0
    """How much of it may still be taken ten seconds later."""


async def _run(flood: Flood, attack: Attack) -> None:
    try:
        async with asyncio.timeout_at(asyncio.get_running_loop().time() + attack.until - time.monotonic()):
            await flood.attack(attack)
    except TimeoutError:
        pass


def main() -> NoReturn:
    """Run the flood that the command line names, and print what it counted."""
    from bench.floods.catalog import FLOODS  # its modules import this one

    order = json.load(sys.stdin)
    flood = next(flood for flood in FLOODS if flood.name == order["flood"])
    os.nice(_NICENESS)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    began = time.monotonic()
    attack = Attack(Target(**order["target"]), began + order["seconds"], order["scale"])
    print(began, flush=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(flood, attack))
        print(json.dumps(attack.tally), flush=True)
        os._exit(0)  # thousands of connections are left to the kernel


if __name__ == "__main__":
    main()
