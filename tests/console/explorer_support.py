"""What the tests of the explorer share."""

from __future__ import annotations

import asyncio
import random
import re
from array import array
from datetime import UTC, datetime, timedelta
from html import unescape

from tests.console.support import Answer

from tidegate.broker import Broker, EventHub
from tidegate.client import EventHubProducer, run_blocking
from tidegate.console.explorer.events import BrokerEvents
from tidegate.console.explorer.values import (
    EventCursor,
    EventPage,
    EventPlace,
    EventQuery,
    ExploredEvent,
)
from tidegate.model.events import EventData
from tidegate.testing.hub import HubService
from tidegate.wire.batch import wrap_event
from tidegate.wire.event_codec import encode_event


class StepClock:
    """The system's for durations; the wall clock stands where it was put, so that times tie."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)

    def now_utc(self) -> datetime:
        """Where it was put."""
        return self.now

    def monotonic(self) -> float:
        """The event loop's."""
        return asyncio.get_running_loop().time()


async def make_hub(broker: Broker, partition_count: int) -> EventHub:
    """The one event hub of the broker."""
    await broker.create_event_hub("hub", partition_count=partition_count, retention_hours=1)
    return broker.event_hub("hub")


def send_events(
    service: HubService, hub: str, *events: EventData, partition: str = "0", key: str | None = None
) -> None:
    """Publish a batch past the console."""

    async def send() -> None:
        async with EventHubProducer.from_connection_string(service.connection_string, hub) as producer:
            await producer.send(events, partition_id=None if key else partition, partition_key=key)

    run_blocking(send)


def rows_of(answer: Answer) -> list[str]:
    """Partition and sequence number of each event of a page, in its order."""
    return re.findall(r'explorer/events/(\d+/\d+)"', answer.text)


def link_of(answer: Answer, rel: str) -> str:
    """The address that a page's link leads to."""
    found = re.search(rf'href="([^"]+)" rel="{rel}"', answer.text)
    assert found is not None, answer.text
    return unescape(found[1])


def words_of(answer: Answer) -> str:
    """What is to be read on a page, without its frame."""
    text = answer.text
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text[text.index("<main") :])))


async def append(hub: EventHub, partition: int, *events: EventData, key: str | None = None) -> None:
    """Store a batch."""
    sections = [wrap_event(encode_event(event, key)) for event in events]
    await hub.partitions[partition].append(b"".join(sections), array("I", map(len, sections)))


async def _somebody_waits() -> bool:
    return True


async def read_page(
    events: BrokerEvents, query: EventQuery, cursor: EventCursor | None = None
) -> EventPage[ExploredEvent]:
    """A page of whole events."""
    return await events.read(query, cursor, list, is_wanted=_somebody_waits)


def places(page: EventPage[ExploredEvent]) -> list[EventPlace]:
    """Where its events are."""
    return [event.place for event in page.events]


async def fill(hub: EventHub, clock: StepClock, source: random.Random, batches: int) -> list[EventPlace]:
    """Batches of all sizes at times that often tie; returns where each event must be."""
    found: list[EventPlace] = []
    for _ in range(batches):
        partition = source.randrange(len(hub.partitions))
        count, size = source.choice(((1, 10), (1, 9000), (5, 100), (40, 30), (3, 4000)))
        first = hub.partitions[partition].next_sequence_number
        await append(hub, partition, *[EventData(source.randbytes(size)) for _ in range(count)])
        time_ms = int(clock.now.timestamp() * 1000)
        found += [EventPlace(time_ms, partition, first + number) for number in range(count)]
        clock.now += timedelta(milliseconds=source.choice((0, 0, 1, 50)))
    return sorted(found)
