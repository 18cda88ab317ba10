"""Messages: every section, in any order, in bytes of our own and of the official Python client."""

from __future__ import annotations

from typing import Any

import pytest
from azure.eventhub._pyamqp import _decode, _encode
from azure.eventhub._pyamqp.message import Header as TheirHeader
from azure.eventhub._pyamqp.message import Message as TheirMessage
from azure.eventhub._pyamqp.message import Properties as TheirProperties
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.amqp.strategies import annotation_maps, binaries, scalars, symbols, texts, values
from tests.support.calls import calls_of

from tidegate.amqp.decode import PROTOCOL_LIMITS
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
from tidegate.amqp.types import Described, Symbol, ULong

times = st.none() | st.integers(-(2**63), 2**63 - 1)
properties = st.builds(
    Properties,
    st.none() | texts | st.uuids() | binaries | st.integers(0, 2**64 - 1),
    st.none() | binaries,
    st.none() | texts,
    st.none() | texts,
    st.none() | texts,
    st.none() | texts | st.uuids(),
    st.none() | symbols,
    st.none() | symbols,
    times,
    times,
    st.none() | texts,
    st.none() | st.integers(0, 2**32 - 1),
    st.none() | texts,
)
bodies: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.lists(binaries, max_size=3).map(lambda data: {"data": tuple(data)}),
    st.lists(st.lists(values, max_size=2), max_size=2).map(lambda items: {"sequences": tuple(items)}),
    values.map(lambda value: {"value": value}),
    st.just({}),
)


@pytest.mark.slow
@settings(derandomize=True, max_examples=60)
@given(
    st.none() | st.builds(Header, st.booleans(), st.integers(0, 255), st.none(), st.booleans()),
    st.none() | properties,
    annotation_maps,
    annotation_maps,
    st.dictionaries(texts, scalars, max_size=4),
    annotation_maps,
    bodies,
)
def test_a_message_comes_back(
    header: Header | None,
    standard: Properties | None,
    delivery: dict[object, object],
    message: dict[object, object],
    application: dict[object, object],
    footer: dict[object, object],
    body: dict[str, Any],
) -> None:
    """Protects all sections and body kinds; the sections must cover the bytes without a gap."""
    original = Message(header, delivery, message, standard, application, footer=footer, **body)
    encoded = encode_message(original)
    assert repr(decode_message(encoded)) == repr(original)
    offset = 0
    for _, start, _, end in iter_sections(encoded):
        assert start == offset
        offset = end
    assert offset == len(encoded)


def test_the_official_client_writes_delivery_annotations_last() -> None:
    """Protects reading azure-eventhub 5.15.1's order: delivery annotations after the footer."""
    theirs = TheirMessage(
        header=TheirHeader(durable=True),
        delivery_annotations={b"d": 1},
        message_annotations={b"x-opt-partition-key": "k"},
        properties=TheirProperties(message_id="m", content_type="text/plain"),
        application_properties={"a": 1, "b": "c"},
        data=[b"one", b"two"],
        footer={b"f": "z"},
    )
    output = bytearray()
    _encode.encode_payload(output, theirs)
    assert [code for code, *_ in iter_sections(output)] == [0x70, 0x72, 0x73, 0x74, 0x75, 0x75, 0x78, 0x71]
    message = decode_message(output)
    assert message.header is not None
    assert message.header.durable
    assert message.delivery_annotations == {"d": 1}
    assert message.message_annotations == {"x-opt-partition-key": "k"}
    assert message.properties == Properties(message_id="m", content_type=Symbol("text/plain"))
    assert message.application_properties == {"a": 1, "b": "c"}
    assert message.data == (b"one", b"two")
    assert message.footer == {"f": "z"}


