"""Events of a named publisher: its name is written into each, and nothing else of the message changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.amqp.strategies import typed
from tests.support.batches import split_batch, split_single
from tests.support.calls import calls_of

from tidegate.amqp.encode import encode_value
from tidegate.amqp.errors import DecodeError
from tidegate.amqp.message import Header, Message, Properties, decode_message, encode_message, iter_sections
from tidegate.amqp.types import Symbol, UInt
from tidegate.model.errors import InvalidArgumentError
from tidegate.wire.batch import batch_envelope, iter_events, unwrap, wrap_event
from tidegate.wire.publisher import (
    may_pretend,
    published_events,
    rewritten_batch,
    unpublished_events,
)

_NAMED: dict[object, object] = {Symbol("x-opt-publisher"): "p", Symbol("x-opt-partition-key"): "p"}


@pytest.mark.parametrize(
    "message",
    [
        Message(data=(b"x",)),
        Message(Header(durable=True), {"d": UInt(1)}, {"m": 2}, data=(b"x",)),
        Message(
            Header(durable=True),
            {"d": 1},
            {"x-opt-publisher": "another", "x-opt-partition-key": "p", "m": UInt(2)},
            Properties(message_id="id"),
            {"a": "b"},
            (b"x", b"y"),
            footer={"f": 1},
        ),
        Message(delivery_annotations={"d": 1}, value=[1, None]),
    ],
    ids=["data", "annotations", "all", "value"],
)
def test_a_publishers_name_is_all_that_is_added(message: Message) -> None:
    """Protects every section of a publisher's event, and their order, in which receivers look for them."""
    original = decode_message(encode_message(message))
    sections = split_single(encode_message(message))
    published = rewritten_batch(sections, list(filter(None, published_events(sections, "p"))), "p")
    (event,) = iter_events(published.payload, published.lengths)
    codes = [code for code, *_ in iter_sections(event)]
    assert codes == sorted(codes)
    stored = decode_message(bytes(event))
    theirs = {key: value for key, value in original.message_annotations.items() if key not in _NAMED}
    assert typed(dict(stored.message_annotations)) == typed({**theirs, **_NAMED})
    assert typed(replace(stored, message_annotations={})) == typed(replace(original, message_annotations={}))
    assert published.partition_key == "p"


def test_an_event_with_anothers_key_is_refused() -> None:
    """Protects keys that are a publisher's name from events of another publisher."""
    encoded = encode_message(Message(message_annotations={"x-opt-partition-key": "q"}, data=(b"x",)))
    with pytest.raises(InvalidArgumentError, match="not the publisher's name"):
        list(published_events(split_single(encoded), "p"))


_NAME = b"x-opt-publisher"
_BODY = b"\x00\x53\x75\xa0\x04body"
_FORGED = {
    "symbol": b"\xa3\x0f" + _NAME,
    "long symbol": b"\xb3\x00\x00\x00\x0f" + _NAME,
    "string": b"\xa1\x0f" + _NAME,
    "long string": b"\xb1\x00\x00\x00\x0f" + _NAME,
    "binary": b"\xa0\x0f" + _NAME,
    "long binary": b"\xb0\x00\x00\x00\x0f" + _NAME,
}


def _unpublished(message: bytes) -> bytes:
    """As it is stored, where it is not sent to a publisher's address."""
    assert may_pretend(message)
    (event,) = filter(None, unpublished_events(split_batch(batch_envelope() + wrap_event(message))))
    return bytes(unwrap(event))


@pytest.mark.parametrize("key", _FORGED.values(), ids=_FORGED)
def test_a_publisher_that_a_sender_writes_is_taken_out(key: bytes) -> None:
    """Protects receivers: in any encoding of the name, and wherever in the message the section is."""
    mine = encode_value(Symbol("x-mine")) + encode_value(UInt(7))
    entries = key + b"\xa1\x01q" + mine
    forged = b"\x00\x53\x72\xc1" + bytes((len(entries) + 1, 4)) + entries
    kept = b"\x00\x53\x72\xd1" + (len(mine) + 4).to_bytes(4, "big") + b"\0\0\0\x02" + mine
    header = b"\x00\x53\x70\xc0\x02\x01\x41"
    assert _unpublished(header + forged + _BODY) == header + kept + _BODY
    assert _unpublished(_BODY + forged) == kept + _BODY
    alone = b"\x00\x53\x72\xc1" + bytes((len(key) + 4, 2)) + key + b"\xa1\x01q"
    assert _unpublished(alone + _BODY) == _BODY
    assert decode_message(_unpublished(alone + forged + _BODY)).message_annotations == {"x-mine": 7}


