"""A hub's events in one sequence: ``async for event in consumer``, and what keeps it whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from tests.client.fake_service import until

from tidegate.client import (
    EventHubAdministrator,
    EventHubConsumer,
    EventHubProducer,
    EventHubReceiver,
    RetryPolicy,
)
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import (
    BrokenError,
    ClosedError,
    InvalidArgumentError,
    NotFoundError,
    PositionOutOfRangeError,
    ReceiverStolenError,
)
from tidegate.model.events import EventData, ReceivedEvent
from tidegate.model.position import EventPosition
from tidegate.testing.hub import HubService
from tidegate.testing.proxy import CuttingProxy

PLACES = [("0", 0), ("0", 1), ("0", 2), ("1", 0), ("1", 1), ("1", 2)]


def _places(events: Sequence[ReceivedEvent]) -> list[tuple[str, int]]:
    return sorted((event.partition_id, event.sequence_number) for event in events)


async def _read(receiver: EventHubReceiver, count: int) -> list[ReceivedEvent]:
    events: list[ReceivedEvent] = []
    async with asyncio.timeout(30):
        while len(events) < count:
            events += await receiver.receive(count - len(events))
    return events


@pytest.fixture
def connection_string(hub_service: HubService, event_hub: str) -> str:
    return hub_service.hub_connection_string(event_hub)


@pytest.fixture
async def producer(connection_string: str) -> AsyncIterator[EventHubProducer]:
    """Of a hub with two partitions."""
    async with EventHubProducer.from_connection_string(connection_string) as producer:
        yield producer


@pytest.fixture
async def consumer(connection_string: str) -> AsyncIterator[EventHubConsumer]:
    async with EventHubConsumer.from_connection_string(connection_string) as consumer:
        yield consumer


@pytest.fixture
async def six(producer: EventHubProducer) -> None:
    """Three events in each of the two partitions; their bodies are their sequence numbers."""
    for partition_id in "01":
        await producer.send([EventData(str(number)) for number in range(3)], partition_id=partition_id)


async def test_a_consumer_yields_the_events_of_all_partitions(
    consumer: EventHubConsumer, producer: EventHubProducer, six: None
) -> None:
    """From the oldest on, in the order of each partition, then what comes; beside an owner of one."""
    await consumer.open_receiver("1", EventPosition.earliest(), owner_level=7)
    events: list[ReceivedEvent] = []
    async with asyncio.timeout(30):
        async for event in consumer:
            events.append(event)
            if len(events) == 6:
                assert _places(events) == PLACES
                await producer.send(EventData("3"), partition_id="1")
            if len(events) == 7:
                break
    for partition_id in "01":
        bodies = [event.body for event in events if event.partition_id == partition_id]
        assert bodies == [b"0", b"1", b"2", b"3"][: len(bodies)]


async def test_a_loop_that_is_left_loses_nothing(consumer: EventHubConsumer, six: None) -> None:
    """What was fetched for it comes next, by the next loop or by ``receive``; of one partition, too."""
    one = await consumer.open_receiver("0", EventPosition.earliest())
    async for event in one:
        assert event.sequence_number == 0
        break
    async for event in one:
        assert event.sequence_number == 1
        break
    assert [event.sequence_number for event in await one.receive()] == [2]
    async with consumer.receive() as receiver:
        events = []
        for _ in range(2):
            async for event in receiver:
                events.append(event)
                break
        assert _places(events + await _read(receiver, 4)) == PLACES


async def test_positions_are_where_another_receiver_continues(
    consumer: EventHubConsumer, producer: EventHubProducer, six: None
) -> None:
    """Each event once; also of a partition of which nothing was read yet, for which ``latest`` is fixed."""
    async with consumer.receive() as receiver:
        assert receiver.positions == {}
        first = await _read(receiver, 2)
        async for event in receiver:  # fetches more than the one that it yields
            first.append(event)
            break
        positions = receiver.positions
    async with consumer.receive(positions) as receiver:
        assert _places(first + await _read(receiver, 3)) == PLACES
    async with consumer.receive(EventPosition.latest()) as receiver:
        assert await receiver.receive(max_wait_s=0.01) == []
        positions = receiver.positions
    await producer.send(EventData("new"), partition_id="0")
    async with consumer.receive(positions) as receiver:
        assert _places(await _read(receiver, 1)) == [("0", 3)]
    async with consumer.receive(partition_ids=["1"]) as receiver:
        assert _places(await _read(receiver, 3)) == PLACES[3:]


async def test_partitions_take_turns(consumer: EventHubConsumer, producer: EventHubProducer) -> None:
    """None waits until another has no more."""
    for partition_id in "01":
        await producer.send([EventData("x")] * 100, partition_id=partition_id)
    async with consumer.receive() as receiver:
        await _read(receiver, 1)
        await until(lambda: all(each.buffered_event_count > 50 for each in receiver._receivers.values()))
        seen = {(await receiver.receive(10))[0].partition_id for _ in range(2)}
    assert seen == {"0", "1"}


async def test_added_partitions_are_read_from_their_beginning(
    hub_service: HubService,
    consumer: EventHubConsumer,
    event_hub: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even if the others are read from their ends, and also if the hub cannot be asked for once."""
    monkeypatch.setattr("tidegate.client.event_hub_receiver._PARTITIONS_READ_S", 0.02)
    asked = consumer.get_event_hub_properties
    failures = [BrokenError("not now")]

    async def ask() -> object:
        if len(consumer_calls) == 1 and failures:
            raise failures.pop()
        consumer_calls.append(1)
        return await asked()

    consumer_calls: list[int] = []
    monkeypatch.setattr(consumer, "get_event_hub_properties", ask)
    async with consumer.receive(EventPosition.latest()) as receiver:
        assert await receiver.receive(max_wait_s=0.01) == []
        async with EventHubAdministrator.from_connection_string(hub_service.connection_string) as admin:
            await admin.update_event_hub(event_hub, partition_count=3)
        async with EventHubProducer.from_connection_string(
            hub_service.hub_connection_string(event_hub)
        ) as late:
            await late.send(EventData("new"), partition_id="2")
        assert _places(await _read(receiver, 1)) == [("2", 0)]
        assert set(receiver.positions) == {"0", "1", "2"}
    assert not failures


