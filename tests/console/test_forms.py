"""What a form may cost: no codec of the sender's choice, no long turn of the event loop, and no memory that
is not counted.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import quote_plus

import pytest
from python_multipart.multipart import MultipartParser
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.types import Message
from tests.console.processing_support import append, signed_in
from tests.console.support import PlainBrowser, console_service

from tidegate.broker import Claim
from tidegate.console.frame.form_reading import read_form
from tidegate.console.frame.pages import attachment
from tidegate.model.errors import InvalidArgumentError, ServerBusyError
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService
from tidegate.transport.counted_body import CountedBody, counted
from tidegate.transport.memory import MemoryBudget
from tidegate.transport.sliced_work import SlicedWork

KEY = "a key of the tests of the console"
_FORM = "application/x-www-form-urlencoded"
_IN_PARTS = "multipart/form-data; boundary=b"
_WAIT_S = 30.0


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubService]:
    """A service that holds 32 MB for its clients, with one event hub."""
    directory = tmp_path_factory.mktemp("forms")
    hubs = [{"name": "tenant", "partition_count": 1}]
    settings = {"root_key": KEY, "memory_max_bytes": 32 * 1024 * 1024, "event_hubs": hubs}
    with console_service(directory, **settings) as started:
        yield started


@pytest.mark.parametrize(
    "content_type",
    ["multipart/form-data; boundary=b; charset=punycode", "multipart/form-data; boundary=b" + ";" * 10_000],
)
def test_nobody_chooses_how_a_form_is_read(plain_browser: PlainBrowser, content_type: str) -> None:
    """Python decodes punycode in hours where there are megabytes of it, and a stranger's form is read, too;
    parameters of a header of any length take time with the square of their number.
    """
    body = '--b\r\nContent-Disposition: form-data; name="key"\r\n\r\nabc\r\n--b--\r\n'
    headers = {"Content-Type": content_type, "Origin": plain_browser.origin}
    assert plain_browser.ask("POST", "/console/sign-in", body, headers).status == 400


@pytest.mark.slow
def test_a_large_form_leaves_the_event_loop_to_others(service: HubService) -> None:
    """A field of megabytes, percent-encoded, is decoded in slices."""
    browser = signed_in(service, "tenant", Claim.SEND)

    async def longest_wait(_: TidegateServer) -> float:
        loop, longest = asyncio.get_running_loop(), 0.0
        posted = loop.run_in_executor(
            None, lambda: browser.post("/hubs/tenant/explorer/send", {"body": "\x00" * 4_000_000})
        )
        while not posted.done():
            began = time.monotonic()
            await asyncio.sleep(0.001)
            longest = max(longest, time.monotonic() - began)
        assert (await posted).status >= 400  # the event is too large
        return longest

    # All at once they take 2 s or more.
    assert service.call(longest_wait) < 0.8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "fields", "problem"),
    [
        ("sets", {"lines": "\n" * 300_000, "repeats": "1", "rate": "1"}, "at most 100,000 lines"),
        ("send", {"key_path": ".a" * 1_000}, "2,000 characters"),
        ("send", {"body": "\r\n" * 1_048_577}, "more than 2,097,152 characters"),
        ("send", {"body": "x" * 1_300_000, "partition": "0", "partition_key": "k"}, "exclude each other"),
    ],
)
def test_a_refused_form_costs_little(
    service: HubService, path: str, fields: dict[str, str], problem: str
) -> None:
    """Megabytes of them, split, parsed or drawn at once, made everybody wait for seconds."""
    answer = signed_in(service, "tenant", Claim.SEND).post(f"/hubs/tenant/explorer/{path}", fields)
    assert answer.status == 400
    assert problem in answer.text
    assert len(answer.body) < 500_000


def test_characters_are_whole(service: HubService) -> None:
    """Although its bytes are in two of the pieces that are decoded at once, sent as they are or as escapes.
    What is not UTF-8 is shown as such."""
    browser = signed_in(service, "tenant", Claim.MANAGE)
    browser.get("/hubs/tenant/explorer/send")
    for start in range(2_045, 2_050):
        for character in ("\u00e9\u20ac".encode(), b"%C3%A9%E2%82%AC", b"\xff\xe2\x82\xac"):
            body = b"form_token=%b&body=%b%b" % (browser.form_token.encode(), b"x" * start, character)
            headers = {"Content-Type": _FORM, "Origin": browser.origin}
            sent = browser.ask("POST", "/hubs/tenant/explorer/send", body.decode("latin-1"), headers)
            stored = browser.get(f"{sent.headers['location']}/body").body.decode()
            assert stored == "x" * start + ("\ufffd\u20ac" if b"\xff" in character else "\u00e9\u20ac")


def test_the_head_of_a_part_is_short(plain_browser: PlainBrowser) -> None:
    """Its parameters take time with the square of their length."""
    heads = ';x=""' * 300
    body = f'--b\r\nContent-Disposition: form-data; name="key"{heads}\r\n\r\nabc\r\n--b--\r\n'
    headers = {"Content-Type": "multipart/form-data; boundary=b", "Origin": plain_browser.origin}
    answer = plain_browser.ask("POST", "/console/sign-in", body, headers)
    assert (answer.status, "1,024 bytes" in answer.text) == (400, True)


async def test_a_form_that_was_given_up_is_read_no_further() -> None:
    """Memory is exhausted while the last piece is looked at: the next one is not waited for."""
    budget, pieces = MemoryBudget(10), 0

    async def receive() -> Message:
        nonlocal pieces
        pieces += 1
        return {"type": "http.request", "body": b"x" * 20, "more_body": True}

    with counted(receive, budget, address=None) as receive_counted:
        await receive_counted()
        await asyncio.sleep(0.01)
        with pytest.raises(ServerBusyError, match="given up"):
            await receive_counted()
    assert pieces == 1


@pytest.mark.slow
def test_unfinished_forms_count(service: HubService) -> None:
    """Those that hold most are given up where memory is exhausted, so that there is room for everybody."""
    browser = signed_in(service, "tenant", Claim.SEND)
    size = 16_000_000
    with ExitStack() as stack:
        for _ in range(4):
            sent = _request(stack, browser, "POST", "/hubs/tenant/explorer/send", size)
            sent.sendall(b"body=" + b"x" * (size - 1000))
        _wait_for_ended_connections(service)
    assert browser.get("/hubs/tenant/explorer/send").status == 200


@pytest.mark.slow
def test_answers_that_are_not_read_count(service: HubService) -> None:
    """So do pages that somebody asks for and leaves in the service's memory."""
    for _ in range(20):
        append(service, "tenant", [b"x" * 700_000])
    browser = signed_in(service, "tenant", Claim.LISTEN)
    before = _ended_connections(service)
    with ExitStack() as stack:
        for _ in range(4):
            _request(stack, browser, "GET", "/hubs/tenant/explorer/page.jsonl?count=25")
        _wait_for_ended_connections(service, more_than=before)


