"""The overview: what it shows, live, of a service under load."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.console.processing_support import append
from tests.console.support import PlainBrowser, assert_accessible, console_service

from tidegate.client import EventHubProducer
from tidegate.console.frame.live import STREAMS_MAX
from tidegate.console.hubs.sampler import Disk, Rates
from tidegate.console.overview.page import list_notices
from tidegate.gateway.http.app import HttpGateway
from tidegate.model.events import EventData
from tidegate.processor import ProcessorCheckpoint
from tidegate.sql import ConsumerKey, Database, DeadLetters, NewDeadLetter, move_checkpoint
from tidegate.testing.hub import HubService

if TYPE_CHECKING:
    from playwright.sync_api import Page


@contextmanager
def load(service: HubService, hub: str) -> Iterator[None]:
    """Events come into the hub all the while."""
    is_over = threading.Event()

    async def produce() -> None:
        async with EventHubProducer.from_connection_string(service.connection_string, hub) as producer:
            while not is_over.is_set():
                await producer.send([EventData(b"x" * 100) for _ in range(20)])
                await asyncio.sleep(0.02)

    thread = threading.Thread(target=lambda: asyncio.run(produce()), name="load")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(30)
        assert not thread.is_alive()


def test_without_scripts_everything_is_there(service: HubService, plain_browser: PlainBrowser) -> None:
    """The figures, the hubs by name, and words for what the charts show; nothing is asked of a database."""
    hub = service.create_hub("plain-hub")
    deadline = time.monotonic() + 60
    while (
        "no database was given" not in (page := plain_browser.get("/")).text
    ):  # it waits only briefly for it
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert page.status == 200
    for words in ("Events in", "Open dead letters", f'href="/hubs/{hub}"'):
        assert words in page.text


@pytest.mark.programs
def test_figures_follow_the_load(service: HubService, console_page: Page) -> None:
    """Rates rise while events come in and fall afterwards, without a reload; it is accessible meanwhile."""
    hub = service.create_hub("busy-hub")
    console_page.goto("/")
    assert console_page.get_by_role("heading", level=1).inner_text() == "Overview"
    with load(service, hub):
        rising = "() => parseFloat(document.getElementById('events-in').textContent) > 0"
        console_page.wait_for_function(rising)
        row = console_page.get_by_role("row", name=hub)
        row.get_by_text(re.compile(r"^[1-9][\d,]* /s")).first.wait_for()
        console_page.locator("#events-chart canvas").wait_for()
        assert_accessible(console_page)
    console_page.wait_for_function("() => parseFloat(document.getElementById('events-in').textContent) === 0")


@pytest.mark.programs
def test_the_last_day_in_the_chosen_zone_and_theme(console_page: Page) -> None:
    """Charts of 24 hours have the newest values in their legends; what is chosen under Display stays."""
    values = [None] * 1_000 + [1_234.5] * 440
    series = [{"label": "in", "values": values}, {"label": "out", "values": [None] * 1_440}]
    chart = {"start": 1_795_000_020, "step": 60, "series": series, "unit": "events/s"}
    charts = {"events": chart, "bytes": chart}
    console_page.route("**/console/charts", lambda route: route.fulfill(json=charts))
    session = console_page.context.new_cdp_session(console_page)
    session.send("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Kolkata"})
    console_page.goto("/?range=day")
    legend = console_page.locator("#day-events .u-legend")
    legend.get_by_text("1,234.5 events/s").wait_for()
    assert "11:06" in legend.inner_text()
    console_page.get_by_text("Display", exact=True).click()
    console_page.get_by_label("Theme").select_option("dark")
    console_page.get_by_label("Times").select_option("local")
    legend.get_by_text("16:36").wait_for()
    console_page.goto("/console/about")
    assert console_page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 24, 30)"
    assert "+05:30" in console_page.locator("main time").first.inner_text()
    console_page.keyboard.press("g")
    console_page.keyboard.press("h")
    console_page.wait_for_url("**/hubs")
    console_page.keyboard.press("/")
    console_page.keyboard.type("none of that name")
    console_page.keyboard.press("Enter")
    console_page.get_by_text("Nothing that you may see").wait_for()


@pytest.mark.programs
def test_live_figures_can_be_held_still(service: HubService, console_page: Page) -> None:
    """Whoever reads may stop the clock: nothing changes until it goes on."""
    hub = service.create_hub()
    console_page.goto("/")
    console_page.get_by_role("button", name="Pause").click()
    console_page.evaluate("document.getElementById('events-in').textContent = 'held'")
    with load(service, hub):
        # Another page's figures show that time goes on meanwhile.
        other = console_page.context.new_page()
        other.goto("/")
        other.wait_for_function("() => parseFloat(document.getElementById('events-in').textContent) > 0")
        assert console_page.locator("#events-in").inner_text() == "held"
        console_page.get_by_role("button", name="Go on").click()
        console_page.wait_for_function("() => document.getElementById('events-in').textContent !== 'held'")


def test_figures_that_stand_still_do_not_look_live(service: HubService, console_page: Page) -> None:
    """While the service is away the page says so; when it is back, it goes on by itself."""
    console_page.goto("/")
    console_page.locator("#events-chart canvas").wait_for()
    # Counts have whole steps, and a value without neighbours is seen as a point.
    assert console_page.evaluate("[stepOf(1, 'events'), stepOf(9, 'events'), stepOf(1, '')]") == [1, 5, 0.25]
    assert console_page.evaluate("alone({ data: [[], [1, null, 2, 3, null, 0]] }, 1)") == [0, 5]
    lost = console_page.get_by_text("Live figures are not updated.")
    assert not lost.is_visible()
    service.stop()
    lost.wait_for()
    service.start()
    lost.wait_for(state="hidden")


@pytest.mark.slow
def test_streams_end_when_the_service_stops_and_when_there_are_too_many(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A live page does not hold the service up, and no number of them can."""
    with console_service(tmp_path_factory.mktemp("streams")) as service:
        assert service.ready.console is not None
        browser = PlainBrowser(service.ready.console)
        browser.get("/")
        streams = [browser.open("/console/live/overview") for _ in range(STREAMS_MAX)]
        for stream in streams:
            assert stream.readline().startswith(b"event: ")
        assert browser.get("/console/live/overview").status == 503
        service.stop()
        for stream in streams:
            stream.read()
            stream.close()