async def test_what_ends_one_partition_ends_all_after_the_events_before_it(
    consumer: EventHubConsumer, six: None
) -> None:
    """Here an owner of partition 0 that a receiver without peeking gives way to; every call raises it."""
    async with consumer.receive(is_peeking=False) as receiver:
        events = await _read(receiver, 6)
        await consumer.open_receiver("0", EventPosition.earliest(), owner_level=1)
        with pytest.raises(ReceiverStolenError):
            await receiver.receive()
        with pytest.raises(ReceiverStolenError):
            async for _ in receiver:
                pass
        positions = receiver.positions
    assert _places(events) == PLACES
    async with consumer.receive(positions) as receiver:
        assert await receiver.receive(max_wait_s=0.01) == []
    with pytest.raises(ClosedError):
        await receiver.receive()


async def test_a_cut_connection_is_a_pause(
    connection_string: str, producer: EventHubProducer, six: None
) -> None:
    """Nothing is repeated or missing; when the tries are over, the loop ends with the error."""
    parsed = ConnectionString.parse(connection_string)
    async with CuttingProxy(parsed.host, parsed.effective_port) as proxy:
        through = replace(parsed, host=proxy.host, port=proxy.port)
        async with EventHubConsumer.from_connection_string(
            through, retry=RetryPolicy(retries_max=5, delay_s=0.001, delay_s_max=0.01)
        ) as consumer:
            receiver = consumer.receive()
            events = await _read(receiver, 6)
            proxy.cut_now()
            await producer.send(EventData("3"), partition_id="1")
            events += await _read(receiver, 1)
            assert _places(events) == [*PLACES, ("1", 3)]
            proxy.refuse()
            proxy.cut_now()
            with pytest.raises(BrokenError):
                await receiver.receive()


async def test_a_cancelled_call_loses_no_event(
    consumer: EventHubConsumer, producer: EventHubProducer
) -> None:
    """Neither while it opens the partitions nor while it waits; nothing stays open."""
    async with consumer.receive() as receiver:
        for _ in range(3):
            task = asyncio.ensure_future(receiver.receive())  # noqa: TID251 - awaited below
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        waiting = asyncio.ensure_future(receiver.receive())  # noqa: TID251 - awaited below
        await until(lambda: len(receiver.positions) == 2)
        waiting.cancel()
        await producer.send(EventData("0"), partition_id="0")
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert _places(await _read(receiver, 1)) == [("0", 0)]


@pytest.mark.slow
async def test_memory_is_bounded_however_many_partitions_there_are(hub_service: HubService) -> None:
    """The prefetch limit is of all partitions together, but for one batch of each."""
    string = hub_service.hub_connection_string(hub_service.create_hub(partition_count=8))
    async with EventHubProducer.from_connection_string(string) as producer:
        for number in range(8 * 10):
            await producer.enqueue(EventData(b"x" * 10_000), partition_id=str(number % 8))
            await producer.flush() if number % 8 == 7 else None
    async with (
        EventHubConsumer.from_connection_string(string) as consumer,
        consumer.receive(prefetch_bytes=200_000) as receiver,
    ):
        for _ in range(80):
            assert len(await receiver.receive(1)) == 1
            held = sum(each._buffer.size_bytes for each in receiver._receivers.values())
            assert held <= 200_000 + 8 * 11_000


async def test_wrong_arguments_are_refused(consumer: EventHubConsumer) -> None:
    """An id that is no string, a partition that is not there, none at all."""
    with pytest.raises(InvalidArgumentError, match=r"partition_ids is a list of ids\. Write partition_ids="):
        consumer.receive(partition_ids="12")
    with pytest.raises(InvalidArgumentError, match=r'not the int 0\. Write "0"\.'):
        await consumer.receive(partition_ids=[0]).receive()  # type: ignore[list-item]
    with pytest.raises(NotFoundError, match=r"no partition '7'\. Its partitions are 0, 1"):
        await consumer.receive({"7": EventPosition.latest()}).receive()
    with pytest.raises(InvalidArgumentError, match="empty"):
        await consumer.receive(partition_ids=[]).receive()
    with pytest.raises(InvalidArgumentError, match="max_events must be at least 1"):
        await consumer.receive().receive(0)
    with pytest.raises(PositionOutOfRangeError):
        await consumer.receive(EventPosition.from_sequence_number(5)).receive()
