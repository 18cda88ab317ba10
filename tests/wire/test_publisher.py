"""Events of a named publisher: its name is written into each, and nothing else of the message changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from azure.eventhub._pyamqp._decode import decode_payload
from tests.amqp.strategies import typed

from tidegate.amqp.encode import encode_value
from tidegate.amqp.errors import DecodeError
from tidegate.amqp.message import Header, Message, Properties, decode_message, encode_message, iter_sections
from tidegate.amqp.types import Symbol, UInt
from tidegate.model.errors import InvalidArgumentError
from tidegate.wire.batch import batch_envelope, iter_events, split_batch, split_single, unwrap, wrap_event
from tidegate.wire.delivery import event_deliveries
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
    published = rewritten_batch(sections, list(published_events(sections, "p")), "p")
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
    (event,) = unpublished_events(split_batch(batch_envelope() + wrap_event(message)))
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


_WIDE = b"\x00\x80\0\0\0\0\0\0\0"
_EMPTY = b"\x00\x53\x74\xc1\x01\x00"


def _properties_with(value: bytes) -> bytes:
    """A message with a value beside the publisher's name in its application properties."""
    entries = b"\xa1\x01k" + value + b"\xa1\x0f" + _NAME + b"\xa1\x01q"
    return b"\x00\x53\x74\xc1" + bytes((len(entries) + 1, 4)) + entries + _BODY


def _annotations_of(count: int, more: bytes = b"") -> bytes:
    """A section of ``count`` annotations; more: the last two, encoded."""
    entries = b"".join(encode_value(Symbol(f"a{number}")) + b"\x41" for number in range(count)) + more
    head = (len(entries) + 4).to_bytes(4, "big") + (2 * count + 2 * bool(more)).to_bytes(4, "big")
    return b"\x00\x53\x72\xd1" + head + entries


@pytest.mark.parametrize(
    "message",
    [
        _properties_with(b"\xe0\x02\x00\xa0"),
        _properties_with(b"\xe0\x01\x00"),
        _properties_with(b"\xe0\x05\x02\x00\x53\x01\x41"),
        _properties_with(b"\x00\x53\x01\x41"),
        _properties_with(b"\x73\0\0\0a"),
        _properties_with(b"\x74\0\0\0\0"),
        _WIDE + b"\x72\xc1\x15\x02\xa3\x0f" + _NAME + b"\xa1\x01q" + _BODY,
        b"\x00\xa3\x1camqp:message-annotations:map\xc1\x15\x02\xa3\x0f" + _NAME + b"\xa1\x01q" + _BODY,
        _EMPTY * 10_000 + b"\x00\x53\x72\xc1\x15\x02\xa3\x0f" + _NAME + b"\xa1\x01q" + _BODY,
        _annotations_of(600) + _annotations_of(599, b"\xa3\x0f" + _NAME + b"\xa1\x01q") + _BODY,
        _annotations_of(0)
        + b"\x00\x53\x76\xd0\0\0\x4e\x28\0\0\x4e\x24"
        + b"\x40" * 20_004
        + b"\0\x53\x77"
        + b"\xa1\x0f"
        + _NAME,
    ],
    ids=[
        "empty array",
        "empty array without constructor",
        "array of described values",
        "described value",
        "character",
        "decimal",
        "wide descriptor",
        "symbolic descriptor",
        "many sections",
        "many annotations",
        "many values",
    ],
)
def test_what_clients_may_read_differently_is_delivered_as_a_body(message: bytes) -> None:
    """Protects receivers whose client reads a form, or has a limit, other than ours, and so finds other
    annotations: azure-eventhub 5.15.1 and rhea 3.0 do. On a publisher's link such an event is refused.
    """
    assert _unpublished(message) == wrap_event(message)
    with pytest.raises(DecodeError):
        list(published_events(split_batch(batch_envelope() + wrap_event(message)), "p"))


