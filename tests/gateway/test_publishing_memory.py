"""What a JSON batch holds while it waits for its turns is counted, and given up with its client."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.types import Message
from tests.gateway.support import HOST
from tests.support.clocks import SetClock

from tidegate.broker import Broker
from tidegate.gateway.http.json_batch import _Reader
from tidegate.gateway.http.publish import BATCH_CONTENT_TYPE, Publishing
from tidegate.model.sas import make_sas_token
from tidegate.transport.memory import MemoryBudget
from tidegate.transport.peers import site_at
from tidegate.transport.sliced_work import SlicedWork
from tidegate.transport.turns import Turns

_COUNT = 1_000
_BODY = b"[" + b",".join([b'{"Body":""}'] * _COUNT) + b"]"


class _HeldTurns:
    """Turns of one item each, whose passes are made by the test."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.due: list[Callable[[], None]] = []
        self.turns = Turns(monotonic=self._monotonic, call_soon=self.due.append)

    def _monotonic(self) -> float:
        self.now_s += 0.00101
        return self.now_s

    def run(self, passes: int) -> None:
        """Make passes, if any are due."""
        for _ in range(passes):
            due = list(self.due)
            self.due.clear()
            for call in due:
                call()


class _Client:
    """One request; its client leaves when told."""

    def __init__(self, application: Starlette, broker: Broker, body: bytes = _BODY) -> None:
        self._body = body
        self.status: int | None = None
        self._has_left = asyncio.Event()
        self._is_sent = False
        policy = broker.policies()[0]
        token = make_sas_token(
            audience=f"sb://{HOST}/hub", key_name=policy.name, key=policy.key, expiry=4_000_000_000
        )
        headers = {
            "authorization": token,
            "content-type": BATCH_CONTENT_TYPE,
            "content-length": str(len(body)),
        }
        scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": "/hub/partitions/0/messages",
            "query_string": b"timeout=300",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("192.0.2.1", 1),
        }
        self.work = asyncio.ensure_future(  # noqa: TID251 - the test owns it
            application(scope, self._receive, self._send)
        )

    def leave(self) -> None:
        """Close the connection."""
        self._has_left.set()

    async def _receive(self) -> Message:
        if not self._is_sent:
            self._is_sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._has_left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]


class _Service:
    """What publishes, with a limit on memory."""

    def __init__(self, broker: Broker, clock: SetClock, bytes_max: int) -> None:
        self.held = _HeldTurns()
        self.budget = MemoryBudget(bytes_max)
        publishing = Publishing(
            broker, clock=clock, budget=self.budget, sliced_work=SlicedWork(self.held.turns)
        )
        self.application = Starlette(routes=publishing.routes())

    @property
    def used_bytes(self) -> int:
        """What is counted now."""
        return self.budget.statistics().used_bytes


async def _until(is_met: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_met():  # noqa: ASYNC110 - any of many states
            await asyncio.sleep(0)


async def test_a_batch_counts_until_it_is_queued(broker: Broker, clock: SetClock) -> None:
    """Its text while it waits, its events as they are found; nothing once they are stored."""
    service = _Service(broker, clock, 100_000_000)
    client = _Client(service.application, broker)
    await _until(lambda: bool(service.held.due))
    waiting = service.used_bytes
    assert waiting > len(_BODY)
    assert {account.address for account in service.budget._accounts} == {site_at("192.0.2.1")}
    service.held.run(_COUNT // 2)
    assert service.used_bytes > waiting + _COUNT
    service.held.run(_COUNT)
    await client.work
    assert (client.status, service.used_bytes) == (201, 0)
    assert broker.event_hub("hub").partition("0").next_sequence_number == _COUNT


async def test_a_batch_is_given_up_with_its_client(broker: Broker, clock: SetClock) -> None:
    """Else a sender that connects again and again would have the service hold and parse all of them."""
    service = _Service(broker, clock, 100_000_000)
    client = _Client(service.application, broker)
    await _until(lambda: bool(service.held.due))
    client.leave()
    await asyncio.wait_for(client.work, 30)
    assert service.used_bytes == 0
    service.held.run(2 * _COUNT)
    assert broker.event_hub("hub").partition("0").next_sequence_number == 0


@pytest.mark.slow
@pytest.mark.parametrize("is_refused", [False, True], ids=["client leaves", "refused"])
async def test_a_batch_that_is_not_stored_leaves_no_text(
    broker: Broker, clock: SetClock, is_refused: bool
) -> None:
    """Else it is in memory until a garbage collection of everything, but no longer counted."""
    service = _Service(broker, clock, 100_000_000)
    gc.collect()
    gc.disable()
    try:
        client = _Client(service.application, broker, _BODY[:-1] if is_refused else _BODY)
        await _until(lambda: bool(service.held.due))
        if not is_refused:
            client.leave()

        def pass_turn() -> bool:
            if is_refused:
                service.held.run(1)
            return client.work.done()

        await _until(pass_turn)
        assert client.status == 400
        assert not [each for each in gc.get_objects() if isinstance(each, _Reader)]
    finally:
        gc.enable()


@pytest.mark.slow
async def test_waiting_batches_are_given_up_when_memory_is_exhausted(broker: Broker, clock: SetClock) -> None:
    """Those that wait are ended until there is room, and told to try again; the others are stored."""
    service = _Service(broker, clock, 5 * len(_BODY))
    clients = [_Client(service.application, broker) for _ in range(8)]
    await _until(lambda: service.budget.statistics().ended_peers > 0)
    assert service.used_bytes < service.budget.bytes_max

    def pass_turns() -> bool:
        service.held.run(1)
        return all(client.work.done() for client in clients)

    await _until(pass_turns)
    statuses = [client.status for client in clients]
    assert set(statuses) == {201, 429}
    stored = broker.event_hub("hub").partition("0").next_sequence_number
    assert stored == statuses.count(201) * _COUNT
    assert service.used_bytes == 0
