"""What the explorer reads, beside the broker itself: no browser, no port."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tracemalloc
from array import array
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from types import FrameType, SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import Markup, escape
from tests.console.explorer_support import StepClock, append, fill, make_hub, places, read_page

from tidegate.amqp.message import Message, encode_message
from tidegate.amqp.types import Array, Described, Symbol
from tidegate.broker import Broker, Partition, RecordBatch
from tidegate.console.explorer import reading, send_page
from tidegate.console.explorer.bodies import Look, body_view
from tidegate.console.explorer.codec import (
    event_detail,
    explored_event,
    system_properties,
    unusual_parts,
)
from tidegate.console.explorer.events import BrokerEvents
from tidegate.console.explorer.page import event_rows, json_lines
from tidegate.console.explorer.reading import Merge, Run, StoredEvent
from tidegate.console.explorer.values import (
    PAGE_BYTES_MAX,
    SCANNED_EVENTS_MAX,
    EventCursor,
    EventFilter,
    EventPlace,
    EventQuery,
    ExploredEvent,
    PageEnd,
    ShownEvent,
    Way,
    property_text,
)
from tidegate.model.errors import (
    InvalidArgumentError,
    NotFoundError,
    PositionOutOfRangeError,
)
from tidegate.model.events import EventContents, EventData
from tidegate.model.position import EventPosition
from tidegate.wire.batch import wrap_event
from tidegate.wire.event_codec import encode_event
from tidegate.wire.names import PARTITION_KEY


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_pages_are_the_whole_log_both_ways(
    broker: Broker, events: BrokerEvents, clock: StepClock, seed: int
) -> None:
    """Each event once, in one order, whatever batches, ties, segments and page sizes there are; each step
    back shows what was seen before.
    """
    source = random.Random(seed)
    hub = await make_hub(broker, source.choice((1, 3, 70)))
    expected = await fill(hub, clock, source, 150)
    for is_newest_first in (False, True):
        query = EventQuery("hub", is_newest_first=is_newest_first, count=source.choice((7, 50, 333)))
        pages = [await read_page(events, query)]
        while (cursor := pages[-1].older if is_newest_first else pages[-1].newer) is not None:
            pages.append(await read_page(events, query, cursor))
        in_order = list(reversed(pages)) if is_newest_first else pages
        assert [place for page in in_order for place in places(page)] == expected
        assert all(len(page.events) == query.count for page in pages[:-1])
        for earlier, later in pairwise(pages):
            back = await read_page(events, query, later.newer if is_newest_first else later.older)
            assert places(back) == places(earlier)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
async def test_one_partition_and_every_position(
    broker: Broker, events: BrokerEvents, clock: StepClock, seed: int
) -> None:
    """A place to begin with leaves out what is before it, in one partition and in all."""
    source = random.Random(seed)
    hub = await make_hub(broker, 3)
    expected = await fill(hub, clock, source, 60)
    place = source.choice(expected)
    number, partition_id = place.sequence_number, str(place.partition_index)
    for position in (
        EventPosition.from_sequence_number(number),
        EventPosition.from_offset(str(number), is_inclusive=True),
    ):
        own = [
            p for p in expected if p.partition_index == place.partition_index and p.sequence_number >= number
        ]
        page = await read_page(events, EventQuery("hub", partition_id, position, count=500))
        assert places(page) == own[:500]
        page = await read_page(events, EventQuery("hub", None, position, count=500))
        assert places(page) == [p for p in expected if p.sequence_number >= number][:500]
    time = datetime.fromtimestamp(place.enqueued_time_ms / 1000, UTC)
    page = await read_page(events, EventQuery("hub", None, EventPosition.from_enqueued_time(time), count=500))
    assert places(page) == [p for p in expected if p.enqueued_time_ms >= place.enqueued_time_ms][:500]
    beyond = EventPosition.from_sequence_number(10**6)
    with pytest.raises(PositionOutOfRangeError):
        await read_page(events, EventQuery("hub", partition_id, beyond))
    assert (await read_page(events, EventQuery("hub", None, beyond))).events == ()


class _GappedPartition:
    """A partition as ``Run`` knows one, whose numbers have holes, as a repair leaves them."""

    partition_id = "0"

    def __init__(self, batches: list[RecordBatch]) -> None:
        self.batches = batches
        self.reads = 0

    async def read(self, start: int, *, bytes_max: int) -> list[RecordBatch]:
        self.reads += 1
        found: list[RecordBatch] = []
        for batch in self.batches:
            if batch.until_sequence_number > start and sum(len(one.payload) for one in found) < bytes_max:
                found.append(batch)
        return found


@pytest.mark.slow
@settings(derandomize=True)
@given(
    st.lists(st.tuples(st.sampled_from((0, 0, 3, 10**6)), st.integers(1, 40), st.sampled_from((1, 90)))),
    st.sampled_from(Way),
    st.sampled_from((1, 100, 5000)),
    st.integers(0, 50),
)
def test_gaps_in_the_numbers_are_passed_over(
    shapes: list[tuple[int, int, int]], way: Way, bytes_max: int, cut: int
) -> None:
    """Either way, whatever a read takes at once, each event once; a wide gap costs some reads only."""
    batches, number = [], 0
    for gap, count, size in shapes:
        number += gap
        batches.append(RecordBatch(number, 0, array("I", [size] * count), memoryview(bytes(size * count))))
        number += count
    numbers = [n for batch in batches for n in range(batch.base_sequence_number, batch.until_sequence_number)]
    start, until = cut, max(cut, number - cut)
    partition = _GappedPartition(batches)
    run = Run(cast(Partition, partition), way, start, until)
    found: list[int] = []

    async def take_all() -> None:
        while (event := await run.pop(bytes_max)) is not None:
            found.append(event.place.sequence_number)

    asyncio.run(take_all())
    expected = [n for n in numbers if start <= n < until]
    assert found == (expected if way is Way.NEWER else expected[::-1])
    assert partition.reads <= 2 * len(expected) + 400 * (1 + sum(gap > 3 for gap, _, _ in shapes))


class _Lengths(array):  # type: ignore[type-arg]  # not generic at run time
    """Those of a batch, which nobody goes through one by one."""

    def __iter__(self) -> NoReturn:
        raise AssertionError("all lengths were looked at")


@pytest.mark.parametrize("way", Way)
async def test_an_event_of_a_large_batch_is_found_without_the_others(way: Way) -> None:
    """Anybody may send a batch of 170,000 events: a list of where they end took 10 ms of each page's turn."""
    source = random.Random(1)
    lengths = _Lengths("I", [source.randint(1, 9) for _ in range(100)])
    payload = source.randbytes(sum(lengths[:]))
    batch = RecordBatch(7, 0, lengths, memoryview(payload))
    partition = cast(Partition, _GappedPartition([batch]))
    for start, until in ((0, 200), (7, 8), (20, 60), (100, 107)):
        found = []
        run = Run(partition, way, start, until)
        while (event := await run.pop(10**6)) is not None:
            index = event.place.sequence_number - 7
            assert event.section == payload[sum(lengths[:index]) : sum(lengths[: index + 1])]
            found.append(event.place.sequence_number)
        expected = list(range(max(start, 7), min(until, 107)))
        assert found == (expected if way is Way.NEWER else expected[::-1])


