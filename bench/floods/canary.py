"""The quiet user: a process that does little, at fixed times, and writes down how long each thing took.

    send     an event on a link that is open, to the same partition
    append   an event on a link that is open, to one partition after the other
    health   GET /health on a new connection
    connect  a new connection, a token, the hub's properties

A time counts from when the thing was due, so that a service that stands still is not asked less often.
``python -m bench.floods.canary HTTP_HOST:PORT FILE`` runs until SIGTERM; the connection string is in the
environment, as it holds a key.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Final

import uvloop

from tidegate.amqp.link import SenderLink
from tidegate.amqp.message import Message, encode_message
from tidegate.amqp.performatives import Accepted, Attach, DeliveryState, Rejected
from tidegate.client import EventHubConsumer, Namespace, RetryPolicy
from tidegate.client.connection import LinkHandler, LiveConnection
from tidegate.client.connector import Connector
from tidegate.model.errors import BrokenError, TidegateError
from tidegate.transport.tasks import TaskOwner
from tidegate.wire.addresses import entity_audience
from tidegate.wire.conditions import error_from_amqp

CONNECTION_STRING_VARIABLE: Final = "FLOODS_CANARY"
TIMEOUT_S: Final = 15.0
"""After which something counts as failed; what fails counts as having taken this long."""
_UNDER_WAY_S: Final = 3.0
"""What is younger than that when the canary is stopped says nothing."""
CANARY_HUB: Final = "canary"
CANARY_PARTITIONS: Final = 32
_EVERY_S: Final = {"send": 0.02, "append": 0.25, "health": 0.05, "connect": 0.5}


@dataclass(frozen=True, slots=True)
class Sample:
    """One thing that the canary did."""

    kind: str
    due: float
    """By ``time.monotonic``, which all processes of a machine share."""
    took_s: float
    error: str = ""
    """The class of the error; empty where it went well."""
    number: int = -1
    """What the event that was acknowledged holds."""


class _Sending(LinkHandler):
    """One open link, and who waits for its deliveries."""

    def __init__(self) -> None:
        self.link: SenderLink | None = None
        self.pending: dict[int, asyncio.Future[None]] = {}
        self.failure: TidegateError | None = None
        self.ready = asyncio.Event()

    def on_attached(self, attach: Attach) -> None:
        self.ready.set()

    def on_credit(self) -> None:
        self.ready.set()

    def on_detached(self, error: TidegateError) -> None:
        self.failure = error
        self.ready.set()
        for future in self.pending.values():
            if not future.done():
                future.set_exception(error)

    def on_settled(self, first_delivery_id: int, last_delivery_id: int, state: DeliveryState | None) -> None:
        for number in range(first_delivery_id, last_delivery_id + 1):
            future = self.pending.pop(number, None)
            if future is None or future.done():
                continue
            if isinstance(state, Accepted):
                future.set_result(None)
            else:
                error = state.error if isinstance(state, Rejected) else None
                future.set_exception(error_from_amqp(error) if error else BrokenError("It was released."))


class _Canary:
    def __init__(self, connection_string: str, http: str, tasks: TaskOwner) -> None:
        self.samples: list[Sample] = []
        self._connection_string = connection_string
        self._connector = Connector(Namespace.from_connection_string(connection_string))
        self._http_host, _, self._http_port = http.rpartition(":")
        self._tasks = tasks
        self._links: dict[int, tuple[LiveConnection, _Sending]] = {}
        self._lock = asyncio.Lock()
        self._next_number = 0

    async def run(self) -> None:
        """Do everything at its times, until cancelled."""
        for partition in range(CANARY_PARTITIONS):
            await self._sending(partition)
        work: dict[str, Callable[[int], Awaitable[int]]] = {
            "send": lambda turn: self._send(0),
            "append": lambda turn: self._send(1 + turn % (CANARY_PARTITIONS - 1)),
            "health": self._health,
            "connect": self._connect,
        }
        print("ready", flush=True)
        async with asyncio.TaskGroup() as group:
            for kind, what in work.items():
                group.create_task(self._keep_time(kind, what))

    async def _keep_time(self, kind: str, what: Callable[[int], Awaitable[int]]) -> None:
        due, turn = time.monotonic(), 0
        while True:
            self._tasks.start(self._measure(kind, due, partial(what, turn)), name=kind)
            due, turn = due + _EVERY_S[kind], turn + 1
            await asyncio.sleep(due - time.monotonic())

    async def _measure(self, kind: str, due: float, what: Callable[[], Awaitable[int]]) -> None:
        error, number = "", -1
        try:
            async with asyncio.timeout(TIMEOUT_S):
                number = await what()
        except (TidegateError, OSError, EOFError) as failure:
            error = type(failure).__name__
        except asyncio.CancelledError:
            if time.monotonic() - due < _UNDER_WAY_S:
                return
            error = "unanswered"
        self.samples.append(Sample(kind, due, TIMEOUT_S if error else time.monotonic() - due, error, number))

    async def _sending(self, partition: int) -> tuple[LiveConnection, _Sending]:
        """The link to a partition; a new one where the old one is over."""
        async with self._lock:
            found = self._links.get(partition)
            if found is not None and found[1].failure is None:
                return found
            authorized = await self._connector.connected()
            await authorized.authorize(entity_audience(self._connector.namespace.host, CANARY_HUB))
            sending = _Sending()
            sending.link = authorized.connection.attach_sender(
                f"{CANARY_HUB}/Partitions/{partition}", sending
            )
            self._links[partition] = authorized.connection, sending
        return self._links[partition]

    async def _send(self, partition: int) -> int:
        connection, sending = await self._sending(partition)
        number, self._next_number = self._next_number, self._next_number + 1
        assert sending.link is not None
        while sending.failure is None and sending.link.sendable <= 0:
            sending.ready.clear()
            await sending.ready.wait()
        if sending.failure is not None:
            raise sending.failure
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sending.pending[sending.link.send(encode_message(Message(data=(b"%d" % number,))))] = answer
        connection.flush()
        await answer
        return number

    async def _health(self, turn: int) -> int:
        reader, writer = await asyncio.open_connection(self._http_host, int(self._http_port))
        try:
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            if b" 200 " not in await reader.readuntil(b"\r\n"):
                raise BrokenError("The service is not healthy.")
        finally:
            writer.close()
        return -1

    async def _connect(self, turn: int) -> int:
        consumer = EventHubConsumer.from_connection_string(
            self._connection_string, CANARY_HUB, retry=RetryPolicy(retries_max=0)
        )
        async with consumer:
            await consumer.get_event_hub_properties()
        return -1


async def _run(http: str, file: Path) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    async with TaskOwner("canary") as tasks:
        canary = _Canary(os.environ[CONNECTION_STRING_VARIABLE], http, tasks)
        tasks.start(canary.run(), name="all")
        await stop.wait()
    file.write_text("".join(json.dumps(astuple(sample)) + "\n" for sample in canary.samples))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(sys.argv[1], Path(sys.argv[2])))
        sys.stdout.flush()
        os._exit(0)
