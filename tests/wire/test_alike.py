"""Events that clients read differently or not at all: all find the service's annotations."""

from __future__ import annotations

import re
import struct
from functools import partial

import pytest
from azure.eventhub._pyamqp._decode import decode_payload
from hypothesis import given
from hypothesis import strategies as st
from tests.amqp.strategies import common_scalars, scalars, texts, typed, values
from tests.support.batches import split_batch
from tests.wire.hiding import BODY, EVENTS, HIDDEN, delivered, map_of
from tests.wire.undecodable import UNDECODABLE

from tidegate.amqp.encode import encode_value
from tidegate.amqp.errors import DecodeError
from tidegate.amqp.message import HEADER, Message, Properties, decode_message, encode_message, iter_sections
from tidegate.amqp.types import Array, Char, Decimal, Described, Symbol, UInt, ULong
from tidegate.model.hub_properties import PartitionEnds
from tidegate.wire import alike
from tidegate.wire.alike import Steps, are_plain_fields, are_plain_properties, check_alike
from tidegate.wire.batch import batch_envelope, wrap_event
from tidegate.wire.delivery import STEPS_AT_ONCE, encode_runtime_metrics, event_deliveries
from tidegate.wire.publisher import published_events, rewritten_batch

_METRICS = encode_runtime_metrics(PartitionEnds("hub", "0", 0, 5, "4", 1), retrieval_time_ms=2)


@pytest.mark.parametrize("metrics", [b"", _METRICS], ids=["plain", "metrics"])
@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
@pytest.mark.slow
def test_the_official_client_reads_the_services_annotations(event: bytes, metrics: bytes) -> None:
    """Protects receivers from senders that forge or erase an event's position, publisher or key."""
    message = decode_payload(memoryview(delivered(event, metrics)))
    annotations = message.message_annotations
    assert annotations is not None
    assert annotations[b"x-opt-sequence-number"] == 5
    assert annotations[b"x-opt-offset"] == b"5"
    assert not {b"x-opt-publisher", b"x-opt-partition-key", b"__proto__"} & annotations.keys()


@pytest.mark.parametrize("event", HIDDEN.values(), ids=HIDDEN)
@pytest.mark.slow
def test_a_hiding_event_is_delivered_whole_as_a_body(event: bytes) -> None:
    """Protects the sender's bytes: nothing of a strange event is lost."""
    assert decode_message(delivered(event)).data == (event,)


@pytest.mark.slow
@pytest.mark.parametrize("metrics", [b"", _METRICS], ids=["plain", "metrics"])
@pytest.mark.parametrize("event", UNDECODABLE.values(), ids=UNDECODABLE)
def test_an_event_that_a_client_cannot_decode_is_delivered_whole_as_a_body(
    event: bytes, metrics: bytes
) -> None:
    """Protects readers: a client that cannot decode an event gets nothing more of its partition."""
    delivery = delivered(event, metrics)
    assert decode_message(delivery).data == (event,)
    message = decode_payload(memoryview(delivery))
    assert message.message_annotations is not None
    assert message.message_annotations[b"x-opt-sequence-number"] == 5
    assert message.data == [event]


@pytest.mark.parametrize("metrics", [b"", _METRICS], ids=["plain", "metrics"])
def test_every_right_type_is_delivered_as_it_was_sent(metrics: bytes) -> None:
    """Protects the sender's fields and properties, in whatever encoding of their types."""
    ids = (b"\xa1\x01i", b"\xb1\x00\x00\x00\x01i", b"\xa0\x01i", b"\x44", b"\x53\x01", b"\x80" + bytes(8))
    for message_id in (*ids, b"\x98" + bytes(16), b"\xa1\x02\xc3\xa9", b"\xa1\x60" + b"i" * 96, b"\x40"):
        fields = (
            *(message_id, b"\xa0\x01\xff", b"\xa1\x01t", b"\xa1\x01s", b"\xa1\x01r", message_id),
            *(b"\xa3\x01c", b"\xa3\x01e", b"\x83" + bytes(8), b"\x83\xff" + bytes(7)),
            *(b"\xa1\x01g", b"\x52\x01", b"\xa1\x01r"),
        )
        for count in range(14):
            values = b"".join(fields[:count])
            event = (
                b"\x00\x53\x70\xc0\x0b\x05\x56\x01\x50\x09\x43\x42\x70" + bytes(4) + b"\x00\x53\x73\xd0"
                b"%b%b%b" % ((len(values) + 4).to_bytes(4, "big"), count.to_bytes(4, "big"), values) + BODY
            )
            assert delivered(event, metrics).endswith(event[event.index(b"\x00\x53\x73") :])