@pytest.mark.parametrize("text", ["ä+b &=%;", "", "x" * 2047 + "ä", "x" * 2046 + "€", "% " * 5000])
async def test_a_form_is_read_as_browsers_write_it(text: str) -> None:
    """Whatever is at the edge of a slice."""
    body = f"&one={quote_plus(text)}&&two=1&two=2&{quote_plus(text)}"
    form = await read_form(_posted(body), bytes_max=100_000)
    assert form.multi_items() == [("one", text), ("two", "1"), ("two", "2"), *([(text, "")] if text else [])]


async def test_a_form_has_no_more_fields_than_a_page() -> None:
    """Else many small ones would take as long as a large one."""
    with pytest.raises(InvalidArgumentError, match="fields"):
        await read_form(_posted("&" * 10_000), bytes_max=100_000)


async def test_a_form_in_parts_is_parsed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """What looks like boundaries, all that had arrived at once, took the parser half a second."""
    sizes, write = [], MultipartParser.write

    def noted(parser: MultipartParser, data: bytes) -> int:
        sizes.append(len(data))
        return write(parser, data)

    monkeypatch.setattr(MultipartParser, "write", noted)
    file = "\r\n--b-\r\n--b\r" * 5_000
    form = await read_form(_posted(_in_parts("\r\n--b- " * 5_000, file), _IN_PARTS), bytes_max=10**6)
    assert form["one"] == "\r\n--b- " * 5_000
    sent = form["file"]
    assert isinstance(sent, UploadFile)
    assert await sent.read() == file.encode()
    await sent.close()
    assert max(sizes) <= 2_048


