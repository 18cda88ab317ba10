"""A range that is asked for soon is fetched meanwhile: once, harmlessly, and not for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tidegate.client import EventHubProducer
from tidegate.client.blocking import BlockingConsumer
from tidegate.client.receiver import PartitionReceiver
from tidegate.model.errors import BrokenError, PositionOutOfRangeError
from tidegate.model.events import EventData
from tidegate.testing.hub import HubService

_COUNT = 50


@pytest.fixture(scope="module")
def hub(hub_service: HubService) -> str:
    """Two partitions of ``_COUNT`` events."""
    name = hub_service.create_hub(partition_count=2)

    async def send() -> None:
        async with EventHubProducer.from_connection_string(hub_service.connection_string, name) as producer:
            for partition_id in ("0", "1"):
                await producer.send([EventData(b"%d" % n) for n in range(_COUNT)], partition_id=partition_id)

    asyncio.run(send())
    return name


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What receivers were opened for."""
    calls: list[object] = []
    open_one: Callable[..., object] = BlockingConsumer._open

    async def noted(*arguments: object) -> PartitionReceiver:
        calls.append(arguments[2])
        return await open_one(*arguments)  # type: ignore[misc, no-any-return]

    monkeypatch.setattr(BlockingConsumer, "_open", noted)
    return calls


@pytest.fixture
def consumer(hub_service: HubService, hub: str, opened: list[object]) -> Iterator[BlockingConsumer]:
    """Of the hub, closed at the end."""
    with BlockingConsumer(hub_service.hub_connection_string(hub)) as consumer:
        yield consumer


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _numbers(consumer: BlockingConsumer, partition_id: str, start: int, until: int) -> list[int]:
    chunks = consumer.read_encoded(partition_id, start, until)
    return [number for chunk in chunks for number in chunk.sequence_numbers]


def test_one_receiver_for_what_is_fetched_ahead(consumer: BlockingConsumer, opened: list[object]) -> None:
    """Asked for twice or while it is being opened, it is the one that reads."""
    for partition_id in ("0", "1", "0"):
        consumer.open_ahead(partition_id, 3, 40)
    assert _numbers(consumer, "0", 3, 40) == list(range(3, 40))
    _wait_until(lambda: len(consumer._state.idle) == 2)
    assert _numbers(consumer, "1", 3, 40) == list(range(3, 40))
    consumer.open_ahead("0", 40, _COUNT)  # the one that waits there already
    assert _numbers(consumer, "0", 40, _COUNT) == list(range(40, _COUNT))
    assert len(opened) == 2


def test_another_range_than_the_one_fetched_ahead(consumer: BlockingConsumer, opened: list[object]) -> None:
    """Whoever waits at another place is replaced, whether by the next guess or by the reading."""
    consumer.open_ahead("0", 3, 40)
    _wait_until(lambda: len(consumer._state.idle) == 1)
    consumer.open_ahead("0", 5, 40)
    assert _numbers(consumer, "0", 7, 40) == list(range(7, 40))
    assert len(opened) == 3


def test_nothing_to_fetch(consumer: BlockingConsumer, opened: list[object]) -> None:
    """An empty range opens nothing, as in reading."""
    consumer.open_ahead("0", 7, 7)
    assert _numbers(consumer, "0", 7, 7) == []
    assert opened == []


def test_what_is_wrong_is_told_by_the_reading(consumer: BlockingConsumer) -> None:
    """A guess raises nothing, and leaves nothing behind."""
    consumer.open_ahead("0", 1000, 1001)
    consumer.open_ahead("no such", 0, 1)
    with pytest.raises(PositionOutOfRangeError):
        _numbers(consumer, "0", 1000, 1001)
    _wait_until(lambda: not consumer._state.opening)
    assert not consumer._state.idle


def test_what_failed_ahead_is_not_tried_twice(
    consumer: BlockingConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reading that waits for it gets its error: all tries were made there."""
    gate, tries, check_out = asyncio.Event(), [], BlockingConsumer._check_out

    async def fail(*arguments: object) -> PartitionReceiver:
        tries.append(arguments)
        await gate.wait()
        raise BrokenError("no line")

    async def noted(self: BlockingConsumer, *arguments: Any) -> PartitionReceiver:
        asyncio.get_running_loop().call_soon(gate.set)  # once the reading waits
        return await check_out(self, *arguments)

    monkeypatch.setattr(BlockingConsumer, "_open", fail)
    monkeypatch.setattr(BlockingConsumer, "_check_out", noted)
    consumer.open_ahead("0", 0, 1)
    with pytest.raises(BrokenError, match="no line"):
        _numbers(consumer, "0", 0, 1)
    assert len(tries) == 1


def test_what_nobody_reads_is_let_go(consumer: BlockingConsumer, opened: list[object]) -> None:
    """A consumer group has room for five receivers."""
    consumer.open_ahead("0", 0, _COUNT)
    _wait_until(lambda: len(opened) == 1 and not consumer._state.opening)
    _wait_until(lambda: not consumer._state.idle)


def test_closed_while_it_fetches_ahead(hub_service: HubService, hub: str) -> None:
    """No task of it is left."""
    consumer = BlockingConsumer(hub_service.hub_connection_string(hub))
    assert _numbers(consumer, "1", 0, 1) == [0]
    consumer.open_ahead("0", 0, _COUNT)
    consumer.close()
    _wait_until(lambda: not consumer._state.opening)
    assert not consumer._state.idle
