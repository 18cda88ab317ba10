"""Capture of an event hub in the console: how it stands, and the files that it has written."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from azure.eventhub import EventData
from tests.capture.support import capture_files
from tests.console.support import PlainBrowser, assert_accessible
from tests.interop.support import SdkTarget, target_of

from tidegate.capture.file_journal import FileJournal
from tidegate.model.capture import CapturedFile, CaptureSettings, WindowEnd
from tidegate.model.limits import CAPTURE_SIZE_WINDOW_BYTES_MIN
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService

if TYPE_CHECKING:
    from playwright.sync_api import Page

_DEADLINE_S = 60.0
_BODY_BYTES = 100_000


def _note_files(service: HubService, hub: str, count: int, destination: str) -> None:
    """As if Capture had written files of 2 partitions in turn, a minute apart."""

    async def journal(server: TidegateServer) -> FileJournal:
        hub_id = server.broker.event_hub(hub).description.hub_id
        return FileJournal(service.data_dir / "capture" / hub_id)

    found, start_ms = service.call(journal), 1_800_000_000_000
    for number in range(count):
        at_ms = start_ms + 60_000 * number
        end = WindowEnd.SIZE if number % 3 == 0 else WindowEnd.TIME
        file = CapturedFile(
            f"ns/{hub}/{number % 2}/{number:05}.avro",
            destination,
            str(number % 2),
            10 * number,
            10 * number + 10,
            None if number == 7 else 10,
            None if number == 7 else 2048,
            at_ms - 60_000,
            at_ms,
            at_ms,
            end,
        )
        found.append(file, is_again=False)


def _files(page: str) -> list[list[str]]:
    """The text of the cells of each row of the table of files."""
    table = re.search(r'aria-label="Files".*?</table>', page, re.DOTALL)
    rows = re.findall(r"<tr>(.*?)</tr>", table[0], re.DOTALL)[1:] if table else []
    cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL) for row in rows]
    return [[re.sub(r"<[^>]*>", " ", cell).strip() for cell in row] for row in cells]


@pytest.mark.slow
def test_files_come_in_pages_also_without_capture(service: HubService, plain_browser: PlainBrowser) -> None:
    """50 a page, the latest first, of all partitions; where they went is told, as the settings do not."""
    hub = service.create_hub(partition_count=2)
    path = f"/hubs/{hub}/capture"
    assert "The service remembers no file that it has written." in plain_browser.get(path).text
    _note_files(service, hub, 120, "/old/<place>")
    first = plain_browser.get(path)
    assert "120 files remembered, the latest first" in first.text
    rows = _files(first.text)
    assert [row[1] for row in rows[:3]] == ["1", "0", "1"]
    assert rows[0][2:4] == ["10", "2.0 KB"]
    assert rows[0][5] == "time  after 1 min"
    assert rows[2][5] == "size  after 1 min"
    assert f"ns/{hub}/1/00119.avro" in rows[0][6]
    assert "in /old/&lt;place&gt;" in rows[0][6]
    assert "files=50" in first.text
    last = plain_browser.get(f"{path}?files=100&start=5")
    assert [row[2:4] for row in _files(last.text)][12] == ["–", "–"]
    assert len(_files(last.text)) == 20
    assert "start=5&amp;files=50" in last.text
    assert "No more files." in plain_browser.get(f"{path}?files=120").text
    for query in ("files=-1", "files=x", f"files={'9' * 30}"):
        assert len(_files(plain_browser.get(f"{path}?{query}").text)) == 50, query


def test_a_list_that_cannot_be_read_is_told(service: HubService, plain_browser: PlainBrowser) -> None:
    """The rest of the page is there."""
    hub = service.create_hub(partition_count=1)
    _note_files(service, hub, 1, "/files")
    (journal,) = (
        path for path in (service.data_dir / "capture").glob("*/files.jsonl") if hub in path.read_text()
    )
    journal.unlink()
    journal.mkdir()
    page = plain_browser.get(f"/hubs/{hub}/capture")
    assert page.status == 200
    assert "The list of files cannot be read" in page.text
    assert "Have it captured" in page.text


@pytest.mark.slow
def test_a_hub_that_is_captured_no_longer_is_shown_at_once(
    service: HubService, plain_browser: PlainBrowser, tmp_path: Path
) -> None:
    """Capture follows its settings within a second; meanwhile it goes on to tell of the partitions."""
    hub = service.create_hub(partition_count=2)
    path = f"/hubs/{hub}/capture"
    fields = {
        "destination": str(tmp_path),
        "time_window_s": "60",
        "size_window_mb": "10",
        "is_enabled": "on",
    }
    plain_browser.follow(plain_browser.post(path, fields))
    deadline = time.monotonic() + _DEADLINE_S
    while "Where each partition is" not in plain_browser.get(path).text:
        assert time.monotonic() < deadline, "it is not captured"
    page = plain_browser.follow(plain_browser.post(f"{path}/off"))
    assert page.status == 200
    assert "No partition is captured now." in page.text


@contextmanager
def _sending(target: SdkTarget, hub: str) -> Iterator[None]:
    """An official producer that fills the smallest window of a partition again and again."""
    is_over = threading.Event()

    def send() -> None:
        with target.producer(hub) as producer:
            while not is_over.is_set():
                producer.send_batch([EventData(b"x" * _BODY_BYTES) for _ in range(9)], partition_id="0")
                is_over.wait(0.02)  # a load that leaves the machine to others

    thread = threading.Thread(target=send, name="sender")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(_DEADLINE_S)
        assert not thread.is_alive()


@pytest.mark.programs
@pytest.mark.sdk
def test_capture_under_load_with_a_browser(service: HubService, console_page: Page, tmp_path: Path) -> None:
    """Files come into the open page as they are written, closed by size; they are there still after a
    restart, and when the hub is captured no longer. Each page is accessible.
    """
    hub = service.create_hub(partition_count=2)
    settings = CaptureSettings(
        str(tmp_path), size_window_bytes=CAPTURE_SIZE_WINDOW_BYTES_MIN, is_empty_skipped=True
    )

    async def set_capture(server: TidegateServer, wanted: CaptureSettings | None) -> None:
        await server.broker.set_capture(hub, wanted)

    path = f"/hubs/{hub}/capture"
    console_page.goto(path)
    console_page.get_by_text("The service remembers no file that it has written.").wait_for()
    assert_accessible(console_page)
    service.call(lambda server: set_capture(server, settings))
    files = console_page.get_by_role("region", name="Files").get_by_role("row")
    with _sending(target_of(service, "plain"), hub):
        files.filter(has_text="size after").nth(1).wait_for()
        console_page.get_by_role("region", name="Partitions").get_by_role("row").nth(2).wait_for()
        assert_accessible(console_page)
    service.restart()
    console_page.goto(path)
    files.filter(has_text="size after").nth(1).wait_for()
    shown = {code.inner_text() for code in files.locator("code").all()}
    assert shown <= {file.relative_to(tmp_path).as_posix() for file in capture_files(tmp_path)}
    service.call(lambda server: set_capture(server, None))
    console_page.get_by_text("Its events are not captured").wait_for()
    files.filter(has_text=f"in {tmp_path}").nth(1).wait_for()
    assert_accessible(console_page)
