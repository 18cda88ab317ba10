"""The producer for programs without asyncio: an ``EventHubProducer`` on the loop of ``background``."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar, Unpack

from tidegate.client.batching import EventDataBatch
from tidegate.client.blocking.background import run_blocking
from tidegate.client.closing import Closing
from tidegate.client.entities import FailedEvents
from tidegate.client.namespace import ConnectionOptions
from tidegate.client.producer import EventHubProducer
from tidegate.model.connection_string import ConnectionString
from tidegate.model.events import EventData
from tidegate.model.hub_properties import EventHubProperties

T = TypeVar("T")

_EVENTS_PER_CALL: Final = 512
"""Events of ``enqueue_many`` that are handed to the loop together (our choice)."""


class BlockingProducer(Closing):
    """Sends events to one event hub. ``with`` or ``close`` it: closing flushes.

    For programs without asyncio. Its methods do, and raise, what those of ``EventHubProducer`` do.
    Thread-safe. A forked child has a connection and a buffer of its own. Ctrl-C interrupts a call.
    """

    def __init__(
        self,
        connection_string: str | ConnectionString,
        event_hub: str | None = None,
        *,
        publisher: str | None = None,
        on_error: Callable[[FailedEvents], None] | None = None,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        """Connects when first used. The arguments are those of ``EventHubProducer.from_connection_string``.

        on_error: called in another thread; it must not call this producer.
        """
        self._make = partial(
            EventHubProducer.from_connection_string,
            connection_string,
            event_hub,
            publisher=publisher,
            on_error=on_error,
            **options,
        )
        self._producer, self._process_id = self._make(), os.getpid()

    def send(
        self,
        events: EventData | Iterable[EventData],
        *,
        partition_key: str | None = None,
        partition_id: str | None = None,
    ) -> None:
        """Send events as one batch, all or none, and return once the service has stored them."""
        events = [events] if isinstance(events, EventData) else [*events]
        self._run(lambda it: it.send(events, partition_key=partition_key, partition_id=partition_id))

    def create_batch(
        self,
        *,
        partition_key: str | None = None,
        partition_id: str | None = None,
        bytes_max: int | None = None,
    ) -> EventDataBatch:
        """An empty batch to fill with ``try_add`` and send with ``send_batch``."""
        return self._run(
            lambda it: it.create_batch(
                partition_key=partition_key, partition_id=partition_id, bytes_max=bytes_max
            )
        )

    def send_batch(self, batch: EventDataBatch) -> None:
        """Send a batch, and return once the service has stored it."""
        self._run(lambda it: it.send_batch(batch))

    def enqueue(
        self, event: EventData, *, partition_key: str | None = None, partition_id: str | None = None
    ) -> None:
        """Put an event into the buffer once it has room; it is sent in the background."""
        self._run(lambda it: it.enqueue(event, partition_key=partition_key, partition_id=partition_id))

    def enqueue_many(
        self,
        events: Iterable[EventData],
        *,
        partition_key: str | None = None,
        partition_id: str | None = None,
    ) -> int:
        """Put many events into the buffer and return their number; faster than ``enqueue`` for each.

        events: read in this thread, some hundreds before they are buffered; for a slow source use
        ``enqueue``.
        """
        count, source = 0, iter(events)
        while piece := [*islice(source, _EVENTS_PER_CALL)]:
            count += self._run(
                partial(
                    EventHubProducer.enqueue_many,
                    events=piece,
                    partition_key=partition_key,
                    partition_id=partition_id,
                )
            )
        return count

    def flush(self) -> None:
        """Send the buffered events and return once all are acknowledged or have failed."""
        self._run(lambda it: it.flush())

    def get_event_hub_properties(self) -> EventHubProperties:
        """The hub's name, age and partitions."""
        return self._run(lambda it: it.get_event_hub_properties())

    def close(self) -> None:
        """Flush and close. Idempotent. Raises as ``flush``, after closing."""
        self._run(lambda it: it.close())

    def _run(self, call: Callable[[EventHubProducer], Coroutine[Any, Any, T]]) -> T:
        async def run() -> T:  # the producer is replaced on the loop's thread alone
            if self._process_id != os.getpid():
                self._producer, self._process_id = self._make(), os.getpid()
            return await call(self._producer)

        return run_blocking(run)
