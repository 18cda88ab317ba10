"""Sending events and sets by the console's forms."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from starlette.datastructures import FormData
from tests.console.explorer_support import rows_of, send_events, words_of
from tests.console.support import Answer, PlainBrowser, assert_accessible, console_service

from tidegate.amqp.message import Message
from tidegate.broker import Claim, SharedAccessPolicy
from tidegate.console.explorer import send_page, sending
from tidegate.console.explorer.codec import EventEncoder
from tidegate.console.explorer.properties import parse_properties
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import EventData
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService

if TYPE_CHECKING:
    from playwright.sync_api import Page

_KEY = "a-key-of-some-length"


@pytest.fixture
def hub(service: HubService) -> str:
    """A hub of three partitions."""
    return service.create_hub(partition_count=3)


def test_one_event_is_sent_by_its_form(hub: str, plain_browser: PlainBrowser) -> None:
    """It is stored as it was filled in, shown, and sent again from its copy."""
    fields = {
        "body": "line 1\r\nline 2",
        "properties": "kind=a=b\r\n\r\n",
        "partition_key": "k",
        "content_type": "text/plain",
    }
    sent = plain_browser.follow(plain_browser.post(f"/hubs/{hub}/explorer/send", fields))
    assert "The event is stored" in words_of(sent)
    for words in ("kind a=b string", "content-type text/plain", "Partition key k"):
        assert words in words_of(sent)
    copy = re.search(r'href="([^"]+copy=[^"]+)"', sent.text)
    assert copy is not None
    form = plain_browser.get(copy[1])
    for words in ("line 1\nline 2</textarea>", 'value="k"', "kind=a=b</textarea>"):
        assert words in form.text
    place = rows_of(plain_browser.get(f"/hubs/{hub}/explorer"))[0]
    assert plain_browser.get(f"/hubs/{hub}/explorer/events/{place}/body").body == b"line 1\nline 2"


def test_bytes_are_sent_as_base64(service: HubService, hub: str, plain_browser: PlainBrowser) -> None:
    """A copy of bytes is the same bytes."""
    send_events(service, hub, EventData(b"\x00\xff\r"))
    form = plain_browser.get(f"/hubs/{hub}/explorer/send?copy=0.0")
    assert "AP8N</textarea>" in form.text
    sent = plain_browser.post(f"/hubs/{hub}/explorer/send", {"body": "AP 8N", "encoding": "base64"})
    assert plain_browser.get(f"{sent.headers['location']}/body").body == b"\x00\xff\r"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"body": "x" * 1_100_000}, "Send fewer events per batch, or smaller ones."),
        ({"body": "x", "partition": "7", "partition_key": "k"}, "exclude each other"),
        ({"body": "kept as it was", "partition": "7"}, "should be between 0 and"),
        ({"body": "x", "properties": "no value"}, "Line 1 of the properties"),
        ({"body": "x", "encoding": "base64"}, "not base64"),
        ({"body": "x", "partition_key": "k" * 129}, "129 characters"),
    ],
    ids=["too-large", "two-targets", "no-partition", "garbled-property", "not-base64", "long-key"],
)
@pytest.mark.slow
def test_a_refusal_is_shown_beside_the_form(
    hub: str, plain_browser: PlainBrowser, fields: dict[str, str], words: str
) -> None:
    """With what to do about it, and what was filled in."""
    answer = plain_browser.post(f"/hubs/{hub}/explorer/send", fields)
    assert answer.status == (404 if "should be" in words else 400)
    assert words in words_of(answer)
    assert fields["body"][:50] in answer.text
    assert "There are no events here" in words_of(plain_browser.get(f"/hubs/{hub}/explorer"))


def test_properties_that_no_event_holds_are_not_read(
    service: HubService, hub: str, plain_browser: PlainBrowser
) -> None:
    """However many there are: they would be parsed line by line."""
    service.call(lambda server: server.broker.update_event_hub(hub, event_bytes_max=1024))
    fields = {"body": "x", "properties": "a" * 7_000}
    answer = plain_browser.post(f"/hubs/{hub}/explorer/send", fields)
    assert answer.status == 400
    assert "The properties have 7,000 characters" in words_of(answer)


def test_an_event_has_only_so_many_properties(
    service: HubService, hub: str, plain_browser: PlainBrowser
) -> None:
    """Each needs four bytes of it, and a hundred in memory."""
    service.call(lambda server: server.broker.update_event_hub(hub, event_bytes_max=1024))
    fields = {"body": "x", "properties": "".join(f"{number}=\n" for number in range(257))}
    answer = plain_browser.post(f"/hubs/{hub}/explorer/send", fields)
    assert answer.status == 400
    assert "Line 257 of the properties is beyond 256 properties" in words_of(answer)


@pytest.mark.parametrize("place", ["send", "sets"])
def test_few_forms_are_read_at_once(
    hub: str, plain_browser: PlainBrowser, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Protects the memory: 2 MB of text, which is all that is counted, became properties of 45 MB that waited
    for a thread beside those of a hundred other forms."""
    read, counts, lock = [0], list[int](), threading.Lock()

    def parse(*given: Any, **named: Any) -> dict[object, object]:
        with lock:
            read[0] += 1
            counts.append(read[0])
        time.sleep(0.1)
        return parse_properties(*given, **named)

    class Encoder(EventEncoder):
        def __init__(self, message: Message) -> None:
            with lock:
                read[0] -= 1
            super().__init__(message)

    monkeypatch.setattr(send_page, "parse_properties", parse)
    monkeypatch.setattr(sending, "EventEncoder", Encoder)
    plain_browser.get(f"/hubs/{hub}/explorer/send")
    fields = {"body": "x", "lines": "x", "properties": "a=1"}
    with ThreadPoolExecutor(4) as threads:
        answers = threads.map(lambda _: plain_browser.post(f"/hubs/{hub}/explorer/{place}", fields), range(4))
        assert [answer.status for answer in answers] == [303] * 4
    assert max(counts) == 1


