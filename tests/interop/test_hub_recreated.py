"""An event hub is deleted and created again while clients are connected: they go on, or say why not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from azure.eventhub import EventData
from azure.eventhub.exceptions import EventDataSendError
from tests.interop.support import WAIT_S, Reader, SdkTarget, bodies, target_of

from tidegate.testing.hub import HubService

_DELETED = r"could not be found: event hub '.*' was deleted"


@pytest.fixture
def sdk(hub_service: HubService) -> SdkTarget:
    """The service over plain TCP."""
    return target_of(hub_service, "plain")


def _delete(service: HubService, hub: str) -> None:
    service.call(lambda server: server.broker.delete_event_hub(hub))


def test_pythons_producers(hub_service: HubService, sdk: SdkTarget, event_hub: str) -> None:
    """In between, an error says that the hub was deleted; then the same producer sends on."""
    with sdk.producer(event_hub) as producer:
        producer.send_batch([EventData("before")], partition_id="0")
        _delete(hub_service, event_hub)
        with pytest.raises(EventDataSendError, match=_DELETED):
            producer.send_batch([EventData("between")], partition_id="0")
        hub_service.create_hub(event_hub, partition_count=2)
        producer.send_batch([EventData("behind")], partition_id="0")
        assert producer.get_partition_properties("0")["last_enqueued_sequence_number"] == 0


def test_pythons_buffered_producer(hub_service: HubService, sdk: SdkTarget, event_hub: str) -> None:
    """As the other producers: each event is stored or reported, with the reason."""
    outcomes: list[str] = []
    changed = threading.Condition()

    def note(outcome: str) -> None:
        with changed:
            outcomes.append(outcome)
            changed.notify_all()

    def on_success(events: Sequence[EventData], partition_id: str) -> None:
        note("stored")

    def on_error(events: Sequence[EventData], partition_id: str, error: Exception) -> None:
        note(str(error))

    def wait(count: int) -> None:
        with changed:
            assert changed.wait_for(lambda: len(outcomes) == count, WAIT_S), outcomes

    arguments: dict[str, Any] = {
        "buffered_mode": True,
        "max_wait_time": 0.1,
        "on_success": on_success,
        "on_error": on_error,
    }
    with sdk.producer(event_hub, **arguments) as producer:
        producer.send_event(EventData("before"), partition_id="0")
        wait(1)
        _delete(hub_service, event_hub)
        producer.send_event(EventData("between"), partition_id="0")
        wait(2)
        hub_service.create_hub(event_hub, partition_count=2)
        producer.send_event(EventData("behind"), partition_id="0")
        wait(3)
    assert (outcomes[0], outcomes[2]) == ("stored", "stored")
    assert "was deleted" in outcomes[1]


async def test_pythons_asyncio_producer(hub_service: HubService, sdk: SdkTarget, event_hub: str) -> None:
    """As the synchronous one."""
    async with sdk.async_producer(event_hub) as producer:
        await producer.send_batch([EventData("before")], partition_id="0")
        await asyncio.to_thread(_delete, hub_service, event_hub)
        with pytest.raises(EventDataSendError, match=_DELETED):
            await producer.send_batch([EventData("between")], partition_id="0")
        await asyncio.to_thread(hub_service.create_hub, event_hub, partition_count=2)
        await producer.send_batch([EventData("behind")], partition_id="0")


def test_pythons_consumer(hub_service: HubService, sdk: SdkTarget, event_hub: str) -> None:
    """A reader is connected again by the SDK, and gets the events of the new hub."""
    retries: dict[str, Any] = {"retry_total": 20, "retry_backoff_factor": 0.2, "retry_backoff_max": 0.5}
    with (
        sdk.producer(event_hub) as producer,
        Reader(sdk.consumer(event_hub, **retries), starting_position="@latest") as reader,
    ):
        producer.get_eventhub_properties()
        _delete(hub_service, event_hub)
        hub_service.create_hub(event_hub, partition_count=2)
        producer.send_batch([EventData("new")], partition_id="0")
        assert bodies(reader.wait_events(1)) == ["new"]
