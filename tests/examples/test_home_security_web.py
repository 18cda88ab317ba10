"""The homes' web page: a list of many, a home as its summary says, and clear words where there is none."""

from __future__ import annotations

import html
import http.client
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

import pytest
from examples.home_security.page_files import file_name, merge_pages, page_of
from examples.home_security.web import homes as reading
from examples.home_security.web import index as indexing
from examples.home_security.web.homes import Homes
from examples.home_security.web.keys import Keys
from examples.home_security.web.server import HomesServer, serving
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractFileSystem

from tidegate.model.errors import InvalidArgumentError, NotFoundError

if TYPE_CHECKING:
    from tests.support.azurite import AzuriteServer

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


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server answered."""

    status: int
    location: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Browser:
    """Asks for pages, and follows no redirects."""

    server: HomesServer

    def get(self, path: str) -> Answer:
        """A page, with its key."""
        parts, keys = urlsplit(path), self.server.keys
        home = unquote(parts.path.removeprefix("/homes/"))
        key = keys.of_list() if parts.path == "/" else keys.of_home(home)
        return self.get_without_key(f"{parts.path}?{parts.query}&key={key}")

    def get_without_key(self, path: str) -> Answer:
        """A page by this address."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=30)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return Answer(response.status, response.headers["location"], response.read().decode())
        finally:
            connection.close()


@pytest.fixture(scope="module")
def browser(summaries: Path) -> Iterator[Browser]:
    """Of a server that shows ``summaries``."""
    with serving(str(summaries), Keys(os.urandom(32))) as server:
        yield Browser(server)


def test_many_homes_are_listed_in_pages(browser: Browser) -> None:
    """Pages of 50 in both directions, with a search and without; a home opens by its whole name."""
    first = browser.get("/").text
    assert "120 homes" in first
    assert 'href="/homes/h000049?key=' in first
    assert 'href="/homes/h000050?key=' not in first
    second = browser.get("/?after=h000049").text
    assert 'href="/homes/h000050?key=' in second
    assert "Previous page" in second
    last = browser.get("/?after=h000099").text
    assert 'href="/homes/h000119?key=' in last
    assert "Next page" not in last
    assert "after=h000049" in last
    found = browser.get("/?search=H00011").text
    assert "10 of 120 homes" in found
    assert 'href="/homes/h000119?key=' in found
    assert "None of 120 homes with “&lt;i&gt;” in its name" in browser.get("/?search=%3Ci%3E").text
    opened = browser.get("/?home=h000042")
    assert (opened.status, opened.location) == (303, browser.server.home_path("h000042"))


def test_a_resident_sees_one_home_and_no_other(browser: Browser, tmp_path: Path) -> None:
    """A home's key opens its page alone; without one, nothing says which homes there are."""
    keys = browser.server.keys
    assert browser.get_without_key(browser.server.home_path("h000042")).status == 200
    refused = {
        browser.get_without_key(address)
        for key in ("", keys.of_home("h000042"), keys.of_list(), Keys(os.urandom(32)).of_home("h000041"), "é")
        for address in (f"/homes/h000041?key={quote(key)}", f"/homes/h999999?key={quote(key)}")
    }
    refused |= {browser.get_without_key(f"/?key={keys.of_home('h000042')}"), browser.get_without_key("/")}
    assert {(answer.status, "h0000" in answer.text) for answer in refused} == {(403, False)}
    assert len(refused) == 1
    own = browser.get("/homes/h000042").text
    assert set(re.findall(r"h\d{6}", own)) == {"h000042"}
    assert "href" not in own


def test_the_secret_is_kept_for_its_owner(tmp_path: Path) -> None:
    """The addresses that residents have stay valid, and other users of the machine cannot compute them."""
    path = tmp_path / "homes.key"
    assert Keys.of_file(path).of_home("h1") == Keys.of_file(path).of_home("h1")
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(b"short")
    with pytest.raises(InvalidArgumentError, match="5 bytes"):
        Keys.of_file(path)


