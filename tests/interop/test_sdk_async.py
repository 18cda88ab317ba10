"""The unmodified official SDK, asyncio, over plain TCP, verified TLS and WebSocket."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from azure.eventhub import EventData
from azure.eventhub.aio import EventHubProducerClient
from azure.eventhub.exceptions import AuthenticationError, ConnectError, EventHubError
from tests.interop.support import WAIT_S, SdkTarget, bodies, enqueued_time, read_async, target_of

from tidegate.testing.hub import HubService


@pytest.fixture(params=["plain", "tls", "websocket"])
def sdk(request: pytest.FixtureRequest, hub_service: HubService) -> SdkTarget:
    """The service by each transport."""
    return target_of(hub_service, request.param)


@pytest.fixture
def plain(hub_service: HubService) -> SdkTarget:
    """The service over plain TCP."""
    return target_of(hub_service, "plain")


async def test_send_and_receive(sdk: SdkTarget, event_hub: str) -> None:
    """Single events, lists, batches, keys and partitions arrive in order, by either transport."""
    async with sdk.async_producer(event_hub) as producer:
        await producer.send_event(EventData(b"single"), partition_id="0")
        await producer.send_batch([EventData("a"), EventData("b")], partition_id="0")
        batch = await producer.create_batch(partition_id="0")
        for number in range(50):
            batch.add(EventData(f"batch {number}"))
        await producer.send_batch(batch)
        await producer.send_batch([EventData("keyed")], partition_key="a")  # goes to partition 0 of 2
    events = await read_async(sdk.async_consumer(event_hub), 54)
    assert bodies(events) == ["single", "a", "b", *(f"batch {number}" for number in range(50)), "keyed"]
    assert [event.sequence_number for event in events] == list(range(54))
    assert events[-1].partition_key == b"a"


async def test_positions(plain: SdkTarget, event_hub: str) -> None:
    """Offset, sequence number and enqueued time, inclusive and not, start where they say."""
    async with plain.async_producer(event_hub) as producer:
        await producer.send_batch([EventData(f"e{number}") for number in range(5)], partition_id="0")
    events = await read_async(plain.async_consumer(event_hub), 5)
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"starting_position": 2}, ["e3", "e4"]),
        ({"starting_position": 2, "starting_position_inclusive": True}, ["e2", "e3", "e4"]),
        ({"starting_position": events[2].offset}, ["e3", "e4"]),
        ({"starting_position": enqueued_time(events[0]) - timedelta(seconds=1)}, [f"e{n}" for n in range(5)]),
    ]
    for arguments, expected in cases:
        read = await read_async(plain.async_consumer(event_hub), len(expected), **arguments)
        assert bodies(read) == expected, arguments


async def test_receive_from_latest(plain: SdkTarget, event_hub: str) -> None:
    """A waiting reader at the end is woken by the append."""
    async with plain.async_producer(event_hub) as producer, asyncio.TaskGroup() as group:
        await producer.send_event(EventData("old"), partition_id="0")
        reading = group.create_task(
            read_async(plain.async_consumer(event_hub), 1, starting_position="@latest")
        )
        while not reading.done():
            await producer.send_event(EventData("new"), partition_id="0")
    assert set(bodies(reading.result())) == {"new"}


async def test_buffered_producer(plain: SdkTarget, event_hub: str) -> None:
    """The SDK's buffered mode loses and reorders nothing."""
    failures: list[Exception] = []

    async def on_success(events: object, partition_id: object) -> None:
        pass

    async def on_error(events: object, partition_id: object, error: Exception) -> None:
        failures.append(error)

    producer = EventHubProducerClient.from_connection_string(
        plain.connection_string,
        eventhub_name=event_hub,
        buffered_mode=True,
        on_success=on_success,
        on_error=on_error,
        max_wait_time=0.1,
    )
    async with producer:
        for number in range(300):
            await producer.send_event(EventData(str(number)), partition_id="1")
        await producer.flush()
    assert not failures
    events = await read_async(plain.async_consumer(event_hub), 300, "1")
    assert bodies(events) == [str(number) for number in range(300)]


async def test_receive_from_all_partitions(plain: SdkTarget, event_hub: str) -> None:
    """Without a partition named, the SDK opens all of them and gets everything."""
    async with plain.async_producer(event_hub) as producer:
        for partition in ("0", "1"):
            await producer.send_batch(
                [EventData(f"{partition}-{n}") for n in range(3)], partition_id=partition
            )
    events = await read_async(plain.async_consumer(event_hub), 6, None)
    for partition in ("0", "1"):
        own = [text for text in bodies(events) if text.startswith(partition)]
        assert own == [f"{partition}-{n}" for n in range(3)]


async def test_steal_by_owner_level(plain: SdkTarget, event_hub: str) -> None:
    """A higher owner level ends the earlier reader with an error that says so."""
    async with plain.async_producer(event_hub) as producer:
        await producer.send_event(EventData("e"), partition_id="0")
    stolen = asyncio.Event()
    has_read = asyncio.Event()
    errors: list[Exception] = []

    async def on_batch(context: Any, events: list[EventData]) -> None:
        has_read.set()

    async def on_error(context: Any, error: Exception) -> None:
        errors.append(error)
        stolen.set()

    first = plain.async_consumer(event_hub)
    async with first, asyncio.TaskGroup() as group, asyncio.timeout(WAIT_S):
        receiving = group.create_task(
            first.receive_batch(
                on_batch, on_error=on_error, partition_id="0", owner_level=1, starting_position="-1"
            )
        )
        await has_read.wait()
        assert len(await read_async(plain.async_consumer(event_hub), 1, owner_level=2)) == 1
        await stolen.wait()
        receiving.cancel()
    assert "epoch of '2'" in str(errors[0])


async def test_properties(sdk: SdkTarget, event_hub: str) -> None:
    """Hub and partition properties over the asyncio management link."""
    async with sdk.async_consumer(event_hub) as consumer:
        assert await consumer.get_partition_ids() == ["0", "1"]
        properties = await consumer.get_partition_properties("0")
    assert properties["is_empty"] is True


async def test_refusals_are_clear(sdk: SdkTarget, event_hub: str) -> None:
    """A wrong key, an unknown hub and an event over the limit each give their own clear error."""
    wrong = sdk.connection_string.replace("SharedAccessKey=", "SharedAccessKey=x")
    async with SdkTarget(wrong, sdk.arguments).async_producer(event_hub) as producer:
        with pytest.raises(AuthenticationError, match="InvalidSignature"):
            await producer.send_event(EventData("x"))
    async with sdk.async_producer("no-such-hub") as producer:
        with pytest.raises(ConnectError, match="no-such-hub"):
            await producer.send_event(EventData("x"))
    async with sdk.async_producer(event_hub) as producer:
        with pytest.raises(EventHubError):
            await producer.send_event(EventData(b"x" * 1_100_000), partition_id="0")
        await producer.send_event(EventData("fits"), partition_id="0")
    assert bodies(await read_async(sdk.async_consumer(event_hub), 1)) == ["fits"]
