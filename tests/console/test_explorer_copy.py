"""A copy of an event, sent by the console's form: the official SDK receives both as the same."""

from __future__ import annotations

from array import array
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from azure.eventhub import EventData as SdkEvent
from azure.eventhub.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from tests.console.explorer_support import send_events, words_of
from tests.console.support import PlainBrowser, assert_accessible
from tests.interop.support import read, target_of

from tidegate.amqp.message import Header, Message, Properties, decode_message, encode_message
from tidegate.amqp.types import Timestamp, ULong
from tidegate.model.events import EventData
from tidegate.server.app import TidegateServer
from tidegate.testing.hub import HubService
from tidegate.wire.batch import unwrap, wrap_event

if TYPE_CHECKING:
    from playwright.sync_api import Page

_UUID = UUID("12345678-1234-5678-1234-567812345678")
_TYPED: dict[str | bytes, Any] = {
    # What the SDK sends of Python's types, and of AMQP's where it is told them.
    "text": "a=b",
    "number": 7,
    "real": 21.5,
    "yes": True,
    "no": False,
    "nothing": None,
    "bytes": b"\x00\xff",
    "id": _UUID,
    "time": datetime(2026, 11, 22, 7, 25, 0, 123000, UTC),
    "long": {"TYPE": "LONG", "VALUE": 7},
    "large": {"TYPE": "LONG", "VALUE": 2**62},
    "ulong": {"TYPE": "ULONG", "VALUE": 2**64 - 1},
    "uint": {"TYPE": "UINT", "VALUE": 7},
    "ushort": {"TYPE": "USHORT", "VALUE": 7},
    "ubyte": {"TYPE": "UBYTE", "VALUE": 7},
    "short": {"TYPE": "SHORT", "VALUE": -7},
    "byte": {"TYPE": "BYTE", "VALUE": -7},
    "float": {"TYPE": "FLOAT", "VALUE": 0.1},
    "symbol": {"TYPE": "SYMBOL", "VALUE": b"a symbol"},
    "epoch": {"TYPE": "TIMESTAMP", "VALUE": -1},
    # What a line of a form cannot hold as it stands.
    "lines": "line 1\nline 2\r\n\t<b>&amp;",
    "a:int": '"7"',
    "x=y": "",
    " blanks ": " ",
    "": "\x00",
}


