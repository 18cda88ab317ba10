"""Events: what our producer writes, and what any client wrote, read back whole or body alone."""

from __future__ import annotations

import enum
import tracemalloc
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.amqp.strategies import common_scalars, texts, values
from tests.support.batches import split_batch
from tests.wire.official_client import batch_payload, event, received

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
from tidegate.amqp.types import Char, Decimal, Float, Symbol, Timestamp, UInt, ULong
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import EventContents, EventData
from tidegate.wire.batch import iter_events
from tidegate.wire.event_codec import decode_event, encode_event, event_body

TIME = datetime(2026, 9, 1, 12, 0, tzinfo=UTC)
PROPERTIES: dict[str, Any] = {
    "text": "漢字",
    "long text": "x" * 300,
    "int": 5,
    "negative": -129,
    "long": 2**40,
    "float": 1.5,
    "yes": True,
    "no": False,
    "none": None,
    "bytes": b"\0\xff",
    "time": TIME,
    "uuid": UUID(int=5),
}

property_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    texts,
    st.binary(max_size=20),
    st.uuids(),
)


@settings(derandomize=True, max_examples=100)
@given(
    st.one_of(st.binary(max_size=20), st.just(b"x" * 256)),
    st.dictionaries(texts, property_values, max_size=4),
    st.none() | texts,
    st.none() | texts,
    st.none() | texts,
    st.none() | texts,
)
@pytest.mark.slow
def test_an_event_comes_back(
    body: bytes,
    properties: dict[str, Any],
    key: str | None,
    content_type: str | None,
    message_id: str | None,
    correlation_id: str | None,
) -> None:
    """Protects everything that an event of ours can hold, and the fast ways to its body."""
    encoded = encode_event(EventData(body, properties, content_type, message_id, correlation_id), key)
    assert decode_event(encoded) == EventContents(
        body, properties, key, content_type, message_id, correlation_id
    )
    assert event_body(encoded) == body
    assert event_body(memoryview(encoded)) == body
    generic = decode_message(encoded)  # the general codec sees the same
    assert dict(generic.application_properties) == properties
    assert b"".join(generic.data) == body


@settings(derandomize=True, max_examples=200)
@given(
    st.one_of(st.binary(max_size=20), st.just(b"x" * 256)),
    st.dictionaries(texts, property_values, max_size=4),
    st.integers(-3, 3),
)
@pytest.mark.slow
def test_the_usual_event_is_decoded_as_any_other(body: bytes, properties: dict[str, Any], cut: int) -> None:
    """The short way for properties and a body says what the general way says, of whole and of cut events."""
    encoded = encode_event(EventData(body, properties))
    encoded = encoded[:cut] if cut < 0 else encoded + b"\0" * cut
    header = b"\x00\x53\x70\x45"  # an empty one: no event is usual with it

    def contents_of(message: bytes) -> EventContents | None:
        try:
            return decode_event(message)
        except DecodeError:
            return None

    assert contents_of(encoded) == contents_of(header + encoded)


def test_all_property_types_come_back_with_their_types() -> None:
    """Protects each Python type that a property can have."""
    found = decode_event(encode_event(EventData(b"", PROPERTIES))).properties
    assert found == PROPERTIES
    assert [type(item) for item in found.values()] == [type(item) for item in PROPERTIES.values()]
    many = {f"key {number}": number for number in range(300)}
    assert decode_event(encode_event(EventData(b"", many))).properties == many


def test_the_official_client_reads_our_events_and_we_read_its() -> None:
    """Protects both directions between azure-eventhub 5.15.1 and ours."""
    ours = received(encode_event(EventData(b"body", {"n": 5, "t": "x"}, "text/plain", "id", "co"), "key"))
    assert ours.body_as_str() == "body"
    assert ours.properties == {b"n": 5, b"t": b"x"}
    assert (ours.message_id, ours.content_type, ours.correlation_id) == ("id", "text/plain", "co")
    assert ours.partition_key == b"key"
    theirs = event(b"x" * 300, n=5, t="x", f=1.5, z=None, u=UUID(int=3))
    theirs.message_id = "id"
    theirs.content_type = "text/plain"
    sections = split_batch(batch_payload([theirs], partition_key="key"))
    (encoded,) = iter_events(sections.payload, sections.lengths)
    assert decode_event(encoded) == EventContents(
        b"x" * 300,
        {"n": 5, "t": "x", "f": 1.5, "z": None, "u": UUID(int=3)},
        "key",
        "text/plain",
        "id",
    )
    assert event_body(encoded) == b"x" * 300