def test_a_home_is_told_in_words(browser: Browser) -> None:
    """All that the summary has is there without scripts, and the charts have their words."""
    text = browser.get("/homes/h000042").text
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
def test_a_home_that_is_not_there(browser: Browser, name: str) -> None:
    """404 in words, and no other file than a summary is read."""
    answer = browser.get(f"/homes/{name}")
    assert answer.status == 404
    assert "<script>" not in answer.text


@pytest.mark.parametrize(
    "name", ["a.b", "a/b", "../h000042", "A.B", 'x":{"activity":', "\u2028 é", "%2e"], ids=range(7)
)
def test_any_name_is_a_homes(summaries: Path, browser: Browser, name: str) -> None:
    """It is found at once, by its whole name alone, and in the list, whose link leads to it."""
    write(summaries, name, page_text(name, day="1999-12-31"))
    address = f"/homes/{quote(name, safe='')}"
    found = browser.get(address)
    assert (found.status, "1999-12-31" in found.text) == (200, True)
    listed = browser.get(f"/?search={quote(name, safe='')}").text
    links = [html.unescape(link) for link in re.findall(r' href="(/homes/[^"]*)"', listed)]
    assert browser.server.home_path(name) in links
    assert browser.get(f"{address}x").status == 404


def test_a_malformed_file_is_said_to_be_one(summaries: Path, browser: Browser) -> None:
    """Half of one, or another program's; homes of other blocks are shown as before."""
    path = summaries / file_name("9-9")
    whole = merge_pages(None, {"h777777": page_text("h777777")})
    replace_file(path, whole)
    assert browser.get("/homes/h777777").status == 200
    try:
        for content in (b"", whole[:40], b"[]", b"{\n}", whole[2:], b"\xed\xa0\x80"):
            path.write_bytes(content)
            answer = browser.get("/homes/h777777")
            assert answer.status == 503, content
            assert "9-9.json cannot be read: the file is being replaced" in answer.text
            assert browser.get("/homes/h000042").status == 200
            assert browser.get("/homes/h999999").status == 503  # it may be in there
        listed = browser.get("/?search=h7777").text
        assert "h777777" in listed
        assert "9-9.json cannot be read" in listed
    finally:
        path.unlink()
    assert browser.get("/homes/h777777").status == 404
    assert "cannot be read" not in browser.get("/").text


