"""The explorer and sending, as a browser without scripts sees them, and as Chromium does under live load."""

from __future__ import annotations

import re
from html import unescape

import pytest
from tests.console.support import Answer, PlainBrowser

from tidegate.client import EventHubProducer, run_blocking
from tidegate.model.events import EventData
from tidegate.testing.hub import HubService


def _send(
    service: HubService, hub: str, *events: EventData, partition: str = "0", key: str | None = None
) -> None:
    async def send() -> None:
        async with EventHubProducer.from_connection_string(service.connection_string, hub) as producer:
            await producer.send(events, partition_id=None if key else partition, partition_key=key)

    run_blocking(send())


def _rows(answer: Answer) -> list[str]:
    """Partition and sequence number of each event of a page, in its order."""
    return re.findall(r'explorer/events/(\d+/\d+)"', answer.text)


def _link(answer: Answer, rel: str) -> str:
    found = re.search(rf'href="([^"]+)" rel="{rel}"', answer.text)
    assert found is not None, answer.text
    return unescape(found[1])


def _main(answer: Answer) -> str:
    text = answer.text
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text[text.index("<main") :])))


@pytest.fixture
def hub(service: HubService) -> str:
    """A hub of three partitions."""
    return service.create_hub(partition_count=3)


def test_pages_of_all_partitions_lead_there_and_back(
    service: HubService, hub: str, plain_browser: PlainBrowser
) -> None:
    """Newest first: older pages follow, and the way back shows what was seen."""
    for number in range(70):
        _send(service, hub, EventData(b"%d" % number), partition=str(number % 3))
    address = f"/hubs/{hub}/explorer?count=25"
    first = plain_browser.get(address)
    second = plain_browser.get(_link(first, "next"))
    third = plain_browser.get(_link(second, "next"))
    seen = _rows(first) + _rows(second) + _rows(third)
    assert seen == [f"{number % 3}/{number // 3}" for number in reversed(range(70))]
    assert 'rel="next"' not in third.text
    assert _rows(plain_browser.get(_link(third, "prev"))) == _rows(second)
    oldest = plain_browser.get(f"{address}&from=oldest")
    assert _rows(oldest) == list(reversed(seen))[:25]
    assert _rows(plain_browser.get(_link(oldest, "next"))) == list(reversed(seen))[25:50]