@pytest.mark.slow
@pytest.mark.parametrize("metrics", [b"", _METRICS], ids=["plain", "metrics"])
@given(st.dictionaries(texts, scalars, max_size=5))
def test_plain_properties_are_delivered_as_they_were_sent(
    metrics: bytes, properties: dict[object, object]
) -> None:
    """Protects properties in all languages: only a char and decimals make a body of an event."""
    event = encode_message(Message(application_properties=properties, data=(b"body",)))
    received = decode_message(delivered(event, metrics))
    if any(isinstance(value, Char | Decimal) for value in properties.values()):
        assert received.data == (event,)
    else:
        assert received.data == (b"body",)
        assert typed(dict(received.application_properties)) == typed(properties)


_SENT = encode_message(
    Message(
        message_annotations={"x-opt-partition-key": "k", "m": [1, {"a": "b"}]},
        properties=Properties(message_id="id", content_type=Symbol("text/plain")),
        application_properties={"a": 1, "list": [1, [2, "x"], {"k": None}], "text": "t" * 200},
        data=(b"body",),
    )
)


@given(st.lists(st.tuples(st.integers(0, len(_SENT) - 1), st.integers(0, 255)), min_size=1, max_size=4))
@pytest.mark.slow
def test_no_damage_hides_the_services_annotations(changes: list[tuple[int, int]]) -> None:
    """Protects receivers from any change of sizes, counts and constructors: the official client reads every
    event, and in it the service's position."""
    event = bytearray(_SENT)
    for at, byte in changes:
        event[at] = byte
    annotations = decode_payload(memoryview(delivered(bytes(event)))).message_annotations
    assert annotations is not None
    assert annotations[b"x-opt-sequence-number"] == 5
    assert annotations[b"x-opt-offset"] == b"5"