def test_a_file_that_is_too_large_is_not_read(
    summaries: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for its names nor for a page: somebody else's could be of any size."""
    path = summaries / file_name("9-9")
    replace_file(path, merge_pages(None, {"h777777": page_text("h777777")}))
    assert browser.get("/homes/h777777").status == 200

    def refuse(self: AbstractFileSystem, read: str, *_: object) -> bytes:
        raise AssertionError(read)

    monkeypatch.setattr(AbstractFileSystem, "cat_file", refuse)
    for module in (indexing, reading):
        monkeypatch.setattr(module, "BLOB_BYTES_MAX", path.stat().st_size - 1)
    path.touch()
    for home in ("h777777", "h777779"):
        answer = browser.get(f"/homes/{home}")
        assert answer.status == 503
        assert "9-9.json cannot be read" in answer.text
    path.unlink()


@pytest.mark.parametrize(
    "page",
    [
        b'{"activity":[]}',
        page_text("h777776"),
        page_text("h777777")[:-1] + b" " * 300_000 + b"}",
    ],
    ids=["other", "another home's", "too large"],
)
def test_a_malformed_page_is_said_to_be_one(summaries: Path, browser: Browser, page: bytes) -> None:
    """In a file that is one; its other homes are shown."""
    path = summaries / file_name("9-9")
    replace_file(path, merge_pages(None, {"h777777": page, "h777775": page_text("h777775")}))
    answer = browser.get("/homes/h777777")
    assert answer.status == 503
    assert "9-9.json cannot be read" in answer.text
    assert browser.get("/homes/h777775").status == 200
    path.unlink()


def test_nothing_of_a_page_becomes_markup(summaries: Path, browser: Browser) -> None:
    """Rooms and homes have the names that events gave them."""
    name = "<img src=x>"
    write(summaries, name, page_text(name, rooms={"<img src=x>": {"hours_with_motion": [1]}}))
    answer = browser.get(f"/homes/{quote(name)}")
    assert answer.status == 200
    assert "&lt;img src=x&gt;" in answer.text
    assert "<img src=x>" not in answer.text


def test_a_half_file_is_waited_for(
    summaries: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a file system shows a file before it is whole, nobody sees a half: it is read again."""
    path = summaries / file_name("8-8")
    whole = merge_pages(None, {"h777778": page_text("h777778")})
    replace_file(path, whole)
    assert browser.get("/homes/h777778").status == 200
    path.write_bytes(whole[:40])
    contents: list[bytes] = []
    find = page_of

    def find_and_complete(content: bytes, home: str) -> bytes | None:
        contents.append(content)
        path.write_bytes(whole)
        return find(content, home)

    monkeypatch.setattr(reading, "page_of", find_and_complete)
    assert browser.get("/homes/h777778").status == 200
    assert contents == [whole[:40], whole]


def test_a_home_that_moves_to_another_file_is_found(tmp_path: Path) -> None:
    """As in a place that was begun anew; where two files have it, the one that was written last counts."""
    old, new = tmp_path / file_name("9-0"), tmp_path / file_name("1-0")
    replace_file(old, merge_pages(None, {"h1": page_text("h1")}))
    homes = Homes(str(tmp_path))
    homes.home("h1")
    old.unlink()
    replace_file(new, merge_pages(None, {"h1": page_text("h1", day="1999-12-31")}))
    assert str(homes.home("h1").summary.day) == "1999-12-31"
    replace_file(old, merge_pages(None, {"h1": page_text("h1")}))
    os.utime(old, (1, 1))
    assert str(Homes(str(tmp_path)).home("h1").summary.day) == "1999-12-31"


def test_only_files_that_have_changed_are_read_for_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of 100,000 homes costs a look at their files, and one that is not there no more than that."""
    for block, home in (("0-0", "h1"), ("0-1", "h2")):
        replace_file(tmp_path / file_name(block), merge_pages(None, {home: page_text(home)}))
    read: list[str] = []
    cat = AbstractFileSystem.cat_ranges

    def counted(self: AbstractFileSystem, paths: list[str], *given: object, **named: object) -> object:
        read.extend(Path(path).name for path in paths)
        return cat(self, paths, *given, **named)

    monkeypatch.setattr(AbstractFileSystem, "cat_ranges", counted)
    homes = Homes(str(tmp_path))
    for expected in (["0-0.json", "0-1.json"], []):
        assert list(homes.names(search="", after="").names) == ["h1", "h2"]
        assert sorted(read) == expected
        read.clear()
    replace_file(tmp_path / file_name("0-1"), merge_pages(None, {"h3": page_text("h3")}))
    with pytest.raises(NotFoundError):
        homes.home("h2")
    assert read == ["0-1.json"]


def test_storage_that_fails_is_told_without_its_secrets(
    summaries: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its library raises is a page, and the next one is there again when the storage is."""

    def fail(self: LocalFileSystem, path: str, **_: object) -> None:
        raise RuntimeError("no https://account/pages?sig=secret here")

    with monkeypatch.context() as patch:
        patch.setattr(LocalFileSystem, "ls", fail)
        for path in ("/", "/homes/h000042"):
            answer = browser.get(path)
            assert answer.status == 503
            assert f"{summaries}, does not serve them: no https://account/pages here." in answer.text
    assert browser.get("/homes/h000042").status == 200


def test_homes_in_azure_are_shown_too(azurite: AzuriteServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names, and a home as it was written last."""
    from azure.storage.blob import ContainerClient

    container = azurite.create_container()
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string())
    homes = Homes(f"az://{container}/pages")
    with ContainerClient.from_connection_string(azurite.connection_string(), container) as client:
        for day in ("2026-03-02", "1999-12-31"):
            pages = {home: page_text(home, day=day) for home in ("h000001", "h000002")}
            client.upload_blob("pages/0-0.json", merge_pages(None, pages), overwrite=True)
            assert list(homes.names(search="", after="").names) == ["h000001", "h000002"]
            assert str(homes.home("h000001").summary.day) == day
    with pytest.raises(NotFoundError):
        homes.home("h000003")
