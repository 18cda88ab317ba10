"""The explorer, as a browser without scripts sees it, and as Chromium does under live load."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import queue
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from html import unescape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from starlette.requests import Request
from starlette.responses import Response
from tests.console.explorer_support import link_of, rows_of, send_events, words_of
from tests.console.support import PlainBrowser, assert_accessible, watch_drawing

from tidegate.console.explorer import bodies, codec, send_page
from tidegate.console.explorer import page as explorer
from tidegate.console.explorer.bodies import body_bytes
from tidegate.console.explorer.events import BrokerEvents
from tidegate.console.explorer.values import (
    EventDetail,
    EventPage,
    EventPlace,
    ExploredEvent,
    PageEnd,
    Wanted,
)
from tidegate.console.frame import live
from tidegate.console.frame.pages import attachment
from tidegate.console.frame.rendering import fragment
from tidegate.model.events import EventContents, EventData
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService
from tidegate.transport.peers import site_at
from tidegate.transport.sliced_work import SlicedWork
from tidegate.wire.event_codec import decode_event

if TYPE_CHECKING:
    from playwright.sync_api import Page

_KEY = "a-key-of-some-length"
_DEADLINE_S = 60.0


@pytest.fixture
def hub(service: HubService) -> str:
    """A hub of three partitions."""
    return service.create_hub(partition_count=3)


@pytest.mark.slow
def test_pages_of_all_partitions_lead_there_and_back(
    service: HubService, hub: str, plain_browser: PlainBrowser
) -> None:
    """Newest first: older pages follow, and the way back shows what was seen."""
    for number in range(70):
        send_events(service, hub, EventData(b"%d" % number), partition=str(number % 3))
    address = f"/hubs/{hub}/explorer?count=25"
    first = plain_browser.get(address)
    second = plain_browser.get(link_of(first, "next"))
    third = plain_browser.get(link_of(second, "next"))
    seen = rows_of(first) + rows_of(second) + rows_of(third)
    assert seen == [f"{number % 3}/{number // 3}" for number in reversed(range(70))]
    assert 'rel="next"' not in third.text
    assert rows_of(plain_browser.get(link_of(third, "prev"))) == rows_of(second)
    oldest = plain_browser.get(f"{address}&from=oldest")
    assert rows_of(oldest) == list(reversed(seen))[:25]
    assert rows_of(plain_browser.get(link_of(oldest, "next"))) == list(reversed(seen))[25:50]


def test_rows_spell_the_hub_as_its_creator_did(
    service: HubService, hub: str, plain_browser: PlainBrowser
) -> None:
    """Live rows are shared: one user's spelling in an address was in the links of the others."""
    send_events(service, hub, EventData(b"event"))
    page = plain_browser.get(f"/hubs/{hub.swapcase()}/explorer").text
    assert f"/hubs/{hub}/explorer/events/" in page
    assert f"/hubs/{hub.swapcase()}/explorer/events/" not in page


def test_a_first_page_keeps_its_events_for_the_download(
    service: HubService, hub: str, plain_browser: PlainBrowser
) -> None:
    """What has come meanwhile is not in it; lines are those of tidegate receive --nl."""
    send_events(service, hub, EventData(b'{"n": 1}', {"a": 1, "raw": b"\x00", "nan": float("nan")}), key="k")
    send_events(service, hub, EventData(b"\xff\xfe"), partition="1")
    page = plain_browser.get(f"/hubs/{hub}/explorer")
    send_events(service, hub, EventData(b"later"))
    link = re.search(r'href="([^"]+)" download', page.text)
    assert link is not None
    answer = plain_browser.get(unescape(link[1]))
    assert answer.headers["content-disposition"] == f'attachment; filename="{hub}.jsonl"'
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [f"{line['partition']}/{line['sequence_number']}" for line in lines] == rows_of(page)
    assert [(line["body"], line["body_base64"]) for line in lines] == [(None, "//4="), ('{"n": 1}', None)]
    assert lines[1]["properties"] == {"a": 1, "raw": "AA==", "nan": "nan"}
    assert (lines[1]["partition_key"], lines[0]["partition_key"]) == ("k", None)


