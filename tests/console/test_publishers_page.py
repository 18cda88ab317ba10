"""The publishers of an event hub in the console: who has published, and who may not."""

from __future__ import annotations

import asyncio
import html
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from azure.eventhub import EventData
from azure.eventhub.exceptions import EventHubError
from tests.console.support import PlainBrowser, assert_accessible, console_service
from tests.interop.support import SdkTarget, target_of

from tidegate.model.limits import PUBLISHERS_SEEN_MAX, PUBLISHERS_STATED_MAX
from tidegate.model.partition_key import partition_for_key
from tidegate.server.app import TidegateServer
from tidegate.storage.record import AppendResult
from tidegate.testing.hub import HubService

if TYPE_CHECKING:
    from playwright.sync_api import Page

_DEADLINE_S = 60.0


def _note_publishers(
    service: HubService, hub: str, names: Iterable[str], *, is_own_address: bool = True
) -> None:
    """As if each had sent a batch of one event of 10 bytes, in this order and a millisecond apart."""

    async def note(server: TidegateServer) -> None:
        records = server.broker.event_hub(hub).publishers
        for number, name in enumerate(names):
            appended: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
            records.note_when_stored(appended, name, "0", event_bytes=10, is_own_address=is_own_address)
            appended.set_result(AppendResult(number, number + 1, 1_800_000_000_000 + number))
        await asyncio.sleep(0)  # callbacks of the futures

    service.call(note)


def _rows(page: str) -> list[list[str]]:
    """The text of the cells of each row of the page's tables, without headings."""
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL) for row in rows]
    return [[re.sub(r"<[^>]*>", "", cell) for cell in row] for row in cells if "<time" in "".join(row)]


def test_publishers_are_revoked_and_restored(service: HubService, plain_browser: PlainBrowser) -> None:
    """Names are free text, and shown as text."""
    hub = service.create_hub()
    path, name = f"/hubs/{hub}/publishers", "device <7> & co"
    assert (
        "device &lt;7&gt; &amp; co can no longer send"
        in plain_browser.follow(plain_browser.post(path, {"publisher": name})).text
    )
    assert plain_browser.post(path, {"publisher": name}).status == 409
    assert plain_browser.post(path, {"publisher": "a/b"}).status == 400
    assert "Those revoked (1)" in plain_browser.get(path).text
    revoked = plain_browser.get(f"{path}?only=revoked").text
    address = re.search(r'href="(/hubs/[^"]*/publisher\?[^"]*)"', revoked)
    assert address is not None
    own = plain_browser.get(html.unescape(address[1])).text
    assert "device &lt;7&gt; &amp; co" in own
    assert 'action="' + path + '/restore"' in own
    restored = plain_browser.follow(plain_browser.post(f"{path}/restore", {"publisher": name})).text
    assert "can send again" in restored
    assert "No publisher is revoked." in plain_browser.get(f"{path}?only=revoked").text
    assert plain_browser.post(f"{path}/restore", {"publisher": name}).status == 404
    assert plain_browser.get(f"/hubs/{hub}/publisher").status == 404


@pytest.mark.sdk
def test_who_publishes_is_listed(service: HubService, plain_browser: PlainBrowser) -> None:
    """Of an official SDK, and of events that only say so: what each has sent, the last one first."""
    hub = service.create_hub(partition_count=4)
    path = f"/hubs/{hub}/publishers"
    assert "No publisher has sent an event since the service started." in plain_browser.get(path).text
    target = target_of(service, "plain")
    with target.publisher(hub, "device-1") as device:
        device.send_batch([EventData("a"), EventData("b")])
        device.send_event(EventData("c"))
    said = EventData("d")
    said.raw_amqp_message.annotations = {b"x-opt-publisher": "device-2"}
    with target.producer(hub) as producer:
        producer.send_event(said)
        producer.send_event(EventData("nobody's"))
    device_2, device_1 = _rows(plain_browser.get(path).text)
    where = str(partition_for_key("device-1", 4))
    assert device_1[0] == "device-1"
    assert device_1[2:4] == [where, "3"]
    assert device_1[5:] == ["its address", "may send"]
    assert device_2[0] == "device-2"
    assert device_2[3] == "1"
    assert device_2[5:] == ["its own word", "–"]
    assert "1 event (" in plain_browser.get(f"/hubs/{hub}/publisher?name=DEVICE-2").text
    plain_browser.post(path, {"publisher": "Device-1"})
    assert _rows(plain_browser.get(path).text)[1][6] == "revoked"
    assert _rows(plain_browser.get(f"{path}?only=revoked").text)[0][3] == "3"


