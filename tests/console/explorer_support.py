"""What the tests of the explorer share."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from html import unescape

from tests.console.support import Answer

from tidegate.broker import Broker, EventHub
from tidegate.client import EventHubProducer, run_blocking
from tidegate.model.events import EventData
from tidegate.testing.hub import HubService


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


def make_hub(broker: Broker, partition_count: int) -> EventHub:
    """The one event hub of the broker."""
    broker.create_event_hub("hub", partition_count=partition_count, retention_hours=1)
    return broker.event_hub("hub")


def send_events(
    service: HubService, hub: str, *events: EventData, partition: str = "0", key: str | None = None
) -> None:
    """Publish a batch past the console."""

    async def send() -> None:
        async with EventHubProducer.from_connection_string(service.connection_string, hub) as producer:
            await producer.send(events, partition_id=None if key else partition, partition_key=key)

    run_blocking(send())


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