async def test_reads_of_the_log_end_with_their_turn(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long each takes: sixteen large batches in one turn held everybody up for half a second."""
    hub, now = await make_hub(broker, 8), (0.0011 * turn for turn in range(1000))
    for index in range(8):
        await append(hub, index, EventData(b"x"))
    monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=lambda: next(now)))
    merge, taken = Merge(Way.NEWER), []
    for partition in hub.partitions:
        merge.add_range(partition, 0, 1)
    merge.start()
    assert not await merge.settle()
    assert await merge.take(100, 10**6) == []
    while merge.has_more:
        some = await merge.take(100, 10**6)
        assert len(some) <= 2
        taken += some
    assert len(taken) == 8


@pytest.mark.slow
async def test_what_retention_takes_away_is_passed_over(
    broker: Broker, events: BrokerEvents, clock: StepClock
) -> None:
    """A cursor into events that are gone leads to the first that are held, and back to nothing."""
    hub = await make_hub(broker, 2)
    expected = await fill(hub, clock, random.Random(5), 120)
    first = await read_page(events, EventQuery("hub", count=10))
    for partition in hub.partitions:
        assert await partition.apply_retention(before_ms=0, bytes_max=20_000)
    held = [
        p for p in expected if p.sequence_number >= hub.partitions[p.partition_index].begin_sequence_number
    ]
    assert held[0] > expected[20]
    assert places(await read_page(events, EventQuery("hub", count=500), first.newer)) == held[:500]
    for _ in range(2):  # what the second one knows of the first
        assert places(await read_page(events, EventQuery("hub", count=500))) == held[:500]
    back = await read_page(events, EventQuery("hub"), EventCursor(Way.OLDER, expected[15]))
    assert (back.events, back.older, back.end) == ((), None, PageEnd.END)
    with pytest.raises(NotFoundError, match="it holds"):
        await events.event("hub", str(expected[0].partition_index), expected[0].sequence_number)


@pytest.mark.slow
async def test_filters_and_their_bound(broker: Broker, events: BrokerEvents) -> None:
    """A scan ends at its bound, says what it looked at, goes on where it ended, and ends with its reader."""
    hub = await make_hub(broker, 1)
    total = SCANNED_EVENTS_MAX + 5_000
    for start in range(0, total, 1000):
        await append(hub, 0, *[EventData(b"%d" % number) for number in range(start, start + 1000)])
    rare = EventFilter(body_text=str(total - 1))
    page = await read_page(events, EventQuery("hub", filter=rare))
    assert (page.events, page.looked_at, page.end) == ((), SCANNED_EVENTS_MAX, PageEnd.SCANNED)
    page = await read_page(events, EventQuery("hub", filter=rare), page.newer)
    assert [event.sequence_number for event in page.events] == [total - 1]
    assert (page.looked_at, page.end, page.newer) == (5_000, PageEnd.END, None)
    asked = 0

    async def gone() -> bool:
        nonlocal asked
        asked += 1
        return asked < 3

    page = await events.read(EventQuery("hub", filter=rare), None, list, is_wanted=gone)
    assert page.end is PageEnd.UNWANTED
    assert page.looked_at < 5_000


async def test_what_fits(broker: Broker, events: BrokerEvents) -> None:
    """Key, property by name or with its value as it is shown, and body text in either case."""
    hub = await make_hub(broker, 1)
    await append(hub, 0, EventData(b'{"City": "Kiel"}', {"n": 7, "on": True, "raw": b"\x01"}), key="a")
    await append(hub, 0, EventData(b"\xff\xfe", {"n": "8", "none": None}), key="b")
    for wanted, numbers in (
        (EventFilter(), [0, 1]),
        (EventFilter(partition_key="a"), [0]),
        (EventFilter(partition_key="A"), []),
        (EventFilter(property_name="n"), [0, 1]),
        (EventFilter(property_name="n", property_value="7"), [0]),
        (EventFilter(property_name="on", property_value="true"), [0]),
        (EventFilter(property_name="raw", property_value="01"), [0]),
        (EventFilter(property_name="none", property_value="null"), [1]),
        (EventFilter(body_text='"city": "kiel"'), [0]),
        (EventFilter(partition_key="b", body_text="kiel"), []),
    ):
        page = await read_page(events, EventQuery("hub", filter=wanted))
        assert [event.sequence_number for event in page.events] == numbers, wanted


@pytest.mark.slow
async def test_large_events_make_short_pages(broker: Broker, events: BrokerEvents) -> None:
    """A page has so many bytes and no more, and the next goes on behind it; a list shows a cut body."""
    hub = await make_hub(broker, 1)
    for number in range(40):
        await append(hub, 0, EventData(b"%04d" % number + b"x" * 1_000_000))
    for is_newest_first in (False, True):
        query, seen, cursor, pages = EventQuery("hub", is_newest_first=is_newest_first), 0, None, 0
        while pages == 0 or cursor is not None:
            page = await read_page(events, query, cursor)
            assert sum(event.size_bytes for event in page.events) < 18_000_000
            assert all(len(row["body"]) < 300 for row in event_rows(page.events))
            seen, cursor, pages = (
                seen + len(page.events),
                page.older if is_newest_first else page.newer,
                pages + 1,
            )
        assert seen == 40
        assert pages > 2


async def test_looking_takes_nobodys_place(broker: Broker, events: BrokerEvents) -> None:
    """Five readers are there, and looking counts neither as a sixth nor as delivered."""
    hub = await make_hub(broker, 1)
    await append(hub, 0, EventData(b"seen"))
    partition = hub.partitions[0]
    for number in range(5):
        partition.open_receiver("$Default", name=str(number), owner_level=None, on_stolen=lambda error: None)
    assert len((await read_page(events, EventQuery("hub"))).events) == 1
    assert (await events.event("hub", "0", 0)).event.contents == EventContents(b"seen")
    assert len(partition.receivers()) == 5
    assert partition.delivered == (0, 0)


async def test_a_tail_shows_what_comes(broker: Broker, events: BrokerEvents) -> None:
    """Newest first, from now on, those that fit; a flood is counted and its end shown; the hub's end told."""
    hub = await make_hub(broker, 2)
    await append(hub, 0, EventData(b"before"))
    tail = events.tail(EventQuery("hub", filter=EventFilter(body_text="a"), count=3), list)
    await tail.refresh()
    assert tail.shown == []
    await append(hub, 1, EventData(b"a1"), EventData(b"b"), EventData(b"a2"))
    await tail.refresh()
    assert [event.contents.body for event in tail.shown if event.contents] == [b"a2", b"a1"]
    assert (tail.seen, tail.skipped) == (3, 0)
    for _ in range(12):
        await append(hub, 0, *[EventData(b"a%d" % number) for number in range(1000)])
    await tail.refresh()
    assert [event.sequence_number for event in tail.shown] == [12_000, 11_999, 11_998]
    assert (tail.seen, tail.skipped) == (12_003, 7_000)
    await broker.delete_event_hub("hub")
    with pytest.raises(NotFoundError):
        await tail.refresh()


async def test_a_tail_shows_added_partitions(broker: Broker, events: BrokerEvents) -> None:
    """All of their events: they came after the tail began."""
    hub = await make_hub(broker, 1)
    tail = events.tail(EventQuery("hub", count=3), list)
    await broker.update_event_hub("hub", partition_count=3)
    await append(hub, 2, EventData(b"a"))
    await tail.refresh()
    assert [(event.partition_id, event.sequence_number) for event in tail.shown] == [("2", 0)]


async def test_tails_of_the_same_events_read_them_once(broker: Broker, events: BrokerEvents) -> None:
    """Protects the service from many live pages: each event is decoded and shown once for all of them; each
    page has the events, and counts, from its own beginning."""
    hub = await make_hub(broker, 2)
    shown: list[int] = []

    def show(found: Sequence[ExploredEvent]) -> list[int]:
        shown.extend(event.sequence_number for event in found)
        return [event.sequence_number for event in found]

    query = EventQuery("hub", count=3)
    tails = [events.tail(query, show) for _ in range(5)]
    await append(hub, 0, EventData(b"a"), EventData(b"b"))
    late = events.tail(query, show)
    await append(hub, 0, EventData(b"c"))
    await asyncio.gather(*(tail.refresh() for tail in (late, *tails)))
    assert shown == [0, 1, 2]
    assert [(tail.seen, tail.shown) for tail in tails] == [(3, [2, 1, 0])] * 5
    assert (late.seen, late.skipped, late.shown) == (1, 0, [2])
    other = events.tail(EventQuery("hub", filter=EventFilter(body_text="d"), count=3), show)
    await append(hub, 1, EventData(b"d"))
    await other.refresh()
    await late.refresh()
    assert shown == [0, 1, 2, 0, 0]
    assert other.shown == [0]
    assert late.shown == [0, 2]


async def test_few_live_pages_read_at_once(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects memory: 64 pages with filters of their own held a batch of each partition at once, 0.9 GB of
    events of 0.9 MB in 16 partitions. One hub has half of the places at most."""
    monkeypatch.setattr("tidegate.console.explorer.events._READERS_MAX", 4)
    events, hub = BrokerEvents(broker), await make_hub(broker, 1)
    reading = most = 0
    fitting = BrokerEvents._fitting

    async def slow(self: BrokerEvents, *found: Any) -> list[ShownEvent[ExploredEvent]]:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        for _ in range(20):
            await asyncio.sleep(0)
        reading -= 1
        return await fitting(self, *found)

    monkeypatch.setattr(BrokerEvents, "_fitting", slow)
    tails = [events.tail(EventQuery("hub", count=count), list) for count in range(1, 7)]
    await append(hub, 0, EventData(b"a"))
    await asyncio.gather(*(tail.refresh() for tail in tails))
    assert [len(tail.shown) for tail in tails] == [1] * 6
    assert most == 2


async def test_a_page_that_ends_takes_no_events_from_others(
    broker: Broker, events: BrokerEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it was reading, those that share its tail show."""
    hub = await make_hub(broker, 1)
    query = EventQuery("hub", count=3)
    leaving, staying = events.tail(query, list), events.tail(query, list)
    await append(hub, 0, EventData(b"a"), EventData(b"b"))
    fitting = leaving._source._fitting

    async def leave(*_: object) -> list[ShownEvent[ExploredEvent]]:
        raise asyncio.CancelledError

    monkeypatch.setattr(leaving._source, "_fitting", leave)
    with pytest.raises(asyncio.CancelledError):
        await leaving.refresh()
    monkeypatch.setattr(leaving._source, "_fitting", fitting)
    await staying.refresh()
    assert (staying.seen, staying.skipped) == (2, 0)
    assert [event.sequence_number for event in staying.shown] == [1, 0]


async def test_a_tail_keeps_no_bodies(broker: Broker, events: BrokerEvents) -> None:
    """Sixty-four pages may be open, and each would hold 16 MB."""
    hub = await make_hub(broker, 1)
    tail = events.tail(EventQuery("hub", count=500), event_rows)
    annotations = encode_message(Message(message_annotations={PARTITION_KEY: "k" * 100_000}))
    sections = wrap_event(annotations + encode_event(EventData(b"x" * 100_000, {"p": "y" * 100_000})))
    await hub.partitions[0].append(sections, array("I", [len(sections)]))
    await tail.refresh()
    (row,) = tail.shown
    assert (row["sequence_number"], row["size_bytes"]) == (0, len(sections))
    assert sum(len(str(value)) for value in row.values()) < 1_000


@pytest.mark.slow
async def test_a_tail_of_large_events_is_short(broker: Broker, events: BrokerEvents) -> None:
    """Two hundred megabytes for each who looks would be too much: the newest stay, within a page's bytes."""
    hub = await make_hub(broker, 1)
    tail = events.tail(EventQuery("hub", count=500), list)
    for start in (0, 20):
        for number in range(start, start + 20):
            await append(hub, 0, EventData(b"%04d" % number + b"x" * 1_000_000))
        await tail.refresh()
        kept = [event.sequence_number for event in tail.shown]
        assert kept == list(range(start + 19, start + 3, -1))
        assert sum(event.size_bytes for event in tail.shown) <= PAGE_BYTES_MAX
        assert tail.skipped == 0
    await append(hub, 0, *[EventData(b"small") for _ in range(600)])
    await tail.refresh()
    assert len(tail.shown) == 500
    await append(hub, 0, *[EventData(b"x" * 1_000_000)])
    await tail.refresh()
    assert len(tail.shown) == 500  # what went no longer counts


@settings(max_examples=300, derandomize=True)
@given(
    st.one_of(
        st.binary(max_size=200),
        # What begins like a message, or is one that was cut or altered.
        st.tuples(
            st.sampled_from(
                (b"\x00\x53\x72\xc1", b"\x00\x53\x74\xd1\x00\x00", b"\x00\x53\x77\xa1", b"\x00\x53\x73\xc0")
            ),
            st.binary(max_size=60),
        ).map(b"".join),
        st.builds(
            lambda body, at, byte: body[:at] + bytes((byte,)) + body[at + 1 :],
            st.just(encode_event(EventData(b"\x1f\x8b" + b"body", {"n": 1, "t": "x"}, "text/plain"), "key")),
            st.integers(0, 80),
            st.integers(0, 255),
        ),
    )
)
@pytest.mark.slow
def test_no_stored_bytes_break_a_page(encoded: bytes) -> None:
    """Whatever a producer put into a batch has its line, its page and its line of JSON."""
    stored = StoredEvent(EventPlace(1_795_000_000_000, 3, 7), memoryview(wrap_event(encoded)))
    event = explored_event(stored)
    assert (event.contents is None) == bool(event.problem)
    assert event_rows([event])[0]["sequence_number"] == 7
    assert json_lines([event])[0].count(b"\n") == 1
    message = event_detail(stored, is_first=True, is_last=True).message
    if message is not None:
        system_properties(message)
        list(unusual_parts(message))
    if event.contents is not None:
        for look in (None, *Look):
            body_view(event.contents, look, 0)


def _as_page(contents: EventContents) -> None:
    assert body_view(contents, None, 0).look is Look.JSON


def _as_line(contents: EventContents) -> None:
    event = ExploredEvent(EventPlace(0, 0, 0), 1, contents)
    assert len(json.loads(json_lines([event])[0])["properties"]) == 5_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("look", "contents"),
    [
        (_as_page, EventContents(b"[%b[]]" % (b"[]," * 5_000))),
        (_as_page, EventContents(b"", body_value=[True, False] * 2_500)),
        (_as_line, EventContents(b"", {f"p{number}": True for number in range(5_000)})),
    ],
    ids=["bytes", "value", "line"],
)
def test_other_threads_run_while_json_is_read_and_written(
    look: Callable[[EventContents], object], contents: EventContents
) -> None:
    """Protects the event loop, which waits while C code has the interpreter: an event of a megabyte of lists
    held it up for a second. Python code can be interrupted at each of its calls."""
    calls = 0

    def count(frame: FrameType, *_: object) -> None:
        nonlocal calls
        calls += "/json/" in frame.f_code.co_filename

    sys.setprofile(count)
    try:
        look(contents)
    finally:
        sys.setprofile(None)
    assert calls > 5_000


def test_other_threads_run_while_a_property_is_written() -> None:
    """Protects the event loop, as above: a list of a million took 50 ms for each look at it. It is written as
    Python writes it."""
    small = [True, {"a": (1,), "b": ()}, {}, [], Array((1, "x"), int), Described(Symbol("d"), [b"\x00", 1.5])]
    assert property_text(small) == str(small)
    steps = 0

    def count(frame: FrameType, *_: object) -> None:
        nonlocal steps
        steps += "values.py" in frame.f_code.co_filename

    sys.setprofile(count)
    try:
        property_text([True] * 5_000)
    finally:
        sys.setprofile(None)
    assert steps > 5_000


def test_only_what_is_shown_of_a_property_is_written() -> None:
    """Protects the two threads that pages share: a row shows forty characters of a list of millions."""
    values = (
        ["ab", {"c": ()}] * 9,
        Described(Symbol("d"), [1]),
        b"\x00\xff" * 9,
        "text",
        17,
        None,
        True,
        1.5,
    )
    for value in values:
        whole = property_text(value)
        assert all(property_text(value, most) == whole[:most] for most in range(len(whole) + 2))
    many: Any = [True] * 100_000
    contents = EventContents(b"", properties={"many": many})
    event = ExploredEvent(EventPlace(0, 0, 7), 100_000, contents)
    steps = 0

    def count(frame: FrameType, *_: object) -> None:
        nonlocal steps
        steps += "values.py" in frame.f_code.co_filename

    sys.setprofile(count)
    try:
        assert event_rows([event])[0]["properties"] == ["many=[True, True, True, True, True, True, Tru"[:40]]
    finally:
        sys.setprofile(None)
    assert steps < 1_000


def test_a_copy_is_escaped_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the event loop, which waits while C code has the interpreter: a megabyte took it 15 ms."""
    sizes: list[int] = []

    def counted(text: str) -> Markup:
        sizes.append(len(text))
        return escape(text)

    monkeypatch.setattr(send_page, "escape", counted)
    body = '<"é&' * 50_000
    section = memoryview(wrap_event(encode_event(EventData(body))))
    detail = event_detail(StoredEvent(EventPlace(0, 3, 7), section), is_first=True, is_last=True)
    fields, _ = send_page._copy_of(detail)
    assert fields["body"] == escape(body)
    assert max(sizes) <= 65_536


@pytest.mark.parametrize("text", [b"a" * 500_000, rb"\n" * 250_000], ids=["plain", "escapes"])
def test_a_long_string_takes_little_memory(text: bytes) -> None:
    """A string of four megabytes, compressed into four kilobytes, took half a gigabyte."""
    tracemalloc.start()
    try:
        assert body_view(EventContents(b'"%b"' % text), None, 0).look is Look.JSON
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


@given(st.integers(0, 10**14 - 1), st.integers(0, 9999), st.integers(0, 10**18 - 1), st.sampled_from(Way))
def test_cursors_round_trip(time_ms: int, partition: int, number: int, way: Way) -> None:
    """A cursor in an address means the same place."""
    cursor = EventCursor(way, EventPlace(time_ms, partition, number))
    assert EventCursor.parse(cursor.format()) == cursor


@pytest.mark.parametrize(
    "text", ["", "n", "n.1.2", "x.1.2.3", "n.1.2.3.4", "n.-1.2.3", "n.١.2.3", "n.1.2.3\n"]
)
def test_garbled_cursors_are_refused(text: str) -> None:
    """Addresses are anybody's to write."""
    with pytest.raises(InvalidArgumentError):
        EventCursor.parse(text)