def test_a_download_says_which_events_cannot_be_decoded() -> None:
    """So that `tidegate import` does not send empty ones in their place."""
    garbled = ExploredEvent(EventPlace(0, 0, 7), 1, None, "It is garbled.")
    assert json.loads(explorer.json_lines([garbled])[0])["decode_error"] == "It is garbled."


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("from=sequence", "which?"),
        ("from=sequence&value=x", "not a sequence number"),
        ("from=offset&value=x", "offset"),
        ("from=offset&value=99&partition=0", "99"),
        ("from=time&value=yesterday", "not a valid time"),
        ("from=nowhere", "nowhere"),
        ("count=0", "1 to 500"),
        ("count=9999999999999", "1 to 500"),
        ("count=0000010000000", "1 to 500"),
        ("property=%3Dx", "no name"),
        ("at=garbled", "Invalid page cursor"),
    ],
)
@pytest.mark.slow
def test_what_cannot_be_meant_is_told_beside_the_form(
    service: HubService, hub: str, plain_browser: PlainBrowser, asked: str, words: str
) -> None:
    """The form keeps what was filled in, and nothing is shown as if it were the answer."""
    send_events(service, hub, EventData(b"event"))
    answer = plain_browser.get(f"/hubs/{hub}/explorer?{asked}")
    assert answer.status in (400, 409)
    assert words in words_of(answer)
    assert rows_of(answer) == []


def test_places_to_begin_with(service: HubService, hub: str, plain_browser: PlainBrowser) -> None:
    """By offset and number from that event on; a time ago is fixed for the pages that follow."""
    send_events(service, hub, *[EventData(b"%d" % number) for number in range(60)])
    for start in ("offset", "sequence"):
        answer = plain_browser.get(f"/hubs/{hub}/explorer?partition=0&from={start}&value=57")
        assert rows_of(answer) == ["0/57", "0/58", "0/59"]
    answer = plain_browser.get(f"/hubs/{hub}/explorer?from=time&value=1h&count=50")
    assert rows_of(answer)[0] == "0/0"
    assert "value=1h" not in link_of(answer, "next")
    assert rows_of(plain_browser.get(link_of(answer, "next"))) == [f"0/{number}" for number in range(50, 60)]
    assert rows_of(plain_browser.get(f"/hubs/{hub}/explorer?from=time&value=2100-01-01")) == []


def test_filters_say_what_was_looked_at(service: HubService, hub: str, plain_browser: PlainBrowser) -> None:
    """And where the events of a key are."""
    send_events(service, hub, *[EventData(b"%d" % number, {"n": number}) for number in range(30)])
    send_events(service, hub, EventData("Käse".encode()), key="k")
    answer = plain_browser.get(f"/hubs/{hub}/explorer?property=n%3D7")
    assert rows_of(answer) == ["0/7"]
    assert "Looked at 31 events: 1 fits." in words_of(answer)
    answer = plain_browser.get(f"/hubs/{hub}/explorer?text={quote('KÄSE')}")
    assert "0 fit" in words_of(answer)  # only a to z are compared in either case
    answer = plain_browser.get(f"/hubs/{hub}/explorer?text={quote('KäSE')}&key=k")
    assert len(rows_of(answer)) == 1
    partition = rows_of(answer)[0].partition("/")[0]
    assert f"go to partition {partition}" in words_of(answer)


@pytest.mark.slow
def test_bodies_of_every_kind_have_their_page(
    service: HubService, hub: str, plain_browser: PlainBrowser
) -> None:
    """JSON as it was sent, text, bytes, compressed and huge ones; markup stays text."""
    huge = b'{"rows": [' + b", ".join(b'"<b>%06d</b>"' % number for number in range(60_000)) + b"]}"
    bodies = {
        b'{"b":1.10,"a":[],"b":2}': '{ "b": 1.10, "a": [], "b": 2 }',
        b"<script>alert(1)</script>": "<script>alert(1)</script>",
        b"\x00\x01\xff": "00000000 00 01 ff |...|",
        b"bell\x07": "bell\u2407",
        b"": "The body is empty.",
        gzip.compress(b'{"packed": true}'): '{ "packed": true }',
        gzip.compress(b"\x00" * 50_000_000): "50,0",
        b"[" * 100_000: "[[[[",
        huge[:1_000_000]: "<b>058000</b>",
    }
    for number, (body, words) in enumerate(bodies.items()):
        send_events(service, hub, EventData(body))
        assert len(rows_of(plain_browser.get(f"/hubs/{hub}/explorer"))) == number + 1
        place = f"/hubs/{hub}/explorer/events/0/{number}"
        answer = plain_browser.get(place)
        assert answer.status == 200
        if words != "50,0":
            assert words in words_of(answer)
        assert "<script>alert" not in answer.text
        for look in ("json", "text", "hex", "nothing"):
            assert plain_browser.get(f"{place}?as={look}&at=99999999").status == 200
        file = plain_browser.get(f"{place}/body")
        assert file.body == body
        assert file.headers["content-type"] == "application/octet-stream"
        assert file.headers["content-disposition"].startswith(f'attachment; filename="{hub}-0-{number}.')
    assert len(plain_browser.get(f"/hubs/{hub}/explorer").body) < 40_000


