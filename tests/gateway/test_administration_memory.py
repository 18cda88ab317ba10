"""Bodies of requests to the administration count while they arrive, and are given up if memory is short."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from itertools import count, islice
from typing import Any, cast

import pytest
from starlette.applications import Starlette
from starlette.types import Message
from tests.gateway.support import HOST
from tests.support.clocks import SetClock

from tidegate.broker import Broker, event_hub
from tidegate.gateway.administration.operations import OPERATIONS, Call
from tidegate.gateway.administration.partition_lists import in_slices
from tidegate.gateway.http import long_answers
from tidegate.gateway.http.admin import Administration
from tidegate.gateway.http.atom import AtomAdministration
from tidegate.gateway.http.long_answers import LongAnswer
from tidegate.model.errors import ServerBusyError
from tidegate.model.sas import make_sas_token
from tidegate.transport.memory import MemoryBudget
from tidegate.transport.peers import site_at
from tidegate.transport.sliced_work import SlicedWork
from tidegate.transport.tasks import TaskOwner
from tidegate.transport.turns import Turns


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


@pytest.mark.parametrize(
    ("operation_id", "steps_wanted"),
    # Counts of deleted event hubs together; counts and sizes of hubs with 2, 1, 1 and 5 partitions.
    [("readStatistics", 1 + 2 * (1 + 1 + 1 + 3)), ("readEventHubStatistics", 2 * 3)],
)
async def test_statistics_are_counted_in_slices(
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    operation_id: str,
    steps_wanted: int,
) -> None:
    """Protects the loop: each partition of each event hub takes some microseconds."""
    monkeypatch.setattr(event_hub, "_PARTITIONS_PER_STEP", 2, raising=False)
    for number in range(3):
        await broker.create_event_hub(f"other{number}", partition_count=5 if number == 2 else 1)
    steps: list[object] = []

    class Slices(SlicedWork):
        """Work, and what each of its steps returned."""

        async def collect(self, items: Iterator[Any], *, address: object = None) -> list[Any]:
            found = list(items)
            steps.extend(found)
            return found

    operation = next(each for each in OPERATIONS if each.operation_id == operation_id)
    call = Call(broker, dict, {"hub": "other2"}, None, is_manager=True, sliced_work=Slices(), encode_row=str)
    answer = await cast("Awaitable[dict[str, int]]", operation.handler(call))
    assert answer["incoming_events"] == 0
    assert len(steps) == steps_wanted


async def _never() -> Message:
    await asyncio.get_running_loop().create_future()
    raise AssertionError


@pytest.mark.parametrize("path", ["/api/v1/event-hubs/hub/revoked-publishers", "/hub/RevokedPublishers"])
async def test_a_long_answer_is_sent_in_pieces_that_count(
    broker: Broker, clock: SetClock, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Protects the loop and memory: a feed of 10,000 publishers has 20 MB, which was joined, encoded and
    encrypted in one step, and counted by no one before."""
    monkeypatch.setattr(long_answers, "PIECE_BYTES", 50)
    names = [f"publisher-{number}" for number in range(10)]
    for name in names:
        await broker.event_hub("hub").revoke_publisher(name)
    budget, policy = MemoryBudget(1 << 20), broker.policies()[0]
    work = SlicedWork(None, budget)
    rest = Administration(broker, clock=clock, capture_statistics=dict, sliced_work=work, budget=budget)
    atom = AtomAdministration(broker, clock=clock, sliced_work=work, budget=budget)
    application = Starlette(routes=[*rest.routes(), *atom.routes()])
    token = make_sas_token(
        audience=f"sb://{HOST}/hub", key_name=policy.name, key=policy.key, expiry=4_000_000_000
    )
    pieces, left, length = list[bytes](), list[int](), 0
    asked = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> Message:
        return next(asked, None) or await _never()

    async def send(message: Message) -> None:
        nonlocal length
        if message["type"] == "http.response.start":
            assert message["status"] == 200
            length = int(dict(message["headers"])[b"content-length"])
        else:
            pieces.append(message["body"])
            left.append(budget.statistics().used_bytes)
            assert message["more_body"] is (left[-1] > 0)

    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"",
        "headers": [(b"authorization", token.encode()), (b"host", HOST.encode())],
        "client": ("192.0.2.1", 1),
    }
    await application(scope, receive, send)
    text = b"".join(pieces).decode()
    assert all(name in text for name in names)
    assert (len(text), len(pieces) > 2) == (length, True)
    assert left == [length - sum(map(len, pieces[:end])) for end in range(1, len(pieces) + 1)]


async def test_an_answer_that_is_not_read_is_cut_off_when_memory_is_exhausted() -> None:
    """What is left of it is freed; a reader that waits for a minute would keep 20 MB."""
    budget, is_sending = MemoryBudget(1_000_000), asyncio.Event()
    answer = LongAnswer([bytes(100_000)] * 5, budget, media_type="text/plain")

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            is_sending.set()
            await _never()

    async with TaskOwner("test") as tasks, asyncio.timeout(30):
        scope = {"type": "http", "client": ("192.0.2.1", 1)}
        task = tasks.start(answer(scope, _never, send), name="answer")
        await is_sending.wait()
        assert {account.address for account in budget._accounts} == {site_at("192.0.2.1")}
        assert budget.statistics().used_bytes == 400_000
        budget.add_queued(700_000)
        await asyncio.wait([task])
        assert task.cancelled()
        assert budget.statistics().used_bytes == 700_000


async def test_rows_count_while_a_list_is_made() -> None:
    """Protects memory: lists that are not of partitions were not counted until they were encoded. One that
    would exceed it ends."""
    now = count()
    turns = Turns(monotonic=lambda: float(next(now)), call_soon=asyncio.get_running_loop().call_soon)
    budget = MemoryBudget(10_000)

    used = list[int]()

    def rows() -> Iterator[bytes]:
        for _ in range(1_000):
            used.append(budget.statistics().used_bytes)
            yield bytes(900)

    assert len(await in_slices(islice(rows(), 9), SlicedWork(turns, budget))) == 9
    assert all(900 * place <= found < 1_100 * place + 1 for place, found in enumerate(used))
    assert budget.statistics().used_bytes == 0
    with pytest.raises(ServerBusyError):
        await in_slices(rows(), SlicedWork(turns, budget))
    assert len(used) < 30
    assert budget.statistics().used_bytes == 0
