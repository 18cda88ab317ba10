"""The homes' pages: a list of many, a home as its summary says, and clear words where there is none."""

from __future__ import annotations

import asyncio
import html
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from fsspec.spec import AbstractFileSystem
from markupsafe import escape
from tests.console.support import PlainBrowser, assert_accessible, console_service

from tidegate.broker import Claim
from tidegate.model.errors import NotFoundError, StoreUnavailableError
from tidegate.model.home_pages import file_name, merge_pages, page_of
from tidegate.server.app import TidegateServer
from tidegate.server.console import home_files
from tidegate.server.console import homes as reading
from tidegate.server.console.home_files import Index, PagesFile, PagesFiles
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


def page_text(home: str, **changes: object) -> bytes:
    """``summary`` as the pipeline writes it."""
    return json.dumps(summary(home, **changes), sort_keys=True, separators=(",", ":")).encode()


def path_of(root: Path, home: str) -> Path:
    """The file of a home's block, of which there are four."""
    return root / file_name(f"{len(home) % 2}-{sum(map(ord, home)) % 2}")


def replace_file(path: Path, content: bytes) -> None:
    """As the pipeline does: in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.1")
    temporary.write_bytes(content)
    temporary.replace(path)


def write(root: Path, home: str, page: bytes) -> None:
    """Replace a home's summary in the file of its block."""
    path = path_of(root, home)
    replace_file(path, merge_pages(path.read_bytes() if path.exists() else None, {home: page}))


@pytest.fixture(scope="module")
def summaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the summaries."""
    root = tmp_path_factory.mktemp("summaries")
    for index in range(HOMES):
        home = f"h{index:06}"
        write(root, home, page_text(home))
    return root


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, summaries: Path) -> Iterator[HubService]:
    """A running service that shows ``summaries``; everything is looked at again at each question."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("LIST_EVERY_S", "UNKNOWN_EVERY_S", "FILE_AGE_S"):
            patch.setattr(reading, name, 0.0)
        directory = tmp_path_factory.mktemp("console")
        with console_service(directory, home_summaries=str(summaries)) as started:
            yield started


def wait_for(browser: PlainBrowser, path: str, words: str) -> str:
    """Ask for a page until it says something."""
    deadline = SystemClock().monotonic() + 60
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


@pytest.mark.parametrize(
    "name", ["a.b", "a/b", "../h000042", "A.B", 'x":{"activity":', "\u2028 é", "%2e"], ids=range(7)
)
def test_any_name_is_a_homes(summaries: Path, plain_browser: PlainBrowser, name: str) -> None:
    """It is found at once, by its whole name alone, and in the list, whose link leads to it."""
    write(summaries, name, page_text(name, day="1999-12-31"))
    address = f"/homes/{quote(name, safe='')}"
    found = plain_browser.get(address)
    assert (found.status, "1999-12-31" in found.text) == (200, True)
    listed = wait_for(plain_browser, f"/homes?search={quote(name, safe='')}", f">{escape(name)}<")
    assert address in [html.unescape(link) for link in re.findall(r' href="(/homes/[^"]*)"', listed)]
    assert plain_browser.get(f"{address}x").status == 404


def test_a_malformed_file_is_said_to_be_one(summaries: Path, plain_browser: PlainBrowser) -> None:
    """Half of one, or another program's; homes of other blocks are shown as before."""
    path = summaries / file_name("9-9")
    whole = merge_pages(None, {"h777777": page_text("h777777")})
    replace_file(path, whole)
    assert plain_browser.get("/homes/h777777").status == 200
    try:
        for content in (b"", whole[:40], b"[]", b"{\n}", whole[2:], b"\xed\xa0\x80"):
            path.write_bytes(content)
            answer = plain_browser.get("/homes/h777777")
            assert answer.status == 503, content
            assert "9-9.json cannot be read: the file is being replaced" in answer.text
            assert plain_browser.get("/homes/h000042").status == 200
            assert plain_browser.get("/homes/h999999").status == 503  # it may be in there
        assert "h777777" in wait_for(plain_browser, "/homes?search=h7777", "9-9.json cannot be read")
    finally:
        path.unlink()
    assert plain_browser.get("/homes/h777777").status == 404
    assert "cannot be read" not in plain_browser.get("/homes").text