def test_the_official_client_reads_our_messages() -> None:
    """Protects every section of ours in the eyes of azure-eventhub 5.15.1."""
    ours = Message(
        Header(durable=True),
        {"d": 1},
        {"m": "v"},
        Properties(message_id="id", correlation_id="c"),
        {"a": True},
        value={"k": [1, None]},
        footer={"f": 2},
    )
    theirs = _decode.decode_payload(memoryview(encode_message(ours)))
    assert theirs.header is not None
    assert theirs.header.durable is True
    assert theirs.delivery_annotations == {b"d": 1}
    assert theirs.message_annotations == {b"m": b"v"}
    assert theirs.properties is not None
    assert theirs.properties.message_id == b"id"
    assert theirs.properties.correlation_id == b"c"
    assert theirs.application_properties == {b"a": True}
    assert theirs.value == {b"k": [1, None]}
    assert theirs.footer == {b"f": 2}


def test_null_and_absent_values_differ() -> None:
    """Protects the difference between an amqp-value of null and no body at all."""
    assert decode_message(encode_message(Message(value=None))).value is None
    assert decode_message(encode_message(Message())).value is NO_VALUE


def test_a_body_of_null_from_javascripts_sdk_is_a_value_of_null() -> None:
    """Protects readers from stopping at it: it comes as a data section, which may hold only binary."""
    message = decode_message(b"\x00\x53\x75\x40")
    assert message.value is None
    assert message.data == ()


def test_rarer_descriptors_of_sections_are_read() -> None:
    """Protects sections whose descriptor is a symbol or a wide ulong."""
    symbolic = encode_value(Described(Symbol("amqp:data:binary"), b"x"))
    wide = b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75\xa0\x01y"
    assert decode_message(symbolic + wide).data == (b"x", b"y")


@pytest.mark.parametrize(
    "data",
    [
        b"\x01",
        b"\x00\x53\x75",
        b"\x00\x53\x79\x40",
        b"\x00\x53\x75\xa1\x01x",
        b"\x00\x53\x76\x40",
        b"\x00\x53\x72\xc0\x01\x00",
        b"\x00\x53\x70\xc1\x01\x00",
        b"\x00\x53\x75\xa0\x05x",
        b"\x00\x40\x40",
        encode_value(Described(Symbol("amqp:unknown:list"), [])),
        encode_value(Described(ULong(0x10), [])),
    ],
    ids=lambda data: data.hex(),
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    """Protects readers of messages from sections of the wrong kind."""
    with pytest.raises(DecodeError):
        decode_message(data)


@pytest.mark.slow
def test_a_requests_limits_are_for_all_its_sections() -> None:
    """Protects the event loop from strangers, whose requests are decoded: values were counted per section."""
    large = encode_value({Symbol("a"): [[]] * 4_000})
    two = b"\x00\x53\x71" + large + b"\x00\x53\x72" + large
    assert len(decode_message(two).delivery_annotations) == 1
    assert len(decode_message(two[: len(two) // 2], PROTOCOL_LIMITS).delivery_annotations) == 1
    for refused in (two, b"\x00\x53\x76\x45" * 4_097, b"\x00\x53\x71" + large + b"\x00\x53\x77" + large):
        with pytest.raises(DecodeError, match="more than 4096 values"):
            decode_message(refused, PROTOCOL_LIMITS)


def test_a_request_repeats_no_section_that_may_occur_once() -> None:
    """Protects the event loop likewise. In an event the last one counts: its sender cannot be asked."""
    message = (
        b"\x00\x53\x72" + encode_value({Symbol("a"): 1}) + b"\x00\x53\x72" + encode_value({Symbol("a"): 2})
    )
    assert decode_message(message).message_annotations == {"a": 2}
    with pytest.raises(DecodeError, match="a second section 0x72"):
        decode_message(message, PROTOCOL_LIMITS)


def test_no_request_costs_much() -> None:
    """Protects neighbours: a message of 64 KB took 28 ms."""
    lists = b"\x00\x53\x72" + encode_value({Symbol("a"): [[]] * 4_000})
    for payload in (lists * 16, b"\x00\x53\x76\x45" * 9_000):

        def run(payload: bytes = payload) -> None:
            with pytest.raises(DecodeError):
                decode_message(payload, PROTOCOL_LIMITS)

        assert calls_of(run) < 60_000
