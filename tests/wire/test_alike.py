"""Events whose sizes and counts disagree: whatever is in them, clients find the service's annotations."""

from __future__ import annotations

import pytest
from azure.eventhub._pyamqp._decode import decode_payload
from hypothesis import given
from hypothesis import strategies as st
from tests.amqp.strategies import common_scalars, typed, values
from tests.wire.hiding import BODY, EVENTS, HIDDEN, delivered, map_of

from tidegate.amqp.encode import encode_value
from tidegate.amqp.errors import DecodeError
from tidegate.amqp.message import Message, Properties, decode_message, encode_message, iter_sections
from tidegate.amqp.types import Array, Char, Described, Symbol, UInt, ULong
from tidegate.model.partition_ends import PartitionEnds
from tidegate.wire.alike import are_plain, check_alike
from tidegate.wire.delivery import encode_runtime_metrics

_METRICS = encode_runtime_metrics(PartitionEnds("hub", "0", 0, 5, "4", 1), retrieval_time_ms=2)


@pytest.mark.parametrize("metrics", [b"", _METRICS], ids=["plain", "metrics"])
@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_the_official_client_reads_the_services_annotations(event: bytes, metrics: bytes) -> None:
    """Protects receivers from senders that forge or erase an event's position, publisher or key."""
    message = decode_payload(memoryview(delivered(event, metrics)))
    annotations = message.message_annotations
    assert annotations is not None
    assert annotations[b"x-opt-sequence-number"] == 5
    assert annotations[b"x-opt-offset"] == b"5"
    assert not {b"x-opt-publisher", b"x-opt-partition-key", b"__proto__"} & annotations.keys()


@pytest.mark.parametrize("event", HIDDEN.values(), ids=HIDDEN)
def test_a_hiding_event_is_delivered_whole_as_a_body(event: bytes) -> None:
    """Protects the sender's bytes: nothing of a strange event is lost."""
    assert decode_message(delivered(event)).data == (event,)


_SENT = encode_message(
    Message(
        message_annotations={"x-opt-partition-key": "k", "m": [1, {"a": "b"}]},
        properties=Properties(message_id="id", content_type=Symbol("text/plain")),
        application_properties={"a": 1, "list": [1, [2, "x"], {"k": None}], "text": "t" * 200},
        data=(b"body",),
    )
)


@given(st.lists(st.tuples(st.integers(0, len(_SENT) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_no_damage_hides_the_services_annotations(changes: list[tuple[int, int]]) -> None:
    """Protects receivers from any change of sizes, counts and constructors: what the official client can
    read has the service's position, and an event that it cannot read fails there."""
    event = bytearray(_SENT)
    for at, byte in changes:
        event[at] = byte
    delivery = delivered(bytes(event))
    try:
        annotations = decode_payload(memoryview(delivery)).message_annotations
    except Exception:
        return
    assert annotations is not None
    assert annotations[b"x-opt-sequence-number"] == 5
    assert annotations[b"x-opt-offset"] == b"5"


@pytest.mark.parametrize(
    "value",
    [
        Described(ULong(1), [1, "two"]),
        Described(Symbol("d"), {"a": Char("x")}),
        Array((UInt(1), UInt(2)), UInt),
        Array(("a", "b" * 300), str),
        Array(([1], [], ["x"]), list),
        {"list": [[], {}, [None, True]], "long": "x" * 1000, "wide": list(range(1000))},
        list(range(100_000)),
    ],
    ids=["described", "symbolic", "fixed", "variable", "lists", "nested", "long"],
)
def test_unusual_events_are_delivered_as_they_are(value: object) -> None:
    """Protects AMQP values of every kind from being taken for damage."""
    message = Message(application_properties={"p": value}, value=value)
    received = decode_message(delivered(encode_message(message)))
    assert typed(received.value) == typed(value)
    assert typed(dict(received.application_properties)) == typed({"p": value})


@pytest.mark.parametrize("descriptor", [b"\x80" + bytes(7), b"\xa3\x1camqp:message-annotations:map"])
def test_a_descriptor_of_another_form_becomes_the_usual_one(descriptor: bytes) -> None:
    """Protects the official Python client, which reads nothing else."""
    head = b"\x00" + descriptor + (b"\x72" if len(descriptor) == 8 else b"")
    event = head + map_of(encode_value(Symbol("mine")) + encode_value(1), 2) + BODY
    annotations = decode_payload(memoryview(delivered(event))).message_annotations
    assert annotations is not None
    assert annotations[b"mine"] == 1
    assert annotations[b"x-opt-sequence-number"] == 5


@given(values)
def test_what_an_encoder_writes_is_alike(value: object) -> None:
    """Protects events of every type but the two that clients disagree about."""
    event = encode_message(Message(value=value))
    try:
        check_alike(event, iter_sections(event))
    except DecodeError:
        assert _has_disputed_array(value)


def _has_disputed_array(value: object) -> bool:
    match value:
        case Array():
            return not value.items or value.element_type in (type(None), Described) or _any(value.items)
        case Described():
            return _has_disputed_array(value.descriptor) or _has_disputed_array(value.value)
        case dict():
            return _any([*value.keys(), *value.values()])
        case list() | tuple():
            return _any(value)
    return False


def _any(items: object) -> bool:
    assert isinstance(items, (list, tuple))
    return any(_has_disputed_array(item) for item in items)


@given(st.lists(common_scalars, max_size=5), st.integers(-1, 1), st.integers(-1, 1))
def test_the_quick_check_agrees_with_the_slow_one(items: list[object], more: int, bytes_more: int) -> None:
    """Protects the hot loop's regular expression: what it lets pass is alike."""
    data = b"".join(map(encode_value, items)) + b"\x41" * 3
    count, end = len(items) + more, len(data) - 3 + bytes_more
    size = end + 4
    value = b"\x00\x53\x77\xd0" + size.to_bytes(4, "big") + max(count, 0).to_bytes(4, "big") + data[:end]
    if are_plain(data, 0, end, count):
        check_alike(value, iter_sections(value))
        assert more == bytes_more  # an item of one byte more or less is alike, too
    elif more == bytes_more == 0:
        assert any(len(encode_value(item)) > 129 for item in items)


def test_too_many_nested_values_are_a_body() -> None:
    """Protects the event loop: no event costs more than 20,000 steps."""
    event = encode_message(Message(value=[[None]] * 20_001))
    assert decode_message(delivered(event)).data == (event,)
    event = encode_message(Message(value=[[None]] * 9_000))
    assert decode_message(delivered(event)).value == [[None]] * 9_000