class _Text(str):
    """A field that may not be taken apart as a whole."""

    __slots__ = ()

    def split(self, *arguments: object) -> NoReturn:
        """Refuse."""
        raise AssertionError("C code went through the whole field")

    replace = split


class _Bytes(bytes):
    """A set that may not be taken apart as a whole."""

    def split(self, *arguments: object) -> NoReturn:
        """Refuse."""
        raise AssertionError("C code went through the whole set")


def test_large_fields_are_read_by_code_that_others_can_interrupt() -> None:
    """Protects the event loop from the thread that reads a form: 90 ms for 2 MB of words of two letters as
    base64, 20 to 140 ms for as many line ends."""
    fields = send_page._texts(FormData({"body": _Text("\r\nYQ\r\n" * 100_000), "lines": _Text("a\r\rb")}))
    assert fields["body"] == "\nYQ\n" * 100_000
    assert fields["lines"] == "a\r\rb"
    assert send_page._body({"encoding": "base64", "body": _Text(" Y\tQ\r\n=\n=\v\f")}) == b"a"
    assert parse_properties(_Text("\na=1\r\n\n\rb=2\u2028\n")) == {"a": "1\r", "b": "2\u2028"}
    assert send_page._lines(_Bytes(b"\na\r\n\n\nb\rc\n\r\nd")) == [b"a", b"b\rc", b"d"]
    with pytest.raises(InvalidArgumentError, match="100,000 lines"):
        send_page._lines(_Bytes(b"\n" * 200_001))


def test_a_throttled_send_is_told(service: HubService, hub: str, plain_browser: PlainBrowser) -> None:
    """The console has no way past the namespace's throughput units."""

    async def throttle(server: TidegateServer) -> None:
        server.broker.throughput.set_units(1)
        server.broker.throughput.use_up(60)

    async def mend(server: TidegateServer) -> None:
        server.broker.throughput.set_units(None)

    service.call(throttle)
    try:
        answer = plain_browser.post(f"/hubs/{hub}/explorer/send", {"body": "x"})
    finally:
        service.call(mend)
    assert answer.status == 503
    assert "Not sent." in words_of(answer)


def test_rights(service: HubService, tmp_path: Path) -> None:
    """Listen sees and cannot send, Send sends and cannot see, and another hub's policy does neither."""
    policies = [
        SharedAccessPolicy("see", _KEY, frozenset({Claim.LISTEN})),
        SharedAccessPolicy("send", _KEY, frozenset({Claim.SEND})),
    ]

    async def prepare(server: TidegateServer) -> None:
        for name in ("one", "other"):
            await server.broker.create_event_hub(name, partition_count=1, retention_hours=1)
            await server.broker.event_hub(name).replace_policies(policies)

    with console_service(tmp_path) as service:
        service.call(prepare)
        send_events(service, "one", EventData(b"secret"))
        assert service.ready.console is not None

        def browser(policy: str, hub: str) -> PlainBrowser:
            made = PlainBrowser(service.ready.console or "")
            made.get("/console/sign-in")
            fields = {"policy": policy, "key": _KEY, "hub": hub, "next": "/console/sign-in"}
            assert made.post("/console/sign-in", fields).status == 303
            return made

        seer, sender, other = browser("see", "one"), browser("send", "one"), browser("see", "other")
        place = "/hubs/one/explorer"
        assert rows_of(seer.get(place)) == ["0/0"]
        form = seer.get(f"{place}/send")
        assert "<fieldset disabled" in form.text
        assert "Sending needs Send" in words_of(form)
        assert seer.post(f"{place}/send", {"body": "x"}).status == 403
        assert seer.post(f"{place}/sets", {"lines": "x"}).status == 403
        sender.get(f"{place}/send")
        assert sender.follow(sender.post(f"{place}/send", {"body": "x"})).status == 200
        for address in ("", "/page.jsonl", "/live", "/events/0/0", "/events/0/0/body", "/send?copy=0.0"):
            assert sender.get(place + address).status == 403, address
            assert other.get(place + address).status == 403, address
        for address in ("/hubs/one/explorer", "/hubs/one/sets/x"):
            assert other.get(f"/console/live{address}").status == 403


