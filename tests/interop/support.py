"""What the tests with the official SDK share: one target per transport, and readers that end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from azure.eventhub import (
    EventData,
    EventHubConsumerClient,
    EventHubProducerClient,
    TransportType,
)
from azure.eventhub.aio import EventHubConsumerClient as AsyncConsumerClient
from azure.eventhub.aio import EventHubProducerClient as AsyncProducerClient

from tidegate.model.connection_string import ConnectionString
from tidegate.testing.hub import HubProcess, HubService

WAIT_S = 60.0
"""Longest wait for something that must happen; reached only when a test fails."""


@dataclass(frozen=True)
class SdkTarget:
    """How an unmodified official client reaches the service."""

    connection_string: str
    arguments: dict[str, Any] = field(default_factory=dict)

    def producer(self, hub: str, **kwargs: Any) -> EventHubProducerClient:
        """A synchronous producer for ``hub``."""
        return EventHubProducerClient.from_connection_string(
            self.connection_string, eventhub_name=hub, **(_QUICK | self.arguments | kwargs)
        )

    def consumer(self, hub: str, group: str = "$Default", **kwargs: Any) -> EventHubConsumerClient:
        """A synchronous consumer of ``hub``."""
        return EventHubConsumerClient.from_connection_string(
            self.connection_string, group, eventhub_name=hub, **(_QUICK | self.arguments | kwargs)
        )

    def publisher(self, hub: str, name: str) -> EventHubProducerClient:
        """A producer whose link goes to a publisher. The SDK has no option for it, but puts the entity's path
        into address and token as it is; only its look at the partitions has to be spared.
        """
        client = self.producer(f"{hub}/publishers/{name}")
        client._partition_ids = ["0"]
        return client

    def async_producer(self, hub: str, **kwargs: Any) -> AsyncProducerClient:
        """An asyncio producer for ``hub``."""
        return AsyncProducerClient.from_connection_string(
            self.connection_string, eventhub_name=hub, **(_QUICK | self.arguments | kwargs)
        )

    def async_consumer(self, hub: str, group: str = "$Default", **kwargs: Any) -> AsyncConsumerClient:
        """An asyncio consumer of ``hub``."""
        return AsyncConsumerClient.from_connection_string(
            self.connection_string, group, eventhub_name=hub, **(_QUICK | self.arguments | kwargs)
        )


_QUICK: dict[str, Any] = {"retry_total": 0, "retry_backoff_factor": 0.01, "socket_timeout": 0.02}
"""Without this, the SDK hides a refusal behind seconds of retries, and polls its socket at leisure."""

WEBSOCKET: dict[str, Any] = {"transport_type": TransportType.AmqpOverWebsocket, "socket_timeout": 1.0}
"""Here, the time-out is also that of the TLS handshake, which a busy machine does not finish in 20 ms."""


def target_of(service: HubService | HubProcess, transport: str) -> SdkTarget:
    """The target for ``plain`` (UseDevelopmentEmulator), or by verified TLS ``tls`` or ``websocket``.

    ``websocket plain`` is WebSocket without TLS.
    """
    ready = service.ready
    if transport == "plain":
        assert ready.connection_string_plain is not None
        return SdkTarget(ready.connection_string_plain)
    if transport == "websocket plain":
        assert ready.connection_string_plain is not None
        assert ready.http is not None
        return SdkTarget(
            ready.connection_string_plain,
            {
                "custom_endpoint_address": f"sb://localhost:{ready.http.rpartition(':')[2]}",
                **WEBSOCKET,
            },
        )
    address = ready.https if transport == "websocket" else ready.amqps
    assert address is not None
    port = address.rpartition(":")[2]
    return SdkTarget(
        ready.connection_string,
        {
            "custom_endpoint_address": f"sb://localhost:{port}",
            "connection_verify": ready.ca_file,
            **(WEBSOCKET if transport == "websocket" else {"transport_type": TransportType.Amqp}),
        },
    )


def tls_connection_string(service: HubService | HubProcess, transport: str = "tls") -> str:
    """With the port of ``tls`` or ``websocket`` in it, for SDKs that look there; Python's does not."""
    parts = ConnectionString.parse(service.ready.connection_string)
    address = service.ready.https if transport == "websocket" else service.ready.amqps
    assert address is not None
    assert parts.shared_access_key is not None
    return (
        f"Endpoint=sb://localhost:{address.rpartition(':')[2]}/;"
        f"SharedAccessKeyName={parts.shared_access_key_name};SharedAccessKey={parts.shared_access_key}"
    )