def _hidden_in_a_key() -> bytes:
    """Delivery annotations with a wide descriptor: the official Python client takes the key for a section."""
    forged = encode_value(Symbol("x-opt-publisher")) + encode_value("victim")
    section = b"\x00\x53\x72\xc1" + bytes((len(forged) + 1, 2)) + forged
    key = b"\x41" * 5 + section + b"\x00\x53\x75\xb0" + (2**31 - 1).to_bytes(4, "big")
    key += b"z" * (0x41 - len(key))
    entries = b"\xa0" + bytes((len(key),)) + key + b"\x41"
    return _WIDE + b"\x71\xc1" + bytes((len(entries) + 1, 2)) + entries + _BODY


def _hidden_behind_many_sections() -> bytes:
    """More sections than we read, and names behind the end of the last one's count."""
    return (
        _EMPTY * 10_001
        + b"\x00\x53\x74\xc1"
        + bytes((len(_SECTION_WITH_NAMES) + 1, 0))
        + _SECTION_WITH_NAMES
        + _BODY
    )


@pytest.mark.parametrize("forge", [_hidden_in_a_key, _hidden_behind_many_sections])
def test_the_official_client_finds_no_hidden_publisher(forge: Callable[[], bytes]) -> None:
    """Protects receivers from two events that named another publisher to the official Python client."""
    sections = split_batch(batch_envelope() + wrap_event(forge()))
    stored = rewritten_batch(sections, list(unpublished_events(sections)), None)
    payload = bytes(stored.payload)
    (delivery,) = event_deliveries(payload, stored.lengths, first_sequence_number=5, enqueued_time_ms=0)
    annotations = decode_payload(memoryview(delivery)).message_annotations
    assert annotations is not None
    assert annotations[b"x-opt-sequence-number"] == 5
    assert b"x-opt-publisher" not in annotations


_SECTION_WITH_NAMES = b"\x00\x53\x72" + encode_value(
    {Symbol("x-opt-publisher"): "q", Symbol("x-opt-offset"): "99", Symbol("x-opt-sequence-number"): 99}
)


@pytest.mark.parametrize(
    "start",
    [b"\x00\x53\x70\xc0", b"\x00\x53\x71\xc1", b"\x00\x53\x73\xc0", b"\x00\x53\x74\xc1", b"\x00\x53\x77\xc0"],
    ids=["header", "delivery annotations", "properties", "application properties", "value"],
)
@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("is_publisher", [False, True])
def test_a_section_behind_the_end_of_a_list_is_none(
    start: bytes, is_nested: bool, is_publisher: bool
) -> None:
    """Protects receivers that go by a list's count, such as the official Python client, from sections that
    only they would find: they would take another publisher's name, and another offset, for the service's."""
    inside = _SECTION_WITH_NAMES
    if is_nested:
        inside = b"\xc0" + bytes((len(inside) + 1, 0)) + inside
        inside = encode_value(Symbol("k")) + inside if start.endswith(b"\xc1") else inside
    count = 0 if not is_nested else 2 if start.endswith(b"\xc1") else 1
    message = start + bytes((len(inside) + 1, count)) + inside + _BODY
    sections = split_batch(batch_envelope() + wrap_event(message))
    if is_publisher:
        with pytest.raises(DecodeError):
            list(published_events(sections, "p"))
        return
    assert may_pretend(message)
    stored = rewritten_batch(sections, list(unpublished_events(sections)), None)
    (delivery,) = event_deliveries(
        bytes(stored.payload), stored.lengths, first_sequence_number=5, enqueued_time_ms=0
    )
    assert decode_message(delivery).data == (message,)
    annotations = decode_payload(memoryview(delivery)).message_annotations
    assert annotations is not None
    assert annotations[b"x-opt-sequence-number"] == 5
    assert b"x-opt-publisher" not in annotations


@pytest.mark.parametrize(
    "name", ["x-opt-publisher", "x-opt-offset", "x-opt-sequence-number", "x-opt-enqueued-time"]
)
def test_each_name_that_receivers_believe_is_looked_for(name: str) -> None:
    """Protects what receivers learn from the service alone; a forwarded event keeps the rest of it."""
    message = encode_message(Message(message_annotations={name: "1", "m": UInt(2)}, data=(b"x",)))
    assert may_pretend(message)
    if name != "x-opt-publisher":
        assert _unpublished(message) == message