@settings(derandomize=True, max_examples=60)
@given(
    st.dictionaries(texts, common_scalars, max_size=4),
    st.lists(st.binary(max_size=300), max_size=3),
    st.one_of(st.just(NO_VALUE), values),
    st.booleans(),
)
@pytest.mark.slow
def test_any_clients_event_is_read(
    properties: dict[object, object], data: list[bytes], value: object, is_long: bool
) -> None:
    """Protects events with any body, any property type and a footer: found by the general decoder's rules."""
    message = Message(
        Header(durable=True),
        application_properties=properties,
        data=tuple(data),
        value=value,
        footer={"f": "x" * 300} if is_long else {},
    )
    encoded = encode_message(message)
    contents = decode_event(encoded)
    assert contents.body == event_body(encoded) == b"".join(data)
    assert list(contents.properties) == list(properties)
    if value is not NO_VALUE:
        assert repr(contents.body_value) == repr(value)


def test_values_of_amqps_own_types_come_as_plain_ones() -> None:
    """Protects users from AMQP's types: what a property gives is what Python has."""
    properties: dict[object, object] = {
        "uint": UInt(300),
        "ulong": ULong(2**64 - 1),
        "symbol": Symbol("s"),
        "char": Char("c"),
        "float": Float(0.5),
        "decimal": Decimal(b"1234"),
        "time": Timestamp(-5),
        "far": Timestamp(2**60),
        Symbol("key"): True,
    }
    found = decode_event(encode_message(Message(application_properties=properties))).properties
    assert found == {
        "uint": 300,
        "ulong": 2**64 - 1,
        "symbol": "s",
        "char": "c",
        "float": 0.5,
        "decimal": b"1234",
        "time": datetime(1970, 1, 1, tzinfo=UTC) - timedelta(milliseconds=5),
        "far": 2**60,
        "key": True,
    }
    assert {type(value) for value in found.values()} == {int, str, float, bytes, datetime, bool}


def test_ids_of_any_type_come_as_text() -> None:
    """Protects events whose message-id is a uuid, a number or bytes, as other clients send them."""
    for message_id, text in ((UUID(int=5), str(UUID(int=5))), (7, "7"), (b"\xff", "ff"), (None, None)):
        encoded = encode_message(Message(properties=Properties(message_id=message_id)))
        assert decode_event(encoded).message_id == text
    assert decode_event(b"\x00\x53\x73\x45").message_id is None


def test_sequences_are_a_list_of_lists() -> None:
    """Protects bodies of amqp-sequence sections."""
    contents = decode_event(encode_message(Message(sequences=([1], ["a"]))))
    assert (contents.body, contents.body_value) == (b"", [[1], ["a"]])


class Colour(enum.StrEnum):
    """An enum that is text."""

    RED = "red"


class Level(enum.IntEnum):
    """An enum that is a number."""

    HIGH = 3


def test_enums_go_as_their_values() -> None:
    """Protects users who put enum members into properties."""
    found = decode_event(encode_event(EventData(b"", {"c": Colour.RED, "l": Level.HIGH}))).properties
    assert found == {"c": "red", "l": 3}


@pytest.mark.parametrize(
    "data",
    [
        EventData(b"", {"x": NotImplemented}),
        EventData(b"", {"x": [1]}),  # type: ignore[dict-item]
        EventData(b"", {5: "x"}),  # type: ignore[dict-item]
        EventData(b"", {"x": 2**64}),
        EventData(b"", {"x": "\ud800"}),
        EventData(b"", {"\ud800": "x"}),
        EventData(b"", {"x": datetime(2026, 1, 1)}),  # noqa: DTZ001  (that is the point)
    ],
    ids=repr,
)
def test_what_has_no_place_in_an_event_is_refused_by_name(data: EventData) -> None:
    """Protects the producer's caller, who is told which property is wrong."""
    with pytest.raises(InvalidArgumentError):
        encode_event(data)
    with pytest.raises(InvalidArgumentError):
        encode_event(EventData(b""), 5)  # type: ignore[arg-type]


def test_a_body_of_null_from_javascripts_sdk_leaves_the_rest_readable() -> None:
    """Protects our client, and so each host, Spark's table and Capture from stopping at it."""
    encoded = encode_message(Message(application_properties={"k": 1})) + b"\x00\x53\x75\x40"
    found = decode_event(encoded)
    assert (found.body, found.properties, found.body_value) == (b"", {"k": 1}, None)
    assert bytes(event_body(encoded)) == b""


def test_cut_events_are_refused() -> None:
    """Protects readers from half an event that looks whole; cut between sections it is a shorter event."""
    encoded = encode_event(EventData(b"body", PROPERTIES, "t"), "key")
    ends = {end for _, _, _, end in iter_sections(encoded)}
    assert len(ends) == 4
    for end in range(1, len(encoded)):
        for read in (decode_event, event_body):
            if end in ends:
                read(encoded[:end])
            else:
                with pytest.raises(DecodeError):
                    read(encoded[:end])


def test_long_names_of_properties_and_keys_are_not_kept() -> None:
    """Protects the service's memory: over HTTPS it encodes names that remote senders made up."""
    tracemalloc.start()
    try:
        for number in range(20):
            name = f"{number}-" + "x" * 200_000
            decoded = decode_event(encode_event(EventData(b"", {name: number}), name))
            assert (decoded.properties, decoded.partition_key) == ({name: number}, name)
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 2_000_000
