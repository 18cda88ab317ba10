"""Which partitions the explorer reads for a page that begins at a time, and what is on it."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from tests.console.explorer_support import StepClock, append, fill, make_hub, places, read_page

from tidegate.broker import Broker, Partition
from tidegate.console.explorer.events import BrokerEvents
from tidegate.console.explorer.values import EventQuery
from tidegate.model.events import EventData
from tidegate.model.position import EventPosition
from tidegate.storage.partition_log import FilePartitionLog
from tidegate.storage.record import BatchHeader, decode_header
from tidegate.storage.segments import segment_reader


@pytest.mark.slow
@pytest.mark.parametrize("is_newest_first", [False, True], ids=["oldest", "newest"])
@pytest.mark.parametrize("seed", range(4))
async def test_pages_from_a_time(
    broker: Broker, events: BrokerEvents, clock: StepClock, seed: int, is_newest_first: bool
) -> None:
    """They are all that came since, each once, whether partitions have much of it or nothing; the last
    one leads no further, and each leads back.
    """
    source = random.Random(seed)
    hub = await make_hub(broker, source.choice((1, 3, 70)))
    expected = await fill(hub, clock, source, 150)
    since = source.choice(expected)
    time = datetime.fromtimestamp(since.enqueued_time_ms / 1000, UTC) - timedelta(
        microseconds=source.choice((0, 400))
    )
    position = EventPosition.from_enqueued_time(time)
    query = EventQuery("hub", None, position, is_newest_first, count=source.choice((7, 50, 333)))
    pages = [await read_page(events, query)]
    while (cursor := pages[-1].older if is_newest_first else pages[-1].newer) is not None:
        pages.append(await read_page(events, query, cursor))
    in_order = list(reversed(pages)) if is_newest_first else pages
    wanted = [place for place in expected if place.enqueued_time_ms >= since.enqueued_time_ms]
    assert [place for page in in_order for place in places(page)] == wanted
    assert all(page.events for page in pages)
    for earlier, later in pairwise(pages):
        back = await read_page(events, query, later.newer if is_newest_first else later.older)
        assert places(back) == places(earlier)


async def test_the_last_page_leads_nowhere(broker: Broker, events: BrokerEvents, clock: StepClock) -> None:
    """Also where it is full, and another partition, which was not read for it, has only newer events."""
    hub = await make_hub(broker, 2)
    await append(hub, 1, *[EventData(b"old")] * 10)
    clock.now += timedelta(milliseconds=10)
    await append(hub, 0, *[EventData(b"new")] * 5)
    pages = [await read_page(events, EventQuery("hub", is_newest_first=True, count=5))]
    for _ in range(2):
        assert pages[-1].older is not None
        pages.append(await read_page(events, EventQuery("hub", count=5), pages[-1].older))
    assert [len(page.events) for page in pages] == [5, 5, 5]
    assert pages[-1].older is None


@pytest.mark.slow
async def test_few_partitions_are_read_for_a_page(
    broker: Broker, events: BrokerEvents, clock: StepClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many partitions a page reads as many as it has events of, where their order can be known without;
    and what a time means is looked up in none that is not read, nor looked for a second time.
    """
    hub = await make_hub(broker, 200)
    begin = clock.now
    for partition in range(200):
        for _ in range(4):
            await append(hub, partition, *[EventData(bytes(600))] * 4)
            clock.now += timedelta(milliseconds=1)
    looks = headers = 0

    def counting(method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            nonlocal looks
            looks += 1
            return method(*arguments, **named)

        return counted

    def decode(data: bytes, offset: int, *, seed: int) -> BatchHeader | None:
        nonlocal headers
        headers += 1
        return decode_header(data, offset, seed=seed)

    monkeypatch.setattr(Partition, "read", counting(Partition.read))
    monkeypatch.setattr(
        FilePartitionLog, "sequence_number_at_time", counting(FilePartitionLog.sequence_number_at_time)
    )
    monkeypatch.setattr(segment_reader, "decode_header", decode)
    late = EventPosition.from_enqueued_time(clock.now - timedelta(milliseconds=20))  # in five partitions
    early = EventPosition.from_enqueued_time(begin + timedelta(milliseconds=2))
    oldest = EventQuery("hub", count=16)
    await read_page(events, oldest)  # it has to find out when each partition begins
    for query in (
        oldest,
        EventQuery("hub", is_newest_first=True, count=16),
        EventQuery("hub", None, early, is_newest_first=True, count=16),
        EventQuery("hub", None, late, count=16),
    ):
        looks = 0
        page = await read_page(events, query)
        cursor = page.older if query.is_newest_first else page.newer
        await read_page(events, query, cursor)
        assert 0 < looks < 40, query
    headers = 0
    page = await read_page(events, EventQuery("hub", "0", early, count=1))
    assert page.events[0].sequence_number == 8
    assert headers == 2, "the second batch lies where the look for its time has ended, and one is behind it"
