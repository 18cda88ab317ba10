"""What every attack program is given: where the service is, until when, and a count of what came back.

``python -m bench.floods.attack`` runs one, in a process of its own: it reads a JSON object with the flood's
name and the service's addresses from standard input, says when it begins, and prints what it counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import ssl
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, NoReturn

import uvloop

from tidegate.model.sas import make_sas_token

HUB: Final = "flood"
POLICY: Final = "tenant"
AUDIENCE: Final = f"sb://localhost/{HUB}"
PARTITIONS: Final = 16
GROUPS: Final = [f"group-{number}" for number in range(13)]
"""The hub that floods are about, the policy of attackers that have a key, the hub's partitions and groups."""
_NICENESS: Final = 10
"""Attackers stand for other machines: they should not take the processor from the service."""
_SOURCES: Final = 50
_STEP_S: Final = 0.5
_TELLING: Final = re.compile(rb"amqp:[a-z:-]+|com\.microsoft:[a-z-]+|HTTP/1\.1 \d+")
_NEVER_EXPIRES: Final = 4_000_000_000


def source_of(number: int) -> str:
    """The address that an attacker connects from, so that one machine can be many peers."""
    return f"127.0.1.{1 + number % _SOURCES}"


@dataclass(frozen=True, slots=True)
class Target:
    """Where the service is; addresses read ``host:port``."""

    amqp: str
    amqps: str
    http: str
    https: str
    key: str = field(repr=False)
    """Of the policy ``POLICY``, with Send and Listen on the hub ``HUB``."""

    def token(self, *, key: str | None = None) -> str:
        """A token of the attackers' policy. key: None is the right one."""
        return make_sas_token(audience=AUDIENCE, key_name=POLICY, key=key or self.key, expiry=_NEVER_EXPIRES)


class Line:
    """A connection of an attacker. It raises EOFError once the service has hung up."""

    def __init__(
        self, tally: Counter[str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.reader = reader
        self._tally = tally
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """Write as fast as the service reads."""
        if self._writer.transport.is_closing():
            raise EOFError
        self._writer.write(data)
        await self._writer.drain()

    async def hold(self) -> NoReturn:
        """Do nothing more; conditions and statuses that come are counted."""
        while data := await self.reader.read(65_536):
            self._tally.update(found.decode() for found in _TELLING.findall(data))
        raise EOFError

    def abort(self) -> None:
        """End it at once."""
        self._writer.transport.abort()


@dataclass(slots=True)
class Attack:
    """One run of an attack program."""

    target: Target
    seconds: float
    scale: float = 1.0
    tally: Counter[str] = field(default_factory=Counter)
    """What came back, by kind: ``connected``, ``hung up``, error conditions, ``HTTP/1.1 200`` …"""

    def count(self, number: int) -> int:
        """So many, scaled: 1 at least."""
        return max(1, round(number * self.scale))

    @asynccontextmanager
    async def connected(
        self, address: str, *, source: str, tls: ssl.SSLContext | None = None
    ) -> AsyncIterator[Line]:
        """A connection from one of loopback's addresses."""
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(
            host, int(port), local_addr=(source, 0), ssl=tls, server_hostname="localhost" if tls else None
        )
        self.tally["connected"] += 1
        try:
            yield Line(self.tally, reader, writer)
        finally:
            writer.transport.abort()

    async def repeat(
        self, attackers: int, work: Callable[[int], Awaitable[None]], *, pause_s: float = 0.05
    ) -> None:
        """So many attackers at once (scaled), each beginning again soon after its connection has ended.

        ``work`` gets the attacker's number.
        """

        async def attack(number: int) -> None:
            while True:
                try:
                    await work(number)
                except EOFError:
                    self.tally["hung up"] += 1
                except OSError as error:
                    self.tally[type(error).__name__] += 1
                await asyncio.sleep(pause_s)

        async with asyncio.TaskGroup() as group:
            for number in range(self.count(attackers)):
                group.create_task(attack(number))


Program = Callable[[Attack], Awaitable[None]]
Saying = bytes | Callable[[Attack, int], bytes]
"""Bytes, or what makes them for an attacker's number."""


def saying(
    connections: int, *steps: Saying, face: str = "amqp", then: bytes = b"", every_s: float = 0.0
) -> Program:
    """Connections that say something each half second, and then one thing again and again.

    Nothing that comes back is read, unless they say nothing more: then they wait for the service to hang up.
    """

    async def flood(attack: Attack) -> None:
        async def say(number: int) -> None:
            source = source_of(number) if any(map(callable, steps)) else source_of(0)
            async with attack.connected(getattr(attack.target, face), source=source) as line:
                for step in steps:
                    await line.send(step(attack, number) if callable(step) else step)
                    await asyncio.sleep(_STEP_S)
                while then:
                    await line.send(then)
                    await asyncio.sleep(every_s)
                await line.hold()

        await attack.repeat(connections, say, pause_s=_STEP_S)

    return flood


async def exchange(attack: Attack, line: Line, request: bytes) -> None:
    """Send a request over HTTP and read the answer, whose status is counted."""
    await line.send(request)
    head = await line.reader.readuntil(b"\r\n\r\n")
    attack.tally[head[:12].decode()] += 1
    for name, _, value in (each.partition(b":") for each in head.lower().split(b"\r\n")):
        if name == b"content-length":
            await line.reader.readexactly(int(value))


FROM_NETWORK: Final[Mapping[str, object]] = {
    "connections_per_address_max": 5_000,
    "connections_without_token_per_address_max": 100,
}
"""The service's limits for addresses, from which loopback is exempt unless they are set."""


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
    with suppress(TimeoutError):
        async with asyncio.timeout(attack.seconds):
            await flood.attack(attack)


def main() -> NoReturn:
    """Run the flood that standard input names, and print what it counted."""
    from bench.floods.catalog import FLOODS  # its modules import this one

    order = json.load(sys.stdin)
    flood = next(flood for flood in FLOODS if flood.name == order["flood"])
    os.nice(_NICENESS)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    attack = Attack(Target(**order["target"]), order["seconds"], order["scale"])
    print(time.monotonic(), flush=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        # uvloop has much to say of connections that end while they shake hands.
        runner.get_loop().set_exception_handler(lambda loop, context: None)
        runner.run(_run(flood, attack))
        print(json.dumps(attack.tally), flush=True)
        os._exit(0)  # thousands of connections are left to the kernel


if __name__ == "__main__":
    main()
