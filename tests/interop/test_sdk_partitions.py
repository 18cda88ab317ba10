"""Many partitions, as the official Python SDK sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from azure.eventhub import EventData, EventHubProducerClient
from tests.interop.support import WAIT_S, SdkTarget, target_of

from tidegate.model.partition_key import partition_for_key
from tidegate.testing.hub import HubService


@pytest.fixture
def plain(hub_service: HubService) -> SdkTarget:
    """The service over plain TCP."""
    return target_of(hub_service, "plain")


async def test_thirty_two_partitions(plain: SdkTarget, hub_service: HubService) -> None:
    """A buffered producer fills 32 partitions, and one consumer client gets every event of all of them."""
    hub = hub_service.create_hub(partition_count=32)

    def send() -> list[object]:
        failures: list[object] = []
        producer = EventHubProducerClient.from_connection_string(
            plain.connection_string,
            eventhub_name=hub,
            buffered_mode=True,
            on_success=lambda events, partition_id: None,
            on_error=lambda events, partition_id, error: failures.append(error),
            max_wait_time=0.1,
        )
        with producer:
            for number in range(640):
                producer.send_event(EventData(str(number)))
            producer.flush()
        return failures

    assert await asyncio.to_thread(send) == []
    seen: dict[str, list[int]] = {}
    finished = asyncio.Event()

    async def on_batch(context: Any, events: list[EventData]) -> None:
        seen.setdefault(context.partition_id, []).extend(int(event.body_as_str()) for event in events)
        if sum(map(len, seen.values())) >= 640:
            finished.set()

    consumer = plain.async_consumer(hub)
    async with consumer, asyncio.TaskGroup() as group, asyncio.timeout(WAIT_S):
        receiving = group.create_task(
            consumer.receive_batch(on_batch, max_wait_time=0.2, starting_position="-1")
        )
        await finished.wait()
        receiving.cancel()
    assert sorted(number for numbers in seen.values() for number in numbers) == list(range(640))
    assert len(seen) == 32
    assert all(numbers == sorted(numbers) for numbers in seen.values())


async def test_added_partitions(plain: SdkTarget, hub_service: HubService) -> None:
    """A producer that is connected sees the new count, and its keys go to all partitions. A consumer that
    receives goes on; this SDK asks for the partitions when it begins to receive, so the next one has them.
    """
    hub = hub_service.create_hub(partition_count=2)
    seen: dict[str, list[str]] = {}
    arrived = asyncio.Condition()

    async def on_batch(context: Any, events: list[EventData]) -> None:
        async with arrived:
            seen.setdefault(context.partition_id, []).extend(event.body_as_str() for event in events)
            arrived.notify_all()

    async def receive_until(is_enough: Callable[[], bool], meanwhile: Callable[[], None]) -> None:
        consumer = plain.async_consumer(hub, load_balancing_interval=1)
        async with consumer, asyncio.TaskGroup() as group, asyncio.timeout(WAIT_S):
            receiving = group.create_task(consumer.receive_batch(on_batch, starting_position="-1"))
            async with arrived:
                await arrived.wait_for(lambda: len(seen) >= 2)
            await asyncio.to_thread(meanwhile)
            async with arrived:
                await arrived.wait_for(is_enough)
            receiving.cancel()

    def grow() -> None:
        assert producer.get_partition_ids() == ["0", "1"]
        hub_service.call(lambda server: server.broker.update_event_hub(hub, partition_count=5))
        assert producer.get_eventhub_properties()["partition_ids"] == ["0", "1", "2", "3", "4"]
        for number in range(100):
            producer.send_batch([EventData(f"{number}")], partition_key=f"device-{number}")
        with plain.producer(hub) as later:
            later.send_batch([EventData("last")], partition_id="0")
            later.send_batch([EventData("last")], partition_id="4")

    with plain.producer(hub) as producer:
        for partition_id in "01":
            producer.send_batch([EventData("first")], partition_id=partition_id)
        await receive_until(lambda: "last" in seen["0"], grow)
    assert set(seen) == {"0", "1"}
    seen.clear()
    await receive_until(lambda: sum(map(len, seen.values())) == 104, lambda: None)
    for partition_id, bodies in seen.items():
        numbers = {int(body) for body in bodies if body.isdigit()}
        assert numbers == {n for n in range(100) if partition_for_key(f"device-{n}", 5) == int(partition_id)}
    assert set(seen) == {*"01234"}