@pytest.mark.slow
def test_ten_thousand_publishers_come_in_pages(service: HubService, plain_browser: PlainBrowser) -> None:
    """50 a page, found by a part of the name; what fell out of the record is told."""
    hub = service.create_hub(partition_count=1)
    path = f"/hubs/{hub}/publishers"
    _note_publishers(service, hub, (f"device-{number}" for number in range(PUBLISHERS_SEEN_MAX + 2)))
    first = plain_browser.get(path).text
    assert [row[0] for row in _rows(first)][:2] == ["device-10001", "device-10000"]
    assert "10,000 publishers seen since the service started, the last one first; 2 fell out" in first
    forgotten = "or so much from others since that it fell out of the list"
    assert forgotten in plain_browser.get(f"/hubs/{hub}/publisher?name=device-0").text
    last = _rows(plain_browser.get(f"{path}?start=9950").text)
    assert [row[0] for row in last][-1] == "device-2"
    found = plain_browser.get(f"{path}?search=DEVICE-77&start=50")
    assert "111 publishers with" in found.text
    assert len(_rows(found.text)) == 50
    assert "&amp;start=100" in found.text
    for query in ("start=-1", "start=x", "only=x", "search=%3Cscript%3E", "start=99999999"):
        answer = plain_browser.get(f"{path}?{query}")
        assert answer.status == 200, query
        assert "<script>" not in answer.text


def test_names_that_events_say_push_nobody_out(service: HubService, plain_browser: PlainBrowser) -> None:
    """There are fewer of them, and a publisher's page does not doubt its own record for their sake."""
    hub = service.create_hub(partition_count=1)
    _note_publishers(service, hub, ["device-1"])
    said = (f"said-{number}" for number in range(PUBLISHERS_STATED_MAX + 1))
    _note_publishers(service, hub, said, is_own_address=False)
    page = plain_browser.get(f"/hubs/{hub}/publishers").text
    assert f"{PUBLISHERS_STATED_MAX + 1:,} publishers seen since the service started" in page
    assert "1 fell out" in page
    assert "fell out of the list" not in plain_browser.get(f"/hubs/{hub}/publisher?name=said-0").text


def test_publishers_are_forgotten_with_the_service(tmp_path: Path) -> None:
    """What the page says beforehand."""
    with console_service(tmp_path) as service:
        assert service.ready.console is not None
        hub = service.create_hub(partition_count=1)
        _note_publishers(service, hub, ["device-1"])
        before = PlainBrowser(service.ready.console).get(f"/hubs/{hub}/publishers").text
        assert [row[0] for row in _rows(before)] == ["device-1"]
        assert "The list starts empty each time the service starts" in before
        service.restart()
        after = PlainBrowser(service.ready.console).get(f"/hubs/{hub}/publishers").text
        assert "No publisher has sent an event since the service started." in after


@contextmanager
def _publishing(target: SdkTarget, hub: str, names: Iterable[str]) -> Iterator[dict[str, threading.Event]]:
    """Official producers that send as these publishers, each until it is refused or the block ends; the event
    of a name is set once it was refused.
    """
    is_over = threading.Event()
    refused = {name: threading.Event() for name in names}

    def publish(name: str) -> None:
        with target.publisher(hub, name) as producer:
            while not is_over.is_set():
                try:
                    producer.send_batch([EventData("x" * 100) for _ in range(3)])
                except EventHubError:
                    refused[name].set()
                    return
                is_over.wait(0.05)  # a load that leaves the machine to others

    threads = [threading.Thread(target=publish, args=(name,), name=name) for name in refused]
    for thread in threads:
        thread.start()
    try:
        yield refused
    finally:
        is_over.set()
        for thread in threads:
            thread.join(_DEADLINE_S)
            assert not thread.is_alive()


@pytest.mark.programs
@pytest.mark.sdk
def test_publishers_under_load_with_a_browser(service: HubService, console_page: Page) -> None:
    """Named publishers come into the open page, with counts that grow; one is revoked on its own page, and
    its open link ends; each page is accessible.
    """
    hub = service.create_hub(partition_count=4)
    console_page.goto(f"/hubs/{hub}/publishers")
    console_page.get_by_text("No publisher has sent an event").wait_for()
    assert_accessible(console_page)
    with _publishing(target_of(service, "plain"), hub, ["device-1", "device-2"]) as refused:
        for name in ("device-1", "device-2"):
            console_page.get_by_role("link", name=name, exact=True).wait_for()
        row = console_page.get_by_role("row").filter(has_text="device-1")
        before = row.get_by_role("cell").nth(2).inner_text()
        console_page.wait_for_function(
            "before => [...document.querySelectorAll('tr')].some(row => row.textContent.includes('device-1') "
            "&& row.cells[3].textContent !== before)",
            arg=before,
        )
        assert_accessible(console_page)
        console_page.get_by_role("link", name="device-1", exact=True).click()
        console_page.get_by_role("heading", name="device-1").wait_for()
        assert_accessible(console_page)
        console_page.get_by_role("button", name="Revoke device-1").click()
        console_page.get_by_text("The publisher device-1 can no longer send.").wait_for()
        assert refused["device-1"].wait(_DEADLINE_S)
        row.get_by_text("revoked", exact=True).wait_for()
        console_page.get_by_role("link", name="Those revoked (1)").click()
        console_page.get_by_role("link", name="Those seen").wait_for()
        row.get_by_text("revoked", exact=True).wait_for()
        assert_accessible(console_page)
        assert not refused["device-2"].is_set()
