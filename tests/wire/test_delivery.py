"""Deliveries: annotations spliced in, everything of the producer's kept byte for byte."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest
from azure.eventhub._pyamqp.message import Header as TheirHeader
from azure.eventhub._pyamqp.message import Message as TheirMessage
from azure.eventhub._pyamqp.message import Properties as TheirProperties
from tests.amqp.strategies import typed
from tests.support.batches import split_batch
from tests.support.responses import section_lengths
from tests.wire.official_client import batch_payload, event, message_payload, received

from tidegate.amqp.encode import encode_value
from tidegate.amqp.errors import DecodeError
from tidegate.amqp.message import (
    NO_VALUE,
    Header,
    Message,
    Properties,
    decode_message,
    encode_message,
    iter_sections,
)
from tidegate.amqp.types import Byte, Symbol, Timestamp, UInt
from tidegate.model.events import EventData
from tidegate.model.hub_properties import PartitionEnds
from tidegate.wire.batch import wrap_event
from tidegate.wire.delivery import batched_delivery_prefix, encode_runtime_metrics, event_deliveries
from tidegate.wire.encoded_events import EncodedEvents, events_of_batch, events_of_deliveries
from tidegate.wire.event_codec import encode_event

TIME_MS = 1_700_000_000_123
METRICS = encode_runtime_metrics(
    PartitionEnds("hub", "0", 0, 100, "99", TIME_MS + 5), retrieval_time_ms=TIME_MS + 6
)

MESSAGES = {
    "empty": Message(),
    "data": Message(data=(b"x" * 300,)),
    "two data sections": Message(data=(b"a", b"b")),
    "value": Message(value=None),
    "sequence": Message(sequences=([1, "a"],)),
    "header": Message(Header(durable=True), data=(b"x",)),
    "header alone": Message(Header(durable=True)),
    "partition key": Message(Header(), message_annotations={"x-opt-partition-key": "k"}, data=(b"",)),
    "long partition key": Message(message_annotations={"x-opt-partition-key": "k" * 250}, data=(b"",)),
    "other annotations": Message(message_annotations={"a": UInt(7), "b": [1, None]}, data=(b"x",)),
    "opt annotation": Message(message_annotations={"x-opt-mine": Byte(7)}, data=(b"x",)),
    "properties": Message(
        properties=Properties(message_id=UUID(int=5), content_type=Symbol("t")), data=(b"x",)
    ),
    "application properties": Message(
        application_properties={"a": Timestamp(5), "z": None}, data=(b"x" * 9,)
    ),
    "properties, no body": Message(application_properties={"a": 1}),
    "large properties": Message(application_properties={"a": "x" * 300}, data=(b"x" * 9,)),
    "delivery annotations": Message(Header(), {"d": 1}, {"m": 2}, data=(b"x",)),
    "delivery annotations alone": Message(delivery_annotations={"d": 1}, value="x"),
    "all": Message(
        Header(durable=True),
        {"d": 1},
        {"x-opt-partition-key": "k", "m": 2},
        Properties(message_id="m"),
        {"a": "b"},
        (b"x",),
        footer={"f": 1},
    ),
}


def _deliver(message: bytes, sequence_number: int = 16, metrics: bytes = b"") -> Message:
    stored = wrap_event(message)
    (payload,) = event_deliveries(
        stored,
        [len(stored)],
        first_sequence_number=sequence_number,
        enqueued_time_ms=TIME_MS,
        metric_entries=metrics,
    )
    codes = [code for code, *_ in iter_sections(payload)]
    assert codes.count(0x72) == 1
    assert codes.count(0x71) <= 1
    assert codes == sorted(codes)  # proton-j and others read sections in this order alone
    return decode_message(payload)


def _ours(sequence_number: int) -> dict[object, object]:
    return {
        Symbol("x-opt-enqueued-time"): Timestamp(TIME_MS),
        Symbol("x-opt-sequence-number"): sequence_number,
        Symbol("x-opt-offset"): str(sequence_number),
    }


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("sequence_number", [0, 9, 2**40])
@pytest.mark.parametrize("metrics", [b"", METRICS], ids=["plain", "metrics"])
@pytest.mark.slow
def test_nothing_of_the_producers_message_changes(name: str, sequence_number: int, metrics: bytes) -> None:
    """Protects every section and type of what was sent, and the three annotations added to it."""
    original = decode_message(encode_message(MESSAGES[name]))
    delivered = _deliver(encode_message(original), sequence_number, metrics)
    assert typed(dict(delivered.message_annotations)) == typed(
        {**original.message_annotations, **_ours(sequence_number)}
    )
    if metrics:
        assert delivered.delivery_annotations == {
            **original.delivery_annotations,
            "last_enqueued_sequence_number": 99,
            "last_enqueued_offset": "99",
            "last_enqueued_time_utc": TIME_MS + 5,
            "runtime_info_retrieval_time_utc": TIME_MS + 6,
        }
    assert typed(replace(delivered, message_annotations={}, delivery_annotations={})) == typed(
        replace(original, message_annotations={}, delivery_annotations={})
    )
    if not metrics:
        assert delivered.delivery_annotations == original.delivery_annotations


def test_a_forwarded_event_gets_new_annotations_and_keeps_no_old_ones() -> None:
    """Protects forwarded events from two sequence numbers, of which clients take either."""
    once = event_deliveries(
        stored := wrap_event(encode_event(EventData(b"x"), "key")),
        [len(stored)],
        first_sequence_number=7,
        enqueued_time_ms=1,
    )[0]
    twice = _deliver(once, 8)
    assert typed(dict(twice.message_annotations)) == typed({Symbol("x-opt-partition-key"): "key", **_ours(8)})
    with_metrics = _deliver(
        encode_message(Message(delivery_annotations={"last_enqueued_offset": "1"}, data=(b"x",))), 8, METRICS
    )
    assert with_metrics.delivery_annotations["last_enqueued_offset"] == "99"


def test_the_official_clients_order_is_kept_and_its_annotations_merged() -> None:
    """Protects messages of azure-eventhub 5.15.1, whose delivery annotations come after the footer."""
    payload = message_payload(
        TheirMessage(
            header=TheirHeader(durable=True),
            delivery_annotations={b"d": 1},
            properties=TheirProperties(message_id="m"),
            application_properties={"a": 1},
            data=[b"x"],
            footer={b"f": 2},
        )
    )
    plain = _deliver(payload)
    assert (plain.delivery_annotations, plain.footer, plain.data) == ({"d": 1}, {"f": 2}, (b"x",))
    merged = _deliver(payload, metrics=METRICS)
    assert merged.delivery_annotations["d"] == 1
    assert merged.delivery_annotations["last_enqueued_sequence_number"] == 99


def test_the_official_client_reads_what_it_is_delivered() -> None:
    """Protects azure-eventhub 5.15.1's consumer: position, key, properties, body and metrics."""
    sections = split_batch(batch_payload([event(b"one", n=5), event(b"x" * 400)], partition_key="k"))
    deliveries = event_deliveries(
        sections.payload,
        sections.lengths,
        first_sequence_number=9,
        enqueued_time_ms=TIME_MS,
        metric_entries=METRICS,
    )
    first, second = (received(payload) for payload in deliveries)
    assert (first.sequence_number, first.offset, first.partition_key) == (9, "9", b"k")
    assert (second.sequence_number, second.offset) == (10, "10")
    assert first.properties == {b"n": 5}
    assert second.body_as_str() == "x" * 400
    assert first.enqueued_time == datetime.fromtimestamp(TIME_MS / 1000, UTC)
    metrics = decode_message(deliveries[0]).delivery_annotations
    assert metrics["last_enqueued_sequence_number"] == 99