def test_a_set_is_sent_and_can_be_stopped(hub: str, plain_browser: PlainBrowser) -> None:
    """From pasted lines and from a file; without scripts the page tells how it is when it is reloaded."""
    fields = {"lines": '{"d": 1}\r\n\r\n{"d": 2}\r\n', "key_path": ".d", "repeats": "100000", "rate": "20"}
    begun = plain_browser.post(f"/hubs/{hub}/explorer/sets", fields)
    page = plain_browser.follow(begun)
    assert "of 200,000 events are stored" in words_of(page)
    assert plain_browser.post(f"{begun.headers['location']}/stop").status == 303
    stream = plain_browser.get(
        f"/console/live/hubs/{hub}/sets/{begun.headers['location'].rpartition('/')[2]}"
    )
    assert stream.text.rstrip().endswith("event: end\ndata:")
    assert "stopped" in stream.text
    assert "stopped" in words_of(plain_browser.get(f"/hubs/{hub}/explorer/send"))
    answer = plain_browser.post(f"/hubs/{hub}/explorer/sets", {**fields, "rate": "x"})
    assert answer.status == 400
    assert "not a number of events per second" in words_of(answer)
    answer = plain_browser.post(f"/hubs/{hub}/explorer/sets", {**fields, "lines": '{"d": 1}\nno JSON'})
    assert "Line 2: Invalid JSON" in words_of(answer)
    assert plain_browser.get(f"/hubs/{hub}/explorer/sets/none").status == 404


@pytest.mark.slow
def test_a_file_of_lines(hub: str, plain_browser: PlainBrowser) -> None:
    """An upload, with the larger limit that sets have; beyond it a page that says so."""
    plain_browser.get(f"/hubs/{hub}/explorer/send")

    def upload(lines: bytes) -> Answer:
        parts = {"form_token": plain_browser.form_token.encode(), "rate": b"20000", "partition": b"0"}
        body = b"".join(
            b'--edge\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (name.encode(), value)
            for name, value in parts.items()
        )
        body += b'--edge\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
        body += lines + b"\r\n--edge--\r\n"
        headers = {"Content-Type": "multipart/form-data; boundary=edge", "Origin": plain_browser.origin}
        return plain_browser.ask("POST", f"/hubs/{hub}/explorer/sets", body.decode("latin-1"), headers)

    begun = upload(b"line of a file\n" * 5000)
    run_id = begun.headers["location"].rpartition("/")[2]
    assert "5,000 of 5,000" in plain_browser.get(f"/console/live/hubs/{hub}/sets/{run_id}").text
    assert plain_browser.get(f"/hubs/{hub}/explorer/events/0/4999/body").body == b"line of a file"
    answer = upload(b"x" * 18_000_000)
    assert answer.status == 400
    assert "17,825,792" in words_of(answer)


@pytest.mark.programs
def test_a_set_is_watched_and_stopped(hub: str, console_page: Page) -> None:
    """Its progress comes by itself, its end, too; the button stops it."""
    page = console_page
    page.goto(f"/hubs/{hub}/explorer/send")
    page.get_by_label("Events, one a line").fill('{"device": "a"}\n{"device": "b"}')
    page.get_by_label("Partition key from each line's JSON").fill(".device")
    page.get_by_label("How often").fill("15")
    page.get_by_label("Events per second").fill("30")
    page.get_by_role("button", name="Begin to send").click()
    page.get_by_text("sending", exact=True).wait_for()
    assert_accessible(page)
    page.get_by_text("30 of 30 events are stored").wait_for()
    page.get_by_text("done", exact=True).wait_for()
    page.get_by_role("link", name="Send more").click()
    page.get_by_label("Events, one a line").fill("again")
    page.get_by_label("How often").fill("100000")
    page.get_by_role("button", name="Begin to send").click()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("stopped", exact=True).wait_for()
    page.get_by_role("link", name="Send more").click()
    page.get_by_role("table").get_by_text("stopped").wait_for()
    assert_accessible(page)
