"""The homes' pages: a list of many, a home as its summary says, and clear words where there is none."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.console.support import PlainBrowser, assert_accessible, console_service

from tidegate.broker import Claim
from tidegate.model.home_summary import HomeSummary, summary_path
from tidegate.server.app import TidegateServer
from tidegate.server.console import homes as reading
from tidegate.testing.hub import HubService
from tidegate.testing.proxy import CuttingProxy
from tidegate.transport.clock import SystemClock

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tidegate.testing.azurite import AzuriteServer

HOMES = 120


def summary(home: str, **changes: object) -> dict[str, Any]:
    """What the pipeline writes for a home on which a day has passed."""
    return {
        "home": home,
        "day": "2026-03-02",
        "rooms": {"living-room": {"hours_with_motion": [6, 7, 8, 17]}, "hall": {"hours_with_motion": []}},
        "doors": {
            "door-front": {"is_open": True, "since": "2026-03-02T06:15:09.250Z"},
            "window-kitchen": {"is_open": False, "since": "2026-03-01T22:00:00.000Z"},
        },
        "alarms": [
            {"at": "2026-03-02T05:00:00.000Z", "kind": "glass_break", "sensor": "glass-living-room"},
            {"at": "2026-03-02T07:30:00.000Z", "kind": "carbon_monoxide", "sensor": "co-kitchen"},
        ],
        "activity": [0] * 6 + [1, 2, 3] + [0] * 15,
        **changes,
    }


def write(root: Path, home: str, text: str) -> None:
    """Replace a summary, as the pipeline does: in one step."""
    path = root / summary_path(home)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.1")
    temporary.write_text(text)
    temporary.replace(path)


@pytest.fixture(scope="module")
def summaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the summaries."""
    root = tmp_path_factory.mktemp("summaries")
    for index in range(HOMES):
        home = f"h{index:06}"
        write(root, home, json.dumps(summary(home)))
    return root


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, summaries: Path) -> Iterator[HubService]:
    """A running service that shows ``summaries``; names are read again at each question."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "LIST_EVERY_S", 0.0)
        directory = tmp_path_factory.mktemp("console")
        with console_service(directory, home_summaries=str(summaries)) as started:
            yield started


def wait_for(browser: PlainBrowser, path: str, words: str) -> str:
    """Ask for a page until it says something."""
    deadline = SystemClock().monotonic() + 20
    while True:
        text = browser.get(path).text
        if words in text:
            return text
        assert SystemClock().monotonic() < deadline, text


def test_many_homes_are_listed_in_pages(plain_browser: PlainBrowser) -> None:
    """Pages of 50 in both directions, with a search and without; a home opens by its whole name."""
    first = wait_for(plain_browser, "/homes", "120 homes")
    assert 'href="/homes/h000049"' in first
    assert 'href="/homes/h000050"' not in first
    second = plain_browser.get("/homes?after=h000049").text
    assert 'href="/homes/h000050"' in second
    assert "Previous page" in second
    last = plain_browser.get("/homes?after=h000099").text
    assert 'href="/homes/h000119"' in last
    assert "Next page" not in last
    assert "after=h000049" in last
    found = plain_browser.get("/homes?search=H00011").text
    assert "10 of 120 homes" in found
    assert 'href="/homes/h000119"' in found
    assert "None of 120 homes with “&lt;i&gt;” in its name" in plain_browser.get("/homes?search=%3Ci%3E").text
    opened = plain_browser.get("/homes?home=h000042")
    assert (opened.status, opened.headers["location"]) == (303, "/homes/h000042")


def test_a_home_is_told_in_words(plain_browser: PlainBrowser) -> None:
    """All that the summary has is there without scripts, and the charts have their words."""
    text = plain_browser.get("/homes/h000042").text
    for words in (
        "Front door",
        "Kitchen window",
        "1 open",
        "Glass broke",
        "Carbon monoxide",
        "Kitchen carbon monoxide detector",
        "2026-03-01 22:00",
        "Motion from 6 to 9 and from 17 to 18",
        "No motion yet",
        "Activity by hour: a lot at 8; some at 7; a little at 6; else none.",
    ):
        assert words in text, words
    assert text.index("Carbon monoxide") < text.index("Glass broke")  # the newest first


@pytest.mark.parametrize(
    "name", ["h999999", "..", "%2e%2e%2fh000042", "nobody%00", "%3Cscript%3E", "x" * 5000], ids=range(6)
)
def test_a_home_that_is_not_there(plain_browser: PlainBrowser, name: str) -> None:
    """404 in words, and no other file than a summary is read."""
    answer = plain_browser.get(f"/homes/{name}")
    assert answer.status == 404
    assert "<script>" not in answer.text


def test_names_that_share_a_file_are_not_mixed_up(summaries: Path, plain_browser: PlainBrowser) -> None:
    """The home ``a.b`` lies in the file of ``a_b``; one is not shown as the other."""
    write(summaries, "a.b", json.dumps(summary("a.b")))
    assert plain_browser.get("/homes/a.b").status == 200
    assert plain_browser.get("/homes/a-b").status == 404
    assert plain_browser.get("/homes/a:b").status == 404


def test_a_malformed_summary_is_said_to_be_one(summaries: Path, plain_browser: PlainBrowser) -> None:
    """Half of one, another program's file, one that is far too large; nothing of it becomes markup."""
    whole = json.dumps(summary("h777777"))
    for text in ("", whole[:40], "[]", '{"home": "h777777"}', whole + " " * 300_000, "\ud800".join("[]")):
        path = summaries / summary_path("h777777")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8", errors="surrogatepass"))
        answer = plain_browser.get("/homes/h777777")
        assert answer.status == 503, text
        assert "cannot be read: it is being replaced" in answer.text
    hostile = summary("h777777", rooms={"<img src=x>": {"hours_with_motion": [1]}})
    write(summaries, "h777777", json.dumps(hostile))
    answer = plain_browser.get("/homes/h777777")
    assert answer.status == 200
    assert "<img src=x>" not in answer.text
    os.unlink(summaries / summary_path("h777777"))