@pytest.mark.parametrize("content_type", [_FORM, _IN_PARTS])
async def test_what_is_made_of_a_form_counts(content_type: str) -> None:
    """One character can make four bytes of each: forms held five to ten times what was counted."""
    text, budget = ("x" * 1_900 + "\U0001f600") * 20, MemoryBudget(10**9)
    body = f"one={text}" if content_type == _FORM else _in_parts(text)
    request = _posted(body, content_type)
    with counted(request.receive, budget, address=None) as receive:
        request._receive = receive  # as the console's middleware passes it on
        assert (await read_form(request, bytes_max=10**6))["one"] == text
        assert isinstance(request.receive, CountedBody)
        assert budget.statistics().used_bytes > len(body) + 4 * len(text)
    assert budget.statistics().used_bytes == 0


def _in_parts(one: str, file: str | None = None) -> str:
    """The body of a form with a field, and perhaps a file."""
    body = f'--b\r\nContent-Disposition: form-data; name="one"\r\n\r\n{one}\r\n'
    if file is not None:
        disposition = 'form-data; name="file"; filename="f"'
        body += f"--b\r\nContent-Disposition: {disposition}\r\n\r\n{file}\r\n"
    return f"{body}--b--\r\n"


def _posted(body: str, content_type: str = _FORM) -> Request:
    content = body.encode()

    async def receive() -> Message:
        return {"type": "http.request", "body": content, "more_body": False}

    headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(content)).encode())]
    request = Request({"type": "http", "method": "POST", "headers": headers, "state": {}}, receive)
    request.state.sliced_work = SlicedWork()
    return request


def _request(
    stack: ExitStack, browser: PlainBrowser, method: str, path: str, size: int | None = None
) -> socket.socket:
    """The head of a request, on a connection whose answers pile up."""
    connection = stack.enter_context(socket.socket())
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(_WAIT_S)
    connection.connect((browser.host, browser.port or 0))
    cookies = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    lines = [f"{method} {path} HTTP/1.1", f"Host: {browser.host}:{browser.port}", f"Cookie: {cookies}"]
    if size is not None:
        lines += [f"Origin: {browser.origin}", f"Content-Type: {_FORM}", f"Content-Length: {size}"]
    connection.sendall("\r\n".join([*lines, "", ""]).encode())
    return connection


def _ended_connections(service: HubService) -> float:
    assert service.ready.console is not None
    page = PlainBrowser(service.ready.console).get("/metrics").text
    found = re.search(r"^tidegate_memory_ended_connections_total (\S+)$", page, re.MULTILINE)
    assert found is not None
    return float(found[1])


def _wait_for_ended_connections(service: HubService, *, more_than: float = 0.0) -> None:
    until = time.monotonic() + _WAIT_S
    while _ended_connections(service) <= more_than:
        assert time.monotonic() < until, "nobody was given up"
        time.sleep(0.05)


def test_a_file_of_any_name_can_be_saved() -> None:
    """A header holds ASCII, and quotes end the name."""
    response = attachment(b"x", 'a"b/группа-0.json')
    assert response.headers["Content-Disposition"] == 'attachment; filename="a_b_______-0.json"'