def test_a_file_that_is_too_large_is_not_read(
    summaries: Path, plain_browser: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for its names nor for a page: somebody else's could be of any size."""
    path = summaries / file_name("9-9")
    replace_file(path, merge_pages(None, {"h777777": page_text("h777777")}))
    assert plain_browser.get("/homes/h777777").status == 200

    def refuse(self: AbstractFileSystem, read: str, *_: object) -> bytes:
        raise AssertionError(read)

    monkeypatch.setattr(AbstractFileSystem, "cat_file", refuse)
    monkeypatch.setattr(home_files, "FILE_BYTES_MAX", path.stat().st_size - 1)
    path.touch()
    for home in ("h777777", "h777779"):
        answer = plain_browser.get(f"/homes/{home}")
        assert answer.status == 503
        assert "9-9.json cannot be read" in answer.text
    path.unlink()


async def test_storage_that_hangs_takes_a_few_threads_and_no_page_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages of 30 blocks at once: each says so after its time, and is there again when the storage is."""
    homes = [f"h{index}" for index in range(30)]
    for home in homes:
        replace_file(tmp_path / file_name(f"{home}-0"), merge_pages(None, {home: page_text(home)}))
    read, goes_on, calls = PagesFiles.read, threading.Event(), list[str]()

    def hang(self: PagesFiles, path: str, before: PagesFile | None) -> PagesFile | None:
        calls.append(path)
        assert goes_on.wait(60)
        return read(self, path, before)

    async with reading.HomeSummaries(str(tmp_path), SystemClock()) as view:
        await view.homes(search="", after="", size=10)
        monkeypatch.setattr(PagesFiles, "read", hang)
        monkeypatch.setattr(reading, "READ_TIMEOUT_S", 0.2)
        try:
            found = await asyncio.gather(*(view.home(home) for home in homes), return_exceptions=True)
            assert {type(one) for one in found} == {StoreUnavailableError}
            assert "no answer within 0.2 s" in str(found[0])
            assert len(calls) == reading.CALLS_MAX
        finally:
            goes_on.set()
        monkeypatch.setattr(reading, "READ_TIMEOUT_S", 20.0)
        shown = await asyncio.gather(*(view.home(home) for home in homes))
        assert [one.summary.home for one in shown] == homes


@pytest.mark.parametrize(
    "page",
    [
        b'{"activity":[]}',
        page_text("h777776"),
        page_text("h777777")[:-1] + b" " * 300_000 + b"}",
    ],
    ids=["other", "another home's", "too large"],
)
def test_a_malformed_page_is_said_to_be_one(
    summaries: Path, plain_browser: PlainBrowser, page: bytes
) -> None:
    """In a file that is one; its other homes are shown."""
    path = summaries / file_name("9-9")
    replace_file(path, merge_pages(None, {"h777777": page, "h777775": page_text("h777775")}))
    answer = plain_browser.get("/homes/h777777")
    assert answer.status == 503
    assert "9-9.json cannot be read" in answer.text
    assert plain_browser.get("/homes/h777775").status == 200
    path.unlink()


def test_nothing_of_a_page_becomes_markup(summaries: Path, plain_browser: PlainBrowser) -> None:
    """Rooms and homes have the names that events gave them."""
    name = "<img src=x>"
    write(summaries, name, page_text(name, rooms={"<img src=x>": {"hours_with_motion": [1]}}))
    answer = plain_browser.get(f"/homes/{quote(name)}")
    assert answer.status == 200
    assert "&lt;img src=x&gt;" in answer.text
    assert "<img src=x>" not in answer.text


def test_a_half_file_is_waited_for(
    summaries: Path, plain_browser: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a file system shows a file before it is whole, nobody sees a half: it is read again."""
    path = summaries / file_name("8-8")
    whole = merge_pages(None, {"h777778": page_text("h777778")})
    replace_file(path, whole)
    assert plain_browser.get("/homes/h777778").status == 200
    path.write_bytes(whole[:40])
    contents: list[bytes] = []
    find = page_of

    def find_and_complete(content: bytes, home: str) -> bytes | None:
        contents.append(content)
        path.write_bytes(whole)
        return find(content, home)

    monkeypatch.setattr(reading, "page_of", find_and_complete)
    assert plain_browser.get("/homes/h777778").status == 200
    assert contents == [whole[:40], whole]


async def test_many_pages_of_a_block_read_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the same time, and again while it has not changed; and no list is made for homes that are known."""
    homes = [f"h{index:03}" for index in range(50)]
    path = tmp_path / file_name("0-0")
    replace_file(path, merge_pages(None, {home: page_text(home) for home in homes}))
    reads: list[str] = []
    read, index = PagesFiles.read, PagesFiles.index

    def counted_read(self: PagesFiles, path: str, before: PagesFile | None) -> PagesFile | None:
        found = read(self, path, before)
        reads.append("looked" if found is before else "read")
        return found

    def counted_index(self: PagesFiles, before: Index) -> Index:
        reads.append("listed")
        return index(self, before)

    monkeypatch.setattr(PagesFiles, "read", counted_read)
    monkeypatch.setattr(PagesFiles, "index", counted_index)
    monkeypatch.setattr(reading, "FILE_AGE_S", 0.0)
    async with reading.HomeSummaries(str(tmp_path), SystemClock()) as view:
        for expected in (["listed", "read"], ["looked"]):
            shown = await asyncio.gather(*(view.home(home) for home in homes))
            assert [one.summary.home for one in shown] == homes
            assert reads == expected
            reads.clear()
        replace_file(path, merge_pages(path.read_bytes(), {"h001": page_text("h001", day="1999-12-31")}))
        shown = await asyncio.gather(*(view.home(home) for home in homes))
        assert reads == ["read"]
        assert [str(one.summary.day) for one in shown].count("1999-12-31") == 1
        monkeypatch.setattr(reading, "FILE_AGE_S", 60.0)
        await asyncio.gather(*(view.home(home) for home in homes))
        assert reads == ["read"]


async def test_homes_that_are_not_there_are_looked_for_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred of them cost one list; one that comes to be later is found by its name at once."""
    replace_file(tmp_path / file_name("0-0"), merge_pages(None, {"h1": page_text("h1")}))
    lists: list[Index] = []
    index = PagesFiles.index

    def counted_index(self: PagesFiles, before: Index) -> Index:
        lists.append(before)
        return index(self, before)

    monkeypatch.setattr(PagesFiles, "index", counted_index)
    monkeypatch.setattr(reading, "UNKNOWN_EVERY_S", 0.0)
    async with reading.HomeSummaries(str(tmp_path), SystemClock()) as view:
        found = await asyncio.gather(*(view.home(f"x{n}") for n in range(100)), return_exceptions=True)
        assert {type(one) for one in found} == {NotFoundError}
        assert len(lists) == 1
        replace_file(tmp_path / file_name("0-1"), merge_pages(None, {"h2": page_text("h2")}))
        assert (await view.home("h2")).summary.home == "h2"
        assert len(lists) == 2


async def test_a_home_that_moves_to_another_file_is_found(tmp_path: Path) -> None:
    """As in a place that was begun anew; where two files have it, the one that was written last counts."""
    old, new = tmp_path / file_name("9-0"), tmp_path / file_name("1-0")
    replace_file(old, merge_pages(None, {"h1": page_text("h1")}))
    async with reading.HomeSummaries(str(tmp_path), SystemClock()) as view:
        await view.home("h1")
        old.unlink()
        replace_file(new, merge_pages(None, {"h1": page_text("h1", day="1999-12-31")}))
        assert str((await view.home("h1")).summary.day) == "1999-12-31"
    replace_file(old, merge_pages(None, {"h1": page_text("h1")}))
    os.utime(old, (1, 1))
    async with reading.HomeSummaries(str(tmp_path), SystemClock()) as view:
        assert str((await view.home("h1")).summary.day) == "1999-12-31"


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
    doors = summary("h000007")["doors"]
    doors["door-front"]["is_open"] = False
    write(summaries, "h000007", page_text("h000007", alarms=[], doors=doors))
    console_page.get_by_text("all closed").wait_for()
    path = path_of(summaries, "h000007")
    whole = path.read_bytes()
    replace_file(path, whole[:-1])
    console_page.get_by_text("Not up to date.").wait_for()
    assert console_page.get_by_text("all closed").is_visible()
    assert_accessible(console_page)
    replace_file(path, merge_pages(whole, {"h000007": page_text("h000007")}))
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
        asyncio.run_coroutine_threadsafe(proxy.start(), loop).result(60)
        yield proxy, loop
        asyncio.run_coroutine_threadsafe(proxy.close(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


@pytest.mark.slow
def test_storage_that_is_down_is_told_and_comes_back(
    tmp_path: Path, azurite: AzuriteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azure's answers are waited for as long as a page may take; then words, never the account's key."""
    from azure.storage.blob import ContainerClient

    container = azurite.create_container()
    with ContainerClient.from_connection_string(azurite.connection_string(), container) as client:
        pages = {home: page_text(home) for home in ("h000001", "h000002")}
        client.upload_blob("pages/0-0.json", merge_pages(None, pages))
    for name in ("LIST_EVERY_S", "UNKNOWN_EVERY_S", "FILE_AGE_S"):
        monkeypatch.setattr(reading, name, 0.0)
    monkeypatch.setattr(reading, "READ_TIMEOUT_S", 1.0)
    monkeypatch.setattr(reading, "LIST_TIMEOUT_S", 1.0)
    with proxied(azurite.port) as (proxy, loop):
        connection_string = azurite.connection_string(port=proxy.port)
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection_string)
        with console_service(tmp_path, home_summaries=f"az://{container}/pages") as service:
            assert service.ready.console is not None
            browser = PlainBrowser(service.ready.console)
            wait_for(browser, "/homes", "2 homes")
            # The storage may once take longer than a page waits for it.
            wait_for(browser, "/homes/h000001", "Front door")
            deadline = SystemClock().monotonic() + 60
            while (status := browser.get("/homes/h000003").status) != 404:
                assert (status, SystemClock().monotonic() < deadline) == (503, True)
            loop.call_soon_threadsafe(proxy.refuse)
            loop.call_soon_threadsafe(proxy.cut_now)
            answer = browser.get("/homes/h000001")
            assert answer.status == 503
            assert f"az://{container}/pages, does not serve them" in answer.text
            assert azurite.account_key not in answer.text
            assert "h000002" in wait_for(browser, "/homes", "The list is not up to date")
            loop.call_soon_threadsafe(proxy.refuse, False)
            wait_for(browser, "/homes/h000001", "Front door")