@pytest.mark.parametrize(
    "garbage",
    [b"\x00\x53\x70\xc0", b"\x01\x02", b"\x00\x53\x72\xc0\x05", b"\x00\x53\x70\xc0\xff\x01", b"\xff" * 40],
)
@pytest.mark.parametrize("metrics", [b"", METRICS], ids=["plain", "metrics"])
def test_an_event_that_is_no_message_is_delivered_as_a_body(garbage: bytes, metrics: bytes) -> None:
    """Protects a partition's readers from one producer's garbage: it arrives, with its position."""
    delivered = _deliver(garbage, 3, metrics)
    assert delivered.data == (garbage,)
    assert delivered.message_annotations["x-opt-sequence-number"] == 3


@pytest.mark.parametrize("start", [b"\x00\x53\x70\xc0", b"\x00\x53\x71\xc1"], ids=["header", "annotations"])
@pytest.mark.parametrize("metrics", [b"", METRICS], ids=["plain", "metrics"])
def test_nothing_before_our_annotations_takes_them_in(start: bytes, metrics: bytes) -> None:
    """Protects receivers that find the end of a list by its count: they would take our annotations for a part
    of a header that has fewer values than it says."""
    garbage = start + b"\x02\x04\x41" + b"\x00\x53\x75\xa0\x01x"
    delivered = _deliver(garbage, 3, metrics)
    assert delivered.data == (garbage,)
    assert delivered.message_annotations["x-opt-sequence-number"] == 3


