"""Publishes the flights with Tidegate's producer, continuing after an interrupted run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from examples.flights.data import FlightEvent
from examples.flights.scoring import EVENT_HUB
from tidegate import AlreadyExistsError, EventData, NotFoundError, partition_for_key
from tidegate.client import EventHubAdministrator, EventHubConsumer, EventHubProducer

PARTITION_COUNT = 4
_EVENTS_PER_STEP = 4_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Publication:
    """The contents of the hub after publishing."""

    events_by_partition: Mapping[str, int]
    """Partition id → its number of events, as the service reports it."""
    flights_expected: int
    """How many events there should be."""
    event_hub_created_at_ms: int
    """When the hub was created, in milliseconds since 1970-01-01 UTC: identifies it among hubs of this
    name."""
    published_now: int
    """Events that this run sent; the others are from an earlier run."""
    elapsed_s: float
    """From the first event sent to the last one acknowledged, in seconds."""


def expected_events_by_partition(flights: Sequence[FlightEvent]) -> dict[str, int]:
    """How many of the flights belong to each partition, by the hash of their keys."""
    counts = Counter(str(partition_for_key(flight.key, PARTITION_COUNT)) for flight in flights)
    return {str(index): counts[str(index)] for index in range(PARTITION_COUNT)}


async def publish(
    connection_string: str, flights: Sequence[FlightEvent], on_progress: Callable[[int, int], None]
) -> Publication:
    """Create the hub if needed, and send those of ``flights`` that it lacks.

    on_progress: called with the number of events sent or in the hub, and the total. Each partition's events
    are always the same in the same order, so an interrupted run leaves a prefix per partition, and this run
    sends the rest. Raises AlreadyExistsError for a hub with other contents. Cancellation: acknowledged events
    stay, and the next run continues after them.
    """
    created_at = await _ensure_hub(connection_string)
    async with EventHubProducer.from_connection_string(connection_string, EVENT_HUB) as producer:
        before = await _events_by_partition(connection_string)
        _check_prefix(before, expected_events_by_partition(flights))
        already = sum(before.values())
        started = time.monotonic()
        done = already
        for events, keys in _missing(flights, before):
            await producer.enqueue_many(events, partition_keys=keys)
            done += len(events)
            on_progress(done, len(flights))
        await producer.flush()
        elapsed_s = time.monotonic() - started
    after = await _events_by_partition(connection_string)
    created_at_ms = round((created_at - _EPOCH).total_seconds() * 1000)
    return Publication(after, len(flights), created_at_ms, done - already, elapsed_s)


async def _ensure_hub(connection_string: str) -> datetime:
    async with EventHubAdministrator.from_connection_string(connection_string) as administrator:
        try:
            hub = await administrator.get_event_hub(EVENT_HUB)
        except NotFoundError:
            hub = await administrator.create_event_hub(EVENT_HUB, partition_count=PARTITION_COUNT)
    if len(hub.partition_ids) != PARTITION_COUNT:
        raise _not_ours(f"it has {len(hub.partition_ids)} partitions instead of {PARTITION_COUNT}")
    return hub.created_at


async def _events_by_partition(connection_string: str) -> dict[str, int]:
    async with EventHubConsumer.from_connection_string(connection_string, EVENT_HUB) as consumer:
        counts: dict[str, int] = {}
        for index in range(PARTITION_COUNT):
            partition = await consumer.get_partition_properties(str(index))
            if not partition.is_empty and partition.begin_sequence_number > 0:
                raise _not_ours(f"retention has deleted the first events of partition {index}")
            counts[str(index)] = partition.next_sequence_number
    return counts


def _check_prefix(before: Mapping[str, int], expected: Mapping[str, int]) -> None:
    for partition_id, count in before.items():
        if count > expected[partition_id]:
            raise _not_ours(
                f"partition {partition_id} holds {count:,} events instead of {expected[partition_id]:,}"
            )


def _not_ours(what: str) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"The data directory has an event hub {EVENT_HUB!r} that this demo did not fill: {what}.",
        next_step="Use another --data-dir, or none for a new one.",
    )


def _missing(
    flights: Sequence[FlightEvent], before: Mapping[str, int]
) -> Iterator[tuple[list[EventData], list[str | None]]]:
    """The events that the hub lacks, with their keys, some thousands at a time."""
    skipped = dict(before)
    events: list[EventData] = []
    keys: list[str | None] = []
    for flight in flights:
        partition_id = str(partition_for_key(flight.key, PARTITION_COUNT))
        if skipped[partition_id] > 0:
            skipped[partition_id] -= 1
            continue
        events.append(EventData(flight.body))
        keys.append(flight.key)
        if len(events) >= _EVENTS_PER_STEP:
            yield events, keys
            events, keys = [], []
    if events:
        yield events, keys
