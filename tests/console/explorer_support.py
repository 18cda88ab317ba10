"""What the tests of the explorer share."""

from __future__ import annotations

import re
from html import unescape

from tests.console.support import Answer

from tidegate.client import EventHubProducer, run_blocking
from tidegate.model.events import EventData
from tidegate.testing.hub import HubService


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