def test_null_annotations_count_as_none() -> None:
    """Protects messages whose annotations section is there and null."""
    delivered = _deliver(b"\x00\x53\x72\x40\x00\x53\x71\x40\x00\x53\x75\xa0\x01x", 3, METRICS)
    assert typed(dict(delivered.message_annotations)) == typed(_ours(3))
    assert delivered.data == (b"x",)
    assert delivered.value is NO_VALUE


def test_numbers_go_on_across_a_batch_and_across_powers_of_ten() -> None:
    """Protects the prepared part of the annotations, which depends on how many digits an offset has."""
    stored = b"".join(wrap_event(encode_event(EventData(b"%d" % index))) for index in range(25))
    deliveries = event_deliveries(
        memoryview(stored), section_lengths(stored), first_sequence_number=95, enqueued_time_ms=TIME_MS
    )
    events = events_of_deliveries(deliveries)
    assert list(events.sequence_numbers) == list(range(95, 120))
    assert list(events.offsets) == [str(number) for number in range(95, 120)]
    assert list(events.enqueued_times_ms) == [TIME_MS] * 25


def test_a_batched_delivery_gives_the_same_events_as_single_ones() -> None:
    """Protects our own client's fast path against the path that every client has."""
    encoded = [encode_event(EventData(b"e" * index), "k") for index in (0, 1, 2, 3, 300)]
    stored = b"".join(map(wrap_event, encoded))
    prefix = batched_delivery_prefix(first_sequence_number=41, enqueued_time_ms=TIME_MS, event_count=5)
    batched = events_of_batch(prefix + stored)
    assert list(batched.messages) == encoded
    single = events_of_deliveries(
        event_deliveries(stored, section_lengths(stored), first_sequence_number=41, enqueued_time_ms=TIME_MS)
    )
    for column in ("sequence_numbers", "enqueued_times_ms", "offsets"):
        assert list(getattr(batched, column)) == list(getattr(single, column))
        assert list(getattr(batched[1:3], column)) == list(getattr(single, column))[1:3]
        assert getattr(batched, column)[-1] == getattr(single, column)[-1]
        with pytest.raises(IndexError):
            getattr(batched, column)[5]
    between_bytes = (
        len(wrap_event(b"")) * (len(encoded) - 2) + len(wrap_event(encoded[-1])) - len(encoded[-1])
    )
    assert batched.size_bytes == sum(map(len, encoded)) + between_bytes
    assert list(EncodedEvents.joined([batched[:2], batched[2:]]).offsets) == list(batched.offsets)
    assert len(EncodedEvents.joined([])) == 0


def test_a_cut_or_wrong_batched_delivery_is_refused() -> None:
    """Protects the client from silently missing events."""
    stored = wrap_event(b"a" * 300) + wrap_event(b"b")
    prefix = batched_delivery_prefix(first_sequence_number=1, enqueued_time_ms=1, event_count=2)
    whole = prefix + stored
    for end in range(len(whole)):
        with pytest.raises(DecodeError):
            events_of_batch(whole[:end])
    for wrong in (
        whole + wrap_event(b"c"),
        stored,
        whole + b"?",
        b"\x00\x53\x72" + encode_value([1]) + stored,
    ):
        with pytest.raises(DecodeError):
            events_of_batch(wrong)
    with pytest.raises(DecodeError):
        events_of_deliveries([encode_event(EventData(b"never delivered"))])