def test_text_of_events_is_shown_in_its_order(
    service: HubService, hub: str, plain_browser: PlainBrowser
) -> None:
    """Body, properties and keys cannot reorder what a page says."""
    turn = "a\u202eb"
    send_events(service, hub, EventData(turn.encode(), {turn: turn}), key=turn)
    listed = plain_browser.get(f"/hubs/{hub}/explorer")
    one = plain_browser.get(f"/hubs/{hub}/explorer/events/{rows_of(listed)[0]}")
    for answer, times in ((listed, 4), (one, 4)):
        assert (turn in answer.text, answer.text.count("a\\u202eb")) == (False, times)


def test_a_page_shows_part_of_very_many_properties(
    service: HubService, hub: str, plain_browser: PlainBrowser
) -> None:
    """An event may have 100,000: a page of all makes everybody wait for a second."""
    send_events(service, hub, EventData(b"x", {f"n{number}": number for number in range(1_500)}))
    answer = plain_browser.get(f"/hubs/{hub}/explorer/events/0/0")
    assert (">n999<" in answer.text, ">n1000<" in answer.text) == (True, False)
    assert "500 more are not shown." in words_of(answer)


def test_bytes_come_in_parts(service: HubService, hub: str, plain_browser: PlainBrowser) -> None:
    """And lead there and back."""
    send_events(service, hub, EventData(bytes(range(256)) * 100))
    place = f"/hubs/{hub}/explorer/events/0/0?as=hex"
    answer = plain_browser.get(place)
    assert "00001ff0" in answer.text
    assert "00002000" not in answer.text
    following = plain_browser.get(f"{place}&at=8192")
    assert "00002000" in following.text
    assert "at=0#" in following.text
    assert "at=16384#" in following.text
    assert "Next bytes" not in plain_browser.get(f"{place}&at=24576").text


@pytest.mark.parametrize("place", ["0/0", "0/99999999999999999999", "0/x", "9/0", "x/0"])
def test_events_that_are_not_there(hub: str, plain_browser: PlainBrowser, place: str) -> None:
    """Each is a page that says so."""
    assert plain_browser.get(f"/hubs/{hub}/explorer/events/{place}").status == 404
    assert plain_browser.get(f"/hubs/{hub}/explorer/events/{place}/body").status == 404
    assert plain_browser.get("/hubs/none/explorer").status == 404
    assert plain_browser.get("/console/live/hubs/none/explorer").status == 404


@pytest.mark.slow
def test_a_live_page_tells_that_its_hub_is_gone(
    service: HubService, hub: str, plain_browser: PlainBrowser
) -> None:
    """The stream ends with a word, and for good."""

    async def delete(server: TidegateServer) -> None:
        await server.broker.delete_event_hub(hub)

    connection = _ask(plain_browser, f"/console/live/hubs/{hub}/explorer")
    with closing(connection):
        response = connection.getresponse()
        assert response.readline().startswith(b"event: ")
        service.call(delete)
        text = response.read().decode()
    assert "No more come." in text
    assert text.rstrip().endswith("event: end\ndata:")


