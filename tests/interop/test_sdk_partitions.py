"""Many partitions, as the official Python SDK sees them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from azure.eventhub import EventData, EventHubProducerClient
from tests.interop.support import WAIT_S, SdkTarget, target_of

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