def test_a_half_summary_is_waited_for(summaries: Path, plain_browser: PlainBrowser) -> None:
    """Where a file system shows a file before it is whole, nobody sees a half: it is read again."""
    path = summaries / summary_path("h777778")
    whole = json.dumps(summary("h777778"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(whole[:40])
    reads: list[bytes] = []
    parse = HomeSummary.from_json

    def parse_and_complete(content: bytes) -> object:
        reads.append(content)
        path.write_text(whole)
        return parse(content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HomeSummary, "from_json", parse_and_complete)
        assert plain_browser.get("/homes/h777778").status == 200
    assert len(reads) == 2


def test_whoever_may_not_listen_sees_no_home(service: HubService, plain_browser: PlainBrowser) -> None:
    """Summaries are made from the events of one hub; its policy sees them, another hub's does not."""

    async def add(server: TidegateServer) -> dict[str, str]:
        broker = server.broker
        return {
            hub: broker.create_policy(hub, "viewer", [Claim.LISTEN]).key for hub in ("home-security", "b")
        }

    for hub in ("home-security", "b"):
        service.create_hub(hub)
    for hub, key in service.call(add).items():
        plain_browser.get("/console/sign-in")
        fields = {"policy": "viewer", "key": key, "hub": hub, "next": "/"}
        assert plain_browser.post("/console/sign-in", fields).status == 303
        expected = 200 if hub == "home-security" else 403
        for path in ("/homes", "/homes/h000042"):
            assert plain_browser.get(path).status == expected, (hub, path)
    assert plain_browser.get("/console/live/homes/h000042").status == 403


def test_without_summaries_the_page_says_how(tmp_path: Path) -> None:
    """A service that was given no place of summaries."""
    with console_service(tmp_path) as service:
        assert service.ready.console is not None
        browser = PlainBrowser(service.ready.console)
        for path in ("/homes", "/homes/h000042"):
            assert "--home-summaries" in browser.get(path).text


@pytest.mark.slow
def test_a_resident_sees_it_change(summaries: Path, console_page: Page) -> None:
    """A door that closes shows without a reload; so do trouble and its end. All of it is accessible."""
    console_page.goto("/homes")
    console_page.get_by_text("homes, read").wait_for()
    assert_accessible(console_page)
    console_page.get_by_label("A home's whole name").fill("h000007")
    console_page.get_by_role("button", name="Open").click()
    console_page.get_by_text("1 open").wait_for()
    assert_accessible(console_page)
    closed = summary("h000007", alarms=[])
    closed["doors"]["door-front"]["is_open"] = False
    write(summaries, "h000007", json.dumps(closed))
    console_page.get_by_text("all closed").wait_for()
    write(summaries, "h000007", "{")
    console_page.get_by_text("Not up to date.").wait_for()
    assert console_page.get_by_text("all closed").is_visible()
    assert_accessible(console_page)
    write(summaries, "h000007", json.dumps(summary("h000007")))
    console_page.get_by_text("1 open").wait_for()
    assert console_page.get_by_text("Not up to date.").count() == 0


@contextmanager
def proxied(port: int) -> Iterator[tuple[CuttingProxy, asyncio.AbstractEventLoop]]:
    """A proxy to a port of this machine, in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="proxy")
    thread.start()
    proxy = CuttingProxy("127.0.0.1", port)
    try:
        asyncio.run_coroutine_threadsafe(proxy.start(), loop).result(10)
        yield proxy, loop
        asyncio.run_coroutine_threadsafe(proxy.close(), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@pytest.mark.slow
def test_storage_that_is_down_is_told_and_comes_back(
    tmp_path: Path, azurite: AzuriteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azure's answers are waited for as long as a page may take; then words, never the account's key."""
    from azure.storage.blob import ContainerClient

    container = azurite.create_container()
    with ContainerClient.from_connection_string(azurite.connection_string(), container) as client:
        for home in ("h000001", "h000002"):
            client.upload_blob(f"pages/{summary_path(home)}", json.dumps(summary(home)))
    monkeypatch.setattr(reading, "LIST_EVERY_S", 0.0)
    monkeypatch.setattr(reading, "READ_TIMEOUT_S", 1.0)
    monkeypatch.setattr(reading, "LIST_TIMEOUT_S", 1.0)
    with proxied(azurite.port) as (proxy, loop):
        connection_string = azurite.connection_string(port=proxy.port)
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection_string)
        with console_service(tmp_path, home_summaries=f"az://{container}/pages") as service:
            assert service.ready.console is not None
            browser = PlainBrowser(service.ready.console)
            wait_for(browser, "/homes", "2 homes")
            assert "Front door" in browser.get("/homes/h000001").text
            assert browser.get("/homes/h000003").status == 404
            loop.call_soon_threadsafe(proxy.refuse)
            loop.call_soon_threadsafe(proxy.cut_now)
            answer = browser.get("/homes/h000001")
            assert answer.status == 503
            assert f"az://{container}/pages, does not serve them" in answer.text
            assert azurite.account_key not in answer.text
            assert "h000002" in wait_for(browser, "/homes", "The list is not up to date")
            loop.call_soon_threadsafe(proxy.refuse, False)
            wait_for(browser, "/homes/h000001", "Front door")