class Reader:
    """A synchronous SDK consumer of one partition, running in a thread until ``close``."""

    def __init__(self, client: EventHubConsumerClient, partition_id: str = "0", **kwargs: Any) -> None:
        self._client = client
        self._changed = threading.Condition()
        self.events: list[EventData] = []
        self.errors: list[Exception] = []
        kwargs.setdefault("starting_position", "-1")
        arguments = {
            "on_event_batch": self._on_batch,
            "on_error": self._on_error,
            "partition_id": partition_id,
            "max_wait_time": 0.2,
            **kwargs,
        }
        client._load_balancing_interval = 0.05
        self.context: Any = None
        self._thread = threading.Thread(target=client.receive_batch, kwargs=arguments)
        self._thread.start()

    def _on_batch(self, context: Any, events: Sequence[EventData]) -> None:
        with self._changed:
            self.context = context
            self.events.extend(events)
            self._changed.notify_all()

    def _on_error(self, context: Any, error: Exception) -> None:
        with self._changed:
            self.errors.append(error)
            self._changed.notify_all()

    def wait_events(self, count: int) -> list[EventData]:
        """All events received once there are ``count``; fails on an error or after ``WAIT_S``."""
        with self._changed:
            met = self._changed.wait_for(lambda: len(self.events) >= count or self.errors, WAIT_S)
        assert not self.errors, self.errors
        assert met, f"{len(self.events)} of {count} events after {WAIT_S} s"
        return self.events

    def wait_error(self) -> Exception:
        """The first error that the SDK reports."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.errors, WAIT_S), "no error was reported"
        return self.errors[0]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The SDK's callback does not return meanwhile."""
        with self._changed:
            yield

    def close(self) -> None:
        """Stop the client and its thread."""
        self._client.close()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def read(
    client: EventHubConsumerClient, count: int, partition_id: str = "0", **kwargs: Any
) -> list[EventData]:
    """The first ``count`` events (and what came with them) from one partition."""
    with Reader(client, partition_id, **kwargs) as reader:
        return reader.wait_events(count)


async def read_async(
    client: AsyncConsumerClient, count: int, partition_id: str | None = "0", **kwargs: Any
) -> list[EventData]:
    """As ``read``, with the SDK's asyncio client. partition_id: None reads all partitions."""
    events: list[EventData] = []
    errors: list[Exception] = []
    finished = asyncio.Event()

    async def on_batch(context: Any, batch: list[EventData]) -> None:
        events.extend(batch)
        if len(events) >= count:
            finished.set()

    async def on_error(context: Any, error: Exception) -> None:
        errors.append(error)
        finished.set()

    kwargs.setdefault("starting_position", "-1")
    async with client, asyncio.TaskGroup() as group:
        receiving = group.create_task(
            client.receive_batch(
                on_batch, on_error=on_error, partition_id=partition_id, max_wait_time=0.2, **kwargs
            )
        )
        async with asyncio.timeout(WAIT_S):
            await finished.wait()
        receiving.cancel()
    if errors:
        raise errors[0]
    return events


def bodies(events: Sequence[EventData]) -> list[str]:
    """The bodies as text."""
    return [event.body_as_str() for event in events]


def enqueued_time(event: EventData) -> datetime:
    """When the service accepted a received event (the SDK allows None for events of one's own)."""
    assert event.enqueued_time is not None
    return event.enqueued_time