def test_lag_and_dead_letters_come_from_the_database(tmp_path: Path) -> None:
    """The oldest lag with whose it is, also of a partition never read; open dead letters by their number."""
    url = f"sqlite:///{tmp_path / 'processing.db'}"
    with console_service(tmp_path, database=url) as service, Database.open(url) as database:
        hub = service.create_hub("readings", partition_count=2)
        for partition_id in ("0", "1"):
            append(service, hub, [b"x"] * 5, partition_id=partition_id)
        for group, last in (("all-read", 4), ("reports", 1)):
            move_checkpoint(database, ConsumerKey(hub, group), ProcessorCheckpoint("0", last, str(last)))
        move_checkpoint(database, ConsumerKey(hub, "all-read"), ProcessorCheckpoint("1", 4, "4"))
        letters = [NewDeadLetter(number, str(number), 0, "KeyError", "no id") for number in (0, 1)]
        DeadLetters(database).add(ConsumerKey(hub, "reports"), "0", letters)
        assert service.ready.console is not None
        browser = PlainBrowser(service.ready.console)
        browser.get("/")
        stream = browser.open("/console/live/overview")
        found = _lines_until(stream, "redrive or discard them")
        assert re.search(r"Open dead letters.*?<dd>2 ", found, re.DOTALL)
        assert re.search(
            r"Oldest lag</a></dt><dd>\d+ (ms|s) <span class=.detail.>reports of readings, 8 ", found
        )
        stream.close()


def test_a_database_that_is_away_holds_nothing_up(tmp_path: Path) -> None:
    """The page comes with all else, and says so; nothing of the address is told."""
    with console_service(tmp_path, database="sqlite:////secret-place/processing.db") as service:
        assert service.ready.console is not None
        browser = PlainBrowser(service.ready.console)
        assert browser.get("/").status == 200
        stream = browser.open("/console/live/overview")
        assert "secret-place" not in _lines_until(stream, "the database does not answer")
        stream.close()


def _lines_until(stream: HTTPResponse, words: str) -> str:
    """What a stream has said up to these words; the connection has a deadline of its own."""
    said = ""
    for _ in range(5_000):
        said += stream.readline().decode()
        if words in said:
            return said
    raise AssertionError(said[-2000:])


def test_notices_tell_what_somebody_should_look_at() -> None:
    """A full disk, a capture that fails, stalled partitions, throttling: the worst first; else nothing."""
    rates, captures = Rates(throttled_requests=1.0), ["a", "b", "c", "d"]
    notices = list_notices(Disk(1, 4, 100), rates, captures, 2, is_congested=False, failed=["half"])
    assert [notice.title for notice in notices] == [
        "Partitions have failed.",
        "The disk is nearly full.",
        "Capture is failing.",
        "Partitions are stalled.",
        "Requests are throttled.",
    ]
    assert notices[0].place == "/hubs/half"
    assert notices[2].text == "a, b, c and 1 more."
    assert list_notices(Disk(1, 50, 100), Rates(), [], 0, is_congested=False) == []


def test_a_page_is_served_until_the_http_face_closes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that comes while the service stops, and asks the database first of all, is answered."""
    answers: list[int] = []
    close = HttpGateway.close

    async def ask_and_close(gateway: HttpGateway) -> None:
        assert service.ready.console is not None
        browser = PlainBrowser(service.ready.console)
        answers.append((await asyncio.to_thread(browser.get, "/")).status)
        await close(gateway)

    monkeypatch.setattr(HttpGateway, "close", ask_and_close)
    with console_service(tmp_path / "console", database=f"sqlite:///{tmp_path}/none.db") as service:
        pass
    assert answers == [200]