def test_a_quiet_live_page_is_not_drawn_again(
    service: HubService, hub: str, plain_browser: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what has come costs work: the rows are made when they change, not with every beat."""
    beats: queue.Queue[int] = queue.Queue()
    drawn: list[int] = []
    next_one = live._Stream.next

    async def next_shortly(self: live._Stream, find: Callable[[], Any], pause_s: float) -> str | None:
        if drawn:
            beats.put(len(drawn))
        return await next_one(self, find, 0.01)

    def counted_fragment(request: Request, template: str, **context: Any) -> str:
        if template == "explorer/rows.html":
            drawn.append(len(context["rows"]))
        return fragment(request, template, **context)

    monkeypatch.setattr(live._Stream, "next", next_shortly)
    monkeypatch.setattr("tidegate.console.explorer.page.fragment", counted_fragment)
    with closing(_ask(plain_browser, f"/console/live/hubs/{hub}/explorer")) as connection:
        response = connection.getresponse()
        assert [beats.get(timeout=_DEADLINE_S) for _ in range(5)] == [1] * 5
        send_events(service, hub, EventData(b"news"))
        while b"news" not in response.readline():
            pass
    assert drawn == [0, 1]


@pytest.mark.slow
def test_live_rows_are_drawn_once_and_in_turn(
    service: HubService, hub: str, plain_browser: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the event loop: what live pages draw counts against their share of it, a few rows at a time,
    and all that show the same events share their rows."""
    addresses = [f"/console/live/hubs/{hub}/explorer?count=100&x={number}" for number in range(3)]
    found = watch_drawing(monkeypatch)
    with ExitStack() as stack:
        streams = [
            stack.enter_context(closing(_ask(plain_browser, each))).getresponse() for each in addresses
        ]
        for stream in streams:
            while b"came since" not in (line := stream.readline()):
                assert b"<table" not in line  # on a telephone, a table without rows would be no cards
        found.clear()
        send_events(service, hub, *[EventData(b"%d" % number) for number in range(99)], EventData(b"last"))
        for stream in streams:
            while b"last" not in stream.readline():
                pass
    assert all(is_drawing for _, is_drawing in found), found
    assert [name for name, _ in found].count("explorer/row.html") == 100
    assert [name for name, _ in found].count("explorer/rows.html") >= 3


@pytest.mark.slow
def test_a_live_page_keeps_a_hundred_events(
    service: HubService, hub: str, plain_browser: PlainBrowser
) -> None:
    """Protects memory and the loop: it keeps what it shows, and compares all of it in one step."""
    assert "100 of them are kept" in plain_browser.get(f"/hubs/{hub}/explorer/live?count=500").text
    with closing(_ask(plain_browser, f"/console/live/hubs/{hub}/explorer?count=500")) as asked:
        stream, text = asked.getresponse(), b""
        while b"came since" not in stream.readline():
            pass
        send_events(service, hub, *[EventData(b"%d" % number) for number in range(105)], EventData(b"last"))
        while b"last" not in text:
            text += stream.readline()
    assert b"100 events;" in text


def test_rows_and_bodies_are_drawn_in_slices(
    service: HubService, hub: str, plain_browser: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the event loop: 500 rows take it tens of milliseconds, and so does a large body. Their address
    takes turns."""
    slices: list[tuple[int, object]] = []
    collect = SlicedWork.collect

    async def counted(self: SlicedWork, items: Iterator[Any], *, address: object = None) -> list[Any]:
        found = await collect(self, items, address=address)
        slices.append((len(found), address))
        return found

    send_events(service, hub, *[EventData(b"%d" % number) for number in range(80)])
    monkeypatch.setattr(SlicedWork, "collect", counted)
    assert len(rows_of(plain_browser.get(f"/hubs/{hub}/explorer?count=100"))) == 80
    assert slices == [(80, site_at("127.0.0.1"))]
    send_events(service, hub, EventData(b"<\x01" * 50_000))
    answer = plain_browser.get(f"/hubs/{hub}/explorer/events/0/80")
    assert "&lt;\u2401" * 50_000 in answer.text
    (count, address), *_ = slices[1:]
    assert count > 40
    assert address == site_at("127.0.0.1")


def test_a_long_property_is_cut(service: HubService, hub: str, plain_browser: PlainBrowser) -> None:
    """Protects the event loop: a page is drawn at once, and a list may have six million characters."""
    send_events(service, hub, EventData(b"x", {"long": "p" * 10_001, "fair": "q" * 10_000}))
    text = plain_browser.get(f"/hubs/{hub}/explorer/events/0/0").text
    assert f">{'p' * 10_000}…<" in text
    assert f">{'q' * 10_000}<" in text


def _ask(browser: PlainBrowser, path: str) -> http.client.HTTPConnection:
    """A request whose answer is not waited for."""
    browser.get("/")
    cookies = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    connection = http.client.HTTPConnection(browser.host, browser.port or 80, timeout=30)
    connection.request("GET", path, headers={"Cookie": cookies})
    return connection


def test_a_scan_ends_when_its_browser_leaves(
    service: HubService, hub: str, plain_browser: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for it, so it must not go on looking."""
    pages: queue.Queue[EventPage[Any]] = queue.Queue()
    is_looking, has_left = threading.Event(), threading.Event()
    read = BrokerEvents.read

    def look_slowly(*_: object) -> list[Any]:
        is_looking.set()
        assert has_left.wait(_DEADLINE_S)
        time.sleep(0.05)  # so long the service has to hear of it before it looks on
        return []

    async def recorded(self: BrokerEvents, *given: Any, is_wanted: Wanted) -> EventPage[Any]:
        page = await read(self, *given, is_wanted=is_wanted)
        pages.put(page)
        return page

    for start in range(0, 20_000, 5_000):
        send_events(service, hub, *[EventData(b"%d" % number) for number in range(start, start + 5_000)])
    monkeypatch.setattr("tidegate.console.explorer.events.fitting_events", look_slowly)
    monkeypatch.setattr(BrokerEvents, "read", recorded)
    connection = _ask(plain_browser, f"/hubs/{hub}/explorer?text=nothing")
    assert is_looking.wait(_DEADLINE_S)
    connection.close()
    has_left.set()
    page = pages.get(timeout=_DEADLINE_S)
    assert page.end is PageEnd.UNWANTED
    assert page.looked_at < 20_000


def test_few_pages_are_turned_into_json_at_once(
    service: HubService, hub: str, plain_browser: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may take some hundred MB for a moment, so that many at once could be too much for the machine. Of
    a hub it is one: others find a place."""
    held, counts = 0, list[int]()
    read = BrokerEvents.read

    async def hold(self: BrokerEvents, *given: Any, **named: Any) -> EventPage[Any]:
        nonlocal held
        found = await read(self, *given, **named)
        held += 1
        counts.append(held)
        await asyncio.sleep(0.1)  # others could be read
        return found

    def attach(*given: Any) -> Response:
        nonlocal held
        held -= 1
        return attachment(*given)

    monkeypatch.setattr(BrokerEvents, "read", hold)
    monkeypatch.setattr(explorer, "attachment", attach)
    with ExitStack() as stack:
        asked = [
            stack.enter_context(closing(_ask(plain_browser, f"/hubs/{hub}/explorer/page.jsonl")))
            for _ in range(4)
        ]
        assert [each.getresponse().status for each in asked] == [200] * 4
    assert max(counts) == 1


@pytest.mark.parametrize("address", ["explorer", "explorer/page.jsonl"])
def test_a_page_holds_no_decoded_events(
    service: HubService, hub: str, plain_browser: PlainBrowser, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """Protects the memory: a page's 16 events of 174,059 properties were decoded to 230 MB, and eight pages
    are read at once."""
    decoded: list[weakref.ref[_Contents]] = []
    counts: list[int] = []

    def decode(encoded: Any) -> _Contents:
        found = decode_event(encoded)
        contents = _Contents(found.body, found.properties)
        decoded.append(weakref.ref(contents))
        counts.append(sum(each() is not None for each in decoded))
        return contents

    for _ in range(5):
        send_events(service, hub, EventData(b"x" * 600_000))
    monkeypatch.setattr(codec, "decode_event", decode)
    assert plain_browser.get(f"/hubs/{hub}/{address}").status == 200
    assert counts == [1] * 5


class _Contents(EventContents):
    __slots__ = ("__weakref__",)


@pytest.mark.parametrize("address", ["events/0/0", "send?copy=0.0"], ids=["event", "copy"])
@pytest.mark.slow
def test_few_whole_events_are_held_at_once(
    service: HubService, hub: str, plain_browser: PlainBrowser, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """Protects the memory: an event of a million values takes 100 MB, and 20 that waited took a gigabyte."""
    send_events(service, hub, EventData(b"x"))
    held, counts, lock = [0], list[int](), threading.Lock()
    event = BrokerEvents.event

    async def counted(self: BrokerEvents, *place: Any) -> EventDetail:
        detail = await event(self, *place)
        with lock:
            held[0] += 1
            counts.append(held[0])
        return detail

    def slowly(*given: Any) -> bytes:
        time.sleep(0.2)
        with lock:
            held[0] -= 1
        return body_bytes(*given)

    monkeypatch.setattr(BrokerEvents, "event", counted)
    monkeypatch.setattr(bodies, "body_bytes", slowly)
    monkeypatch.setattr(send_page, "body_bytes", slowly)
    with ExitStack() as stack:
        asked = [
            stack.enter_context(closing(_ask(plain_browser, f"/hubs/{hub}/explorer/{address}")))
            for _ in range(5)
        ]
        assert [each.getresponse().status for each in asked] == [200] * 5
    assert max(counts) <= 2


# --- in a browser --------------------------------------------------------------------------------------


@contextmanager
def _live_load(service: HubService, hub: str) -> Iterator[None]:
    """Somebody publishes all the while, some 200 events a second."""
    ending = threading.Event()

    def work() -> None:
        number = 0
        while not ending.wait(0.05):
            events = [
                EventData(b'{"device": "d%d", "celsius": 21.5}' % (number + index), {"kind": "reading"})
                for index in range(10)
            ]
            send_events(service, hub, *events, key=f"device-{number}")
            number += 10

    thread = threading.Thread(target=work, name="live load")
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


@pytest.mark.programs
def test_an_event_opens_below_its_row(service: HubService, hub: str, console_page: Page) -> None:
    """And closes again; a narrow page shows rows as cards, with the names of the chosen columns."""
    bodies = [json.dumps({"carrier": carrier, "delay": delay}) for carrier, delay in (("LH", 3), ("BA", 20))]
    send_events(service, hub, *(EventData(body.encode()) for body in bodies))
    page = console_page
    page.goto(f"/hubs/{hub}/explorer")
    page.get_by_label("JSON path", exact=True).fill("$.delay > 10")
    page.get_by_text("Columns", exact=True).click()
    for name in ("Key", "Properties", "Size", "Body"):
        page.get_by_label(name, exact=True).uncheck()
    page.get_by_label("JSON paths").fill("$.carrier")
    page.get_by_role("button", name="Show").click()
    page.get_by_text("Looked at 2 events: 1 fits.").wait_for()
    assert page.locator("tbody tr").inner_text().split()[-1] == "BA"
    page.get_by_role("link", name="1", exact=True).click()
    page.locator("tr.opened pre", has_text='"delay": 20').wait_for()
    page.set_viewport_size({"width": 390, "height": 800})
    cell = page.locator("tbody tr td").last
    head = page.locator("tbody tr:first-child td:last-child")
    assert head.evaluate("cell => getComputedStyle(cell, '::before').content") == '"$.carrier"'
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert cell.evaluate("cell => getComputedStyle(cell.closest('tr')).display") == "block"
    assert_accessible(page)
    page.get_by_role("link", name="1", exact=True).click()
    assert page.locator("tr.opened").count() == 0


@pytest.mark.programs
def test_a_walk_under_live_load(service: HubService, hub: str, console_page: Page) -> None:
    """Events come by themselves, are found, opened, and sent again; each page is accessible."""
    page = console_page
    with _live_load(service, hub):
        page.goto(f"/hubs/{hub}/explorer/live?count=25")
        page.get_by_text("events came since you began to look").wait_for()
        first = page.locator("tbody tr").first.inner_text()
        page.wait_for_function("first => document.querySelector('tbody tr').innerText !== first", arg=first)
        assert_accessible(page)
        page.get_by_role("link", name="Stop here").click()
        page.get_by_label("Property").fill("kind=reading")
        page.get_by_role("button", name="Show").click()
        page.get_by_text("Looked at").wait_for()
        assert page.locator("tbody tr").count() == 25
        assert_accessible(page)
        page.get_by_role("link", name="Older").click()
        page.get_by_role("link", name="Newer").wait_for()
        page.locator("tbody th a").first.click()
        page.locator("pre", has_text='"celsius": 21.5').wait_for()
        assert_accessible(page)
        page.get_by_role("link", name="Bytes").click()
        page.locator("pre", has_text="00000000  7b 22").wait_for()
        assert_accessible(page)
        page.get_by_role("link", name="Send a copy").click()
        page.get_by_label("Body").fill('{"by": "hand"}')
        assert_accessible(page)
        page.get_by_role("button", name="Send", exact=True).click()
        page.get_by_text("The event is stored").wait_for()
        page.locator("pre", has_text='"by": "hand"').wait_for()