@pytest.mark.slow
@pytest.mark.parametrize(
    "value",
    [
        Described(ULong(0x1234 << 32), [1, "two"]),
        Described(Symbol("com.microsoft:timespan"), {"a": "x"}),
        Array((UInt(1), UInt(2)), UInt),
        Array(("a", "b" * 300), str),
        {"list": [[], {}, [None, True]], "long": "x" * 1000, "wide": list(range(1000))},
        list(range(100_000)),
    ],
    ids=["described", "symbolic", "fixed", "variable", "nested", "long"],
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


@pytest.mark.slow
@given(values)
def test_what_an_encoder_writes_is_alike(value: object) -> None:
    """Protects events of every type but those that clients disagree about."""
    event = encode_message(Message(value=value))
    try:
        check_alike(event, iter_sections(event))
    except DecodeError:
        assert _is_disputed(value)


def _is_disputed(value: object) -> bool:
    match value:
        case Char() | Decimal():
            return True
        case Array():
            refused = (type(None), Described, Array, list, dict, Char, Decimal)
            return not value.items or value.element_type in refused
        case Described():
            number = value.descriptor if isinstance(value.descriptor, ULong) else 2**32
            return number < 2**32 or _is_disputed(value.value)
        case dict():
            return any(isinstance(key, bytes) for key in value) or any(map(_is_disputed, value.values()))
        case list():
            return any(map(_is_disputed, value))
    return False


@pytest.mark.parametrize(
    "event",
    [
        b"\x00\x53\x71" + map_of(b"\x41\x40", 2) + BODY,
        b"\x00\x53\x71\xc0\x02\x01\x41" + BODY,
        b"".join(b"\x00\x53\x72" + map_of(b"\xa3\x02a%c" % number + b"\x41", 2) for number in range(48, 58))
        * 100
        + BODY,
        b"\x00\x53\x74\x40" * 10_000,
        b"\x00\x53\x70\x45" * 9_999 + BODY,
    ],
    ids=["key", "list", "annotations", "sections", "headers"],
)
def test_a_publishers_event_has_its_name_or_is_refused(event: bytes) -> None:
    """Protects receivers, who take an event without a name for one of the hub's own senders."""
    sections = split_batch(batch_envelope() + wrap_event(event))
    try:
        stored = rewritten_batch(sections, list(filter(None, published_events(sections, "p"))), "p")
    except DecodeError:
        return
    (delivery,) = event_deliveries(
        bytes(stored.payload), stored.lengths, first_sequence_number=5, enqueued_time_ms=0
    )
    annotations = decode_payload(memoryview(delivery)).message_annotations
    assert annotations is not None
    assert annotations[b"x-opt-publisher"] == b"p"


@pytest.mark.parametrize("metrics", [b"", _METRICS], ids=["plain", "metrics"])
def test_repeated_sections_before_the_annotations_become_one(metrics: bytes) -> None:
    """Protects Rust's client, which reads seven sections, and Java's, which reads them in order."""
    event = (
        b"\x00\x53\x70\x45" * 7 + b"\x00\x53\x71" + map_of(b"\xa3\x01a\x41", 2) + b"\x00\x53\x71\x40" + BODY
    )
    delivery = delivered(event, metrics)
    assert [code for code, *_ in iter_sections(delivery)] == [0x70, 0x71, 0x72, 0x75]
    assert decode_message(delivery).delivery_annotations["a"] is True


_fields = st.sampled_from(
    (
        *(b"\x40", b"\xa1\x01i", b"\xa0\x01u", b"\xa3\x01s"),
        *(b"\x83" + bytes(8), b"\x43", b"\x53\x01", b"\x50\x04", b"\x41"),
    )
)


@given(
    st.lists(st.tuples(texts, common_scalars), max_size=3),
    st.lists(_fields, max_size=13),
    st.integers(-1, 1),
    st.integers(-1, 1),
)
@pytest.mark.slow
def test_the_quick_checks_agree_with_the_slow_one(
    entries: list[tuple[str, object]], fields: list[bytes], more: int, bytes_more: int
) -> None:
    """Protects the hot loop's regular expressions: what they let pass is alike."""
    properties = [encode_value(item) for entry in entries for item in entry]
    for code, constructor, quick, items in (
        (0x74, b"\xd1", are_plain_properties, properties),
        (0x73, b"\xd0", are_plain_fields, fields),
        (0x70, b"\xd0", partial(are_plain_fields, code=HEADER), fields),
    ):
        data = b"".join(items) + b"\x41" * 3
        count, end = max(len(items) + more, 0), max(len(data) - 3 + bytes_more, 0)
        head = bytes((0, 0x53, code)) + constructor
        section = head + (end + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + data[:end]
        if quick(data, 0, end, count):
            check_alike(section, iter_sections(section))


def test_too_many_plain_values_are_a_body() -> None:
    """Protects the event loop: a million values in 1 MB took a third of a second at each delivery."""
    event = encode_message(Message(value=[None] * 300_000))
    assert decode_message(delivered(event)).data == (event,)
    for entries, count, is_body in ((150_000, 300_000, True), (150_000, 10, True), (20_000, 40_000, False)):
        content = b"\xa1\x01k\x41" * entries
        size = (len(content) + 4).to_bytes(4, "big")
        event = b"\x00\x53\x74\xd1" + size + count.to_bytes(4, "big") + content + BODY
        assert delivered(event).endswith(wrap_event(event) if is_body else event)


@pytest.mark.slow
def test_long_lists_are_skipped_in_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the event loop: 230,000 values that were found one by one took 70 ms at each delivery."""
    found: list[bytes] = []
    first = alike._first

    def counted(finder: re.Pattern[bytes], data: bytes, at: int, end: int, count: int) -> list[bytes]:
        matches = first(finder, data, at, end, count)
        found.extend(matches)
        return matches

    monkeypatch.setattr(alike, "_first", counted)
    numbers = [7] * 200_000
    assert decode_message(delivered(encode_message(Message(value=numbers)))).value == numbers
    assert len(found) < 1_000
    event = encode_message(Message(value=["é"] * 60_000))
    assert decode_message(delivered(event)).data == (event,)
    assert len(found) < 1_000


@pytest.mark.slow
def test_runs_end_where_there_are_too_many_values() -> None:
    """Protects the event loop: all runs of a megabyte took 0.17 s at each delivery, before it was refused."""
    event, steps = encode_message(Message(value=[None] * 64 * 15_000)), Steps()
    with pytest.raises(DecodeError, match="20,000"):
        check_alike(event, iter_sections(event), steps)
    assert steps.taken < 20_100
    assert decode_message(delivered(event)).data == (event,)


def test_no_more_is_searched_than_a_count_says() -> None:
    """Protects the event loop: a count that is a lie costs no more than the values that it claims."""
    data = b"\x40" * 100_000
    assert len(alike._first(alike._values(), data, 0, len(data), 5)) == 6


def test_too_many_nested_values_are_a_body() -> None:
    """Protects the event loop: no event costs more than 20,000 steps."""
    event = encode_message(Message(value=[[None]] * 5_001))
    assert decode_message(delivered(event)).data == (event,)
    event = encode_message(Message(value=[[None]] * 4_400))
    assert decode_message(delivered(event)).value == [[None]] * 4_400


def test_many_costly_events_are_not_prepared_at_once() -> None:
    """Protects the event loop: a megabyte of events of many small lists took half a second in one turn."""
    event = wrap_event(encode_message(Message(value=[[None]] * 300)))
    steps = Steps()
    found = event_deliveries(
        event * 100, [len(event)] * 100, first_sequence_number=0, enqueued_time_ms=0, steps=steps
    )
    assert len(found) == 1
    assert STEPS_AT_ONCE <= steps.taken < 2 * STEPS_AT_ONCE


def _empty_properties(count: int) -> bytes:
    entries = b"\xa1\x00\x40" * count
    return b"\x00\x53\x74\xd1" + struct.pack(">II", len(entries) + 4, 2 * count) + entries


def test_many_plain_properties_are_not_checked_at_once() -> None:
    """Protects the event loop: 256 KB of events with 500 empty properties each took 50 ms in one turn. Usual
    events, of up to 20 properties, count nothing."""
    body = b"\x00\x53\x75\xa0\x08 a body "
    for properties, count in ((500, 10), (340, 15), (50, 100), (20, 200)):
        event, steps = wrap_event(_empty_properties(properties) + body), Steps()
        found = event_deliveries(
            event * 200, [len(event)] * 200, first_sequence_number=0, enqueued_time_ms=0, steps=steps
        )
        assert len(found) == count
        assert steps.taken == (count * (2 * properties // 10) if properties > 20 else 0)


@pytest.mark.parametrize(
    "section", [_empty_properties(340), b"\x00\x53\x73\xc0\x01\x00"], ids=["application", "fields"]
)
def test_repeated_properties_are_counted(section: bytes) -> None:
    """Protects the event loop: one event of a megabyte of such sections took 50 to 200 ms. Those within the
    limit are delivered as they were sent."""
    body = b"\x00\x53\x75\xa0\x08 a body "
    steps = Steps()
    event = wrap_event(section * 3 + body)
    (found,) = event_deliveries(event, [len(event)], first_sequence_number=0, enqueued_time_ms=0, steps=steps)
    assert found.endswith(section * 3 + body)
    assert steps.taken >= 3
    many = section * 12_000 + body
    assert decode_message(delivered(many)).data == (many,)
