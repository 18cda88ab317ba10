"""Bodies of requests to the administration count while they arrive, and are given up if memory is short."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from typing import Any, cast

from starlette.applications import Starlette
from starlette.types import Message
from tests.gateway.support import HOST
from tests.support.clocks import SetClock

from tidegate.broker import Broker
from tidegate.gateway.administration.operations import OPERATIONS, Call
from tidegate.gateway.http.admin import Administration
from tidegate.model.sas import make_sas_token
from tidegate.transport.memory import MemoryBudget
from tidegate.transport.sliced_work import SlicedWork
from tidegate.transport.tasks import TaskOwner


async def test_bodies_that_do_not_end_count(broker: Broker, clock: SetClock) -> None:
    """A thousand connections with a token of one hub held 262 MB beside the limit, for a minute each time."""
    budget, policy = MemoryBudget(1_000), broker.policies()[0]
    administration = Administration(
        broker, clock=clock, capture_statistics=dict, sliced_work=SlicedWork(), budget=budget
    )
    application = Starlette(routes=administration.routes())
    token = make_sas_token(
        audience=f"sb://{HOST}/hub", key_name=policy.name, key=policy.key, expiry=4_000_000_000
    )
    answers: asyncio.Queue[int] = asyncio.Queue()

    async def ask() -> None:
        pieces = iter([b" " * 600])

        async def receive() -> Message:
            body = next(pieces, None)
            if body is None:
                await asyncio.get_running_loop().create_future()
            return {"type": "http.request", "body": body, "more_body": True}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                answers.put_nowait(message["status"])

        scope: dict[str, Any] = {
            "type": "http",
            "method": "PATCH",
            "path": "/api/v1/event-hubs/hub",
            "query_string": b"",
            "headers": [(b"authorization", token.encode())],
            "client": ("192.0.2.1", 1),
        }
        await application(scope, receive, send)

    async with TaskOwner("test") as tasks, asyncio.timeout(30):
        tasks.start(ask(), name="first")
        while budget.statistics().used_bytes == 0:  # noqa: ASYNC110 - until it has been read
            await asyncio.sleep(0)
        assert budget.statistics().used_bytes == 600
        tasks.start(ask(), name="second")
        assert await answers.get() == 429
        assert budget.statistics().used_bytes == 600


async def test_statistics_of_the_namespace_are_counted_in_slices(broker: Broker) -> None:
    """Protects the loop: each partition of each event hub takes some microseconds."""
    for number in range(3):
        await broker.create_event_hub(f"other{number}", partition_count=1)
    steps: list[object] = []

    class Slices(SlicedWork):
        """Work, and what each of its steps returned."""

        async def collect(self, items: Iterator[Any], *, address: object = None) -> list[Any]:
            found = list(items)
            steps.extend(found)
            return found

    operation = next(each for each in OPERATIONS if each.operation_id == "readStatistics")
    call = Call(broker, dict, {}, None, is_manager=True, sliced_work=Slices(), encode_row=str)
    answer = await cast("Awaitable[dict[str, int]]", operation.handler(call))
    assert answer["incoming_events"] == 0
    assert len(steps) == (1 + 4) + 4  # counts, of the deleted ones together, and sizes