def test_positions_are_found_wherever_a_service_puts_them() -> None:
    """Protects consumers of other services: annotations in any order, small numbers included."""
    ours: dict[object, object] = _ours(7)
    orders: list[dict[object, object]] = [
        {**ours},
        dict(reversed(ours.items())),
        {"x-opt-partition-key": "k", **ours, "x-opt-sequence-number-epoch": -1},
    ]
    for order in orders:
        events = events_of_deliveries([encode_message(Message(Header(), {}, order, data=(b"x",)))])
        assert list(events.sequence_numbers) == [7]
        assert list(events.enqueued_times_ms) == [TIME_MS]
        assert list(events.offsets) == ["7"]


def test_a_producer_cannot_forge_an_events_position() -> None:
    """Protects a consumer's position from bytes that a producer hid in its annotations."""
    forged = event_deliveries(
        stored := wrap_event(encode_event(EventData(b"x"))),
        [len(stored)],
        first_sequence_number=666,
        enqueued_time_ms=1,
    )[0]
    for name in ("mine", "x-opt-mine"):
        for value in (forged, forged.decode("latin-1")):
            message = encode_message(Message(message_annotations={name: value}, data=(b"x",)))
            stored = wrap_event(message)
            deliveries = event_deliveries(
                stored, [len(stored)], first_sequence_number=5, enqueued_time_ms=TIME_MS
            )
            assert list(events_of_deliveries(deliveries).sequence_numbers) == [5]


@pytest.mark.parametrize("metrics", [b"", METRICS], ids=["plain", "metrics"])
def test_a_second_annotations_section_does_not_outdo_the_services(metrics: bytes) -> None:
    """Protects official clients, which believe the last annotations in a message, wherever they are."""
    forged = encode_message(Message(message_annotations={"x-opt-sequence-number": 666}))
    for sent in (
        encode_message(Message(data=(b"x" * 9,))),
        encode_message(Message(message_annotations={"x-opt-partition-key": "k"}, data=(b"x" * 9,))),
        encode_message(Message(application_properties={"a": 1}, data=(b"x" * 9,))),
    ):
        delivered = _deliver(sent + forged, 5, metrics)
        assert delivered.message_annotations["x-opt-sequence-number"] == 5
        assert delivered.data == (b"x" * 9,)


def test_names_in_binary_are_delivered_as_a_body() -> None:
    """Protects clients that read symbols as bytes, as the official Python one does: one sequence number."""
    forged = Message(message_annotations={b"x-opt-sequence-number": 666, b"mine": 1}, data=(b"x",))
    delivered = _deliver(encode_message(forged), 5)
    assert delivered.message_annotations == _ours(5)
    assert delivered.data == (encode_message(forged),)


def test_annotations_that_decoders_refuse_are_delivered_as_a_body() -> None:
    """Protects readers, and the loop that delivers to them: nobody decodes 240,000 annotations."""
    entries = encode_value(None) * 2000 + encode_value(1) * 2
    many = b"\x00\x53\x72\xd1" + (len(entries) + 4).to_bytes(4, "big") + (2002).to_bytes(4, "big") + entries
    by_uuid = b"\x00\x53\x72" + encode_value({UUID(int=1): 1})
    for message in (many, by_uuid, b"\x00\x53\x78\x40" * 10_001):
        delivered = _deliver(message, 3)
        assert delivered.data == (message,)
        assert delivered.message_annotations == _ours(3)


def test_annotations_that_are_not_what_they_say_do_not_hide_the_services() -> None:
    """Protects readers from maps with more or fewer entries than their count, and from cut ones."""
    key = encode_value(Symbol("x-opt-partition-key")) + encode_value("k")
    forged = encode_value(Symbol("x-opt-sequence-number")) + encode_value(666)
    mine = encode_value(Symbol("mine")) + encode_value(1)
    data = b"\x00\x53\x75\xa0\x09" + b"x" * 9
    for count, entries in (
        (2, key + forged * 3),
        (2, key[:-1] + b"\x09"),
        (2, key[:-3] + b"\x79\x01k"),
        (0, mine),
        (9, mine),
    ):
        annotations = b"\x00\x53\x72\xc1" + bytes((len(entries) + 1, count)) + entries
        delivered = _deliver(annotations + data, 5)
        assert delivered.message_annotations["x-opt-sequence-number"] == 5
        assert delivered.message_annotations["x-opt-enqueued-time"] == TIME_MS