class _Fields(HTMLParser):
    """What a browser would send of the form whose address ends in ``/send``."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.fields: dict[str, str] = {}
        self._is_inside = False
        self._open = ""  # the text area or select that is being read
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "form":
            self._is_inside = (given.get("action") or "").endswith("/explorer/send")
        elif self._is_inside and tag == "input":
            self.fields[given["name"] or ""] = given.get("value") or ""
        elif self._is_inside and tag in ("textarea", "select"):
            self._open = given["name"] or ""
            self.fields[self._open] = ""
        elif self._is_inside and tag == "option" and "selected" in given:
            self.fields[self._open] = given["value"] or ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea" and self._open:
            self.fields[self._open] = self.fields[self._open].removeprefix("\n").replace("\n", "\r\n")
        if tag in ("textarea", "select"):
            self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open and self._open != "encoding":
            self.fields[self._open] += data


@pytest.fixture
def hub(service: HubService) -> str:
    """A hub of one partition."""
    return service.create_hub(partition_count=1)


def _copy(browser: PlainBrowser, hub: str, number: int) -> str:
    """Send a copy as the form proposes it; returns the words of the form."""
    form = browser.get(f"/hubs/{hub}/explorer/send?copy=0.{number}")
    assert form.status == 200
    sent = browser.post(f"/hubs/{hub}/explorer/send", _Fields(form.text).fields)
    assert sent.status == 303, words_of(sent)
    return words_of(form)


def _stored(service: HubService, hub: str) -> list[Message]:
    """The events of the hub with all their types."""
    return [decode_message(unwrap(section)) for section in _sections(service, hub)]


def _sections(service: HubService, hub: str) -> list[bytes]:
    """The events of the hub as they are stored."""

    async def sections(server: TidegateServer) -> list[bytes]:
        found = []
        for batch in await server.broker.event_hub(hub).partition("0").read(0, bytes_max=1_000_000):
            payload = bytes(batch.payload)
            for length in batch.lengths:
                found.append(payload[:length])
                payload = payload[length:]
        return found

    return service.call(sections)


def _typed(values: Any) -> dict[object, tuple[type, object]]:
    return {name: (type(value), value) for name, value in dict(values).items()}


@pytest.mark.sdk
@pytest.mark.parametrize(
    "identity",
    [
        {"message_id": "m 1", "correlation_id": _UUID, "user_id": b"\x00u"},
        {"message_id": b"\x00m", "correlation_id": 2**63, "group_sequence": 7},
    ],
    ids=["text-and-uuid", "bytes-and-ulong"],
)
def test_a_copy_is_received_as_the_event_is(
    service: HubService, hub: str, plain_browser: PlainBrowser, identity: dict[str, Any]
) -> None:
    """All application and standard properties that the SDK can send, with their types; key and body, too."""
    standard = AmqpMessageProperties(  # type: ignore[no-untyped-call]
        content_type="application/json",
        content_encoding="br",
        to="to",
        subject="a subject\nof two lines",
        reply_to="reply",
        group_id="",
        reply_to_group_id="g",
        absolute_expiry_time=2_000_000_000_123,
        creation_time=1_700_000_000_123,
        **identity,
    )
    event = AmqpAnnotatedMessage(
        data_body=b'{"a": 1}\n', application_properties=dict(_TYPED), properties=standard, annotations={}
    )
    target = target_of(service, "plain")
    with target.producer(hub) as producer:
        producer.send_batch([event], partition_key="key")
    words = _copy(plain_browser, hub, 0)
    assert "with their types" in words
    assert "does not carry over" not in words, words.partition("carry over")[2][:300]

    first, second = read(target.consumer(hub), 2)
    assert _typed(second.properties) == _typed(first.properties)
    assert len(second.properties) == len(_TYPED)
    for name in ("content_type", "message_id", "correlation_id", "partition_key"):
        assert getattr(second, name) == getattr(first, name)
        assert getattr(second, name) is not None
    raw = [received.raw_amqp_message.properties for received in (first, second)]
    assert raw[0] is not None
    assert raw[1] is not None
    assert dict(raw[1].items()) == dict(raw[0].items())
    assert second.body_as_str() == first.body_as_str() == '{"a": 1}\n'

    stored = _stored(service, hub)
    assert _typed(stored[1].application_properties) == _typed(stored[0].application_properties)
    assert {kind.__name__ for kind, _ in _typed(stored[0].application_properties).values()} >= {
        "int", "Int", "UInt", "ULong", "UShort", "UByte", "Short", "Byte", "Float", "float", "Timestamp",
        "bool", "NoneType", "bytes", "UUID", "Symbol", "str",
    }  # fmt: skip
    assert stored[1].properties == stored[0].properties
    assert stored[1].header == stored[0].header
    assert stored[1].message_annotations == stored[0].message_annotations
    for known in (stored[0].properties, stored[1].properties):
        assert isinstance(known, Properties)
        assert [type(known.message_id), type(known.correlation_id)] == [
            type(stored[0].properties.message_id if stored[0].properties else None),
            type(stored[0].properties.correlation_id if stored[0].properties else None),
        ]


@pytest.mark.programs
@pytest.mark.sdk
def test_a_browser_sends_the_same_copy(service: HubService, hub: str, console_page: Page) -> None:
    """Its text areas change no line and no blank; the form with all its words is accessible."""
    standard = AmqpMessageProperties(subject="\n s ", message_id=_UUID)  # type: ignore[no-untyped-call]
    event = AmqpAnnotatedMessage(
        data_body=b"\n\n body \n",
        application_properties=dict(_TYPED),
        properties=standard,
        annotations={"x-opt-mine": 1},
    )
    with target_of(service, "plain").producer(hub) as producer:
        producer.send_event(event)
    page = console_page
    page.goto(f"/hubs/{hub}/explorer/send?copy=0.0")
    page.get_by_text("the message annotation x-opt-mine").wait_for()
    assert_accessible(page)
    page.get_by_role("button", name="Send", exact=True).click()
    page.get_by_text("The event is stored").wait_for()
    first, second = _stored(service, hub)
    assert _typed(second.application_properties) == _typed(first.application_properties)
    assert (second.properties, second.header, second.data) == (first.properties, first.header, first.data)


def test_a_copy_of_a_copy_is_the_same_bytes(
    service: HubService, hub: str, plain_browser: PlainBrowser
) -> None:
    """What the console writes, it writes again."""
    send_events(
        service, hub, EventData(b"\x00body", {"n": 1, "t": "x", "at": datetime(2026, 1, 1, tzinfo=UTC)})
    )
    _copy(plain_browser, hub, 0)
    _copy(plain_browser, hub, 1)

    async def payloads(server: TidegateServer) -> list[bytes]:
        batches = await server.broker.event_hub(hub).partition("0").read(0, bytes_max=1_000_000)
        return [bytes(batch.payload) for batch in batches]

    assert len(set(service.call(payloads)[1:])) == 1


@pytest.mark.sdk
def test_what_a_copy_lacks_is_said(service: HubService, hub: str, plain_browser: PlainBrowser) -> None:
    """Deliveries, annotations of the sender, and a body of values: the page names them beside the form."""
    message = AmqpAnnotatedMessage(
        value_body={"a": 1},
        header=AmqpMessageHeader(priority=7, durable=True, delivery_count=1),  # type: ignore[no-untyped-call]
        annotations={"x-opt-mine": 1},
        application_properties={"list": [1, 2], "kept": 1},
    )
    with target_of(service, "plain").producer(hub) as producer:
        producer.send_event(message)
    words = _copy(plain_browser, hub, 0)
    for lost in (
        "that its body is an AMQP value, which becomes JSON in bytes",
        "what its header says of earlier deliveries",
        "the message annotation x-opt-mine",
        "the property list (list)",
    ):
        assert lost in words, lost
    copied = _stored(service, hub)[1]
    assert copied.data == (b'{"a": 1}',)
    assert copied.header == Header(priority=7, durable=True)
    assert list(copied.application_properties) == ["kept"]


def test_a_copy_of_a_half_garbled_message(service: HubService, hub: str, plain_browser: PlainBrowser) -> None:
    """Its subject is a number: what is intact is copied, and the page says what is not."""
    subject = b"\x00\x53\x73\xc0\x06\x04\x40\x40\x40\x52\x07"
    properties: dict[object, object] = {
        "n": 7,
        "large": ULong(2**64 - 1),
        "at": Timestamp(-1),
        "real": 0.5,
        "list": [1],
    }
    encoded = subject + encode_message(Message(application_properties=properties, data=(b"body",)))
    section = wrap_event(encoded)

    async def store(server: TidegateServer) -> None:
        await server.broker.event_hub(hub).partition("0").append(section, array("I", (len(section),)))

    service.call(store)
    words = _copy(plain_browser, hub, 0)
    assert "its standard properties, its header, its annotations and the types of its properties" in words
    assert "the property list (list)" in words
    copied = decode_message(unwrap(_sections(service, hub)[1]))
    assert copied.data == (b"body",)
    del properties["list"]
    assert _typed(copied.application_properties) == _typed(properties)
    assert copied.properties is None


@pytest.mark.sdk
def test_of_much_that_a_copy_lacks_the_first_is_said(
    service: HubService, hub: str, plain_browser: PlainBrowser
) -> None:
    """A list as long as an event is no page."""
    with target_of(service, "plain").producer(hub) as producer:
        producer.send_event(
            AmqpAnnotatedMessage(data_body=b"x", annotations={f"x-opt-{number}": 1 for number in range(1000)})
        )
    words = _copy(plain_browser, hub, 0)
    assert "x-opt-19" in words
    assert "x-opt-20" not in words
    assert "and 980 more" in words


@pytest.mark.sdk
def test_types_are_shown(service: HubService, hub: str, plain_browser: PlainBrowser) -> None:
    """An event's page names the types as the form takes them."""
    typed = {"n": {"TYPE": "LONG", "VALUE": 7}, "at": {"TYPE": "TIMESTAMP", "VALUE": 0}, "t": "x"}
    with target_of(service, "plain").producer(hub) as producer:
        event = SdkEvent("x")
        event.properties = typed  # type: ignore[assignment]  # the SDK's own way to name a type
        producer.send_event(event)
    words = words_of(plain_browser.get(f"/hubs/{hub}/explorer/events/0/0"))
    for shown in ("n 7 long", "at 1970-01-01T00:00:00+00:00 timestamp", "t x string"):
        assert shown in words