def test_the_name_elsewhere_in_an_event_stays() -> None:
    """Protects bodies and properties that have the name in them, and events that are no message."""
    message = Message(
        message_annotations={"x-mine": "x-opt-publisher"},
        application_properties={"x-opt-publisher": "p"},
        data=(b"\x0fx-opt-publisher",),
    )
    assert _unpublished(encode_message(message)) == encode_message(message)
    for encoded in (b"\x0fx-opt-publisher", b"\x00\x53\x72\xa0\x0fx-opt-publisher"):
        assert _unpublished(encoded) == wrap_event(encoded)
    for without in (b"", b"\x0f" * 9, b"x-opt-publisher", encode_message(Message(data=(b"x" * 9,)))):
        assert not may_pretend(without)


@pytest.mark.parametrize(
    "event",
    [
        b"\x00\x53\x73\xc0\x07\x00\x00\x53\x72\xc1\x01\x00" + _BODY,
        b"\x00\x53\x74\xc1\x04\x02\xa1\x00\x41\x41" + _BODY,
        b"\x00\x53\x77\xe0\x02\x00\xa0",
        b"\x00\x53\x73\xc0\x05\x03\x40\x40\x54\x05" + _BODY,
        b"\x00\x53\x74\xc1\x07\x02\xa1\x01k\xa1\x01\xff" + _BODY,
        b"\x00\x53\x75\xa1\x04body",
        _BODY + b"\x00\x53\x75\x40",
    ],
    ids=[
        *("section", "value", "empty array", "property of a wrong type", "no UTF-8"),
        *("text as data", "null as data"),
    ],
)
def test_a_publishers_event_that_clients_read_differently_is_refused(event: bytes) -> None:
    """Protects the name on each publisher's event: it is lost where one is delivered as a body, or cannot be
    decoded for Spark's table."""
    with pytest.raises(DecodeError):
        list(published_events(split_batch(batch_envelope() + wrap_event(event)), "p"))


@pytest.mark.parametrize(
    "name", ["x-opt-publisher", "x-opt-offset", "x-opt-sequence-number", "x-opt-enqueued-time"]
)
def test_each_name_that_receivers_believe_is_looked_for(name: str) -> None:
    """Protects what receivers learn from the service alone; a forwarded event keeps the rest of it."""
    message = encode_message(Message(message_annotations={name: "1", "m": UInt(2)}, data=(b"x",)))
    assert may_pretend(message)
    if name != "x-opt-publisher":
        assert _unpublished(message) == message


@pytest.mark.slow
def test_a_publishers_large_event_is_checked_in_steps() -> None:
    """Protects the event loop: to check and decode 230,000 values in one step took 150 ms."""
    large = encode_message(Message(value=[None] * 30_000))
    first, second, stored = published_events(split_single(large), "p")
    assert (first, second) == (None, None)
    assert decode_message(unwrap(stored or b"")).value == [None] * 30_000
    with pytest.raises(DecodeError, match="more than 40000 values"):
        list(published_events(split_single(encode_message(Message(value=[None] * 50_000))), "p"))


def test_an_event_of_many_sections_is_rewritten_in_steps() -> None:
    """Protects the event loop: 9,998 empty data sections took 22 ms in one step, a publisher's 50 ms."""
    entries = _FORGED["symbol"] + b"\xa1\x01q"
    forged = b"\x00\x53\x72\xc1" + bytes((len(entries) + 1, 2)) + entries
    body = b"\x00\x53\x75\xa0\x00" * 9_998
    *steps, event = unpublished_events(split_batch(batch_envelope() + wrap_event(forged + body)))
    assert steps == [None] * 100
    assert event == wrap_event(body)
    few, many = (split_batch(batch_envelope() + wrap_event(body[: 5 * count])) for count in (1_000, 1_001))
    *steps, event = published_events(few, "p")
    assert len(steps) >= 10
    assert decode_message(unwrap(event or b"")).data == (b"",) * 1_000
    with pytest.raises(DecodeError, match="more than 1,000 sections"):
        list(published_events(many, "p"))


def test_a_publishers_annotations_cost_little() -> None:
    """Protects neighbours: all sections of annotations in an event were decoded, half a second of 1 MB."""
    section = b"\x00\x53\x72" + encode_value({Symbol("a"): [[]] * 4_000})
    event = section * 200 + _BODY

    def run() -> None:
        with pytest.raises(DecodeError, match="a second section 0x72"):
            list(published_events(split_batch(batch_envelope() + wrap_event(event)), "p"))

    assert calls_of(run) < 20_000
