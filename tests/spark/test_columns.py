"""Encoded events of every shape become the right columns."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from uuid import UUID

import pytest

from tidegate.amqp.message import Message, Properties, encode_message
from tidegate.amqp.types import Symbol, Timestamp
from tidegate.model.events import EventData, PropertyValue
from tidegate.spark.columns import encoded_event_batch, event_batch, find_body
from tidegate.spark.schema import ENCODED_EVENT_ARROW_SCHEMA, EVENT_ARROW_SCHEMA
from tidegate.wire.encoded_events import EncodedEvents
from tidegate.wire.event_codec import encode_event
from tidegate.wire.event_texts import DECODE_ERROR_PROPERTY, text_of


def _events(*messages: bytes) -> EncodedEvents:
    count = len(messages)
    return EncodedEvents(
        range(7, 7 + count),
        [1_700_000_000_123] * count,
        [str(7 + index) for index in range(count)],
        [*messages],
    )


def _rows(*messages: bytes) -> list[dict[str, object]]:
    batch = event_batch("3", _events(*messages))
    assert batch.schema.equals(EVENT_ARROW_SCHEMA)
    batch.validate(full=True)
    rows: list[dict[str, object]] = batch.to_pylist()
    return rows


def test_positions_and_plain_bodies() -> None:
    """What every event has: place, time and body, short and long."""
    first, second = _rows(encode_event(EventData(b"")), encode_event(EventData(b"x" * 300)))
    assert (first["body"], second["body"]) == (b"", b"x" * 300)
    assert (second["partition"], second["offset"], second["sequenceNumber"]) == ("3", "8", 8)
    assert second["enqueuedTime"] == datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)
    assert (second["publisher"], second["partitionKey"]) == (None, None)
    assert (second["properties"], second["systemProperties"]) == ([], [])


def test_events_that_share_and_events_that_differ() -> None:
    """Decoding each distinct prefix once must not give one event another one's key or properties."""
    messages = [
        encode_event(EventData(b"%d" % value, {"n": value} if value % 3 else {}), f"key-{value % 2}")
        for value in range(9)
    ]
    for value, row in enumerate(_rows(*messages)):
        assert row["body"] == b"%d" % value
        assert row["partitionKey"] == f"key-{value % 2}"
        assert row["properties"] == ([("n", str(value))] if value % 3 else [])


def test_system_properties_keep_what_has_no_column() -> None:
    """Standard properties and unknown annotations keep their wire names; the publisher has a column."""
    message = encode_message(
        Message(
            message_annotations={
                Symbol("x-opt-publisher"): "p1",
                Symbol("x-opt-sequence-number"): 5,
                Symbol("x-custom"): Timestamp(0),
            },
            properties=Properties(message_id="m1", content_type=Symbol("application/json"), group_sequence=4),
            application_properties={"a": "b"},
            data=(b"body",),
        )
    )
    (row,) = _rows(message)
    assert row["publisher"] == "p1"
    assert row["properties"] == [("a", "b")]
    assert dict(row["systemProperties"]) == {  # type: ignore[call-overload]
        "x-custom": "1970-01-01T00:00:00+00:00",
        "message-id": "m1",
        "content-type": "application/json",
        "group-sequence": "4",
    }


@pytest.mark.parametrize(
    ("message", "body"),
    [
        (Message(value="text"), b"text"),
        (Message(value=b"bytes"), b"bytes"),
        (Message(value={"a": 1}), b'{"a":1}'),
        (Message(sequences=([1, "x"],)), b'[[1,"x"]]'),
        (Message(data=(b"two ", b"parts")), b"two parts"),
        (Message(data=(b"with footer",), footer={Symbol("f"): 1}), b"with footer"),
    ],
)
def test_other_kinds_of_bodies(message: Message, body: bytes) -> None:
    """Official SDKs of other languages send value and sequence bodies; none is lost, next to a plain one."""
    rows = _rows(encode_message(message), encode_event(EventData(b"plain")))
    assert [row["body"] for row in rows] == [body, b"plain"]


def test_garbage_is_told_and_harms_no_neighbour() -> None:
    """One event that is no AMQP message must not end the query: its body is null, and the reason is kept."""
    good = encode_event(EventData(b"good"))
    rng = random.Random(5)
    for _ in range(200):
        bad = bytearray(encode_event(EventData(b"bad" * 5, {"k": 1}), "key"))
        bad[rng.randrange(8)] = 0xFF
        rows = _rows(good, bytes(bad), good)
        assert [rows[0]["body"], rows[2]["body"]] == [b"good", b"good"]
    (row,) = _rows(b"garbage")
    assert row["body"] is None
    assert DECODE_ERROR_PROPERTY in dict(row["systemProperties"])  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (Message(application_properties={"t": Timestamp(10**17)}, data=(b"x",)), "100000000000000000"),
        (
            Message(message_annotations={Symbol("t"): Timestamp(-(10**17))}, data=(b"x",)),
            "-100000000000000000",
        ),
        (Message(application_properties={"t": Timestamp(10**17)}, value="x"), "100000000000000000"),
        (Message(value={b"k": [Timestamp(5)]}), None),
    ],
)
def test_values_that_no_calendar_and_no_json_has_end_no_query(message: Message, shown: str | None) -> None:
    """A producer may send any 64-bit time and any kind of map key; the query must outlive such an event."""
    rows = _rows(encode_event(EventData(b"good")), encode_message(message))
    assert rows[0]["body"] == b"good"
    if shown is None:
        assert rows[1]["body"] == b'{"aw==":["1970-01-01T00:00:00.005000+00:00"]}'
    else:
        assert rows[1]["body"] == b"x"
        texts = dict(rows[1]["properties"]) | dict(rows[1]["systemProperties"])  # type: ignore[call-overload]
        assert texts["t"] == shown


def test_find_body_never_reads_beyond_the_message() -> None:
    """Truncated at any byte: either no place at all, or one that is within."""
    message = encode_event(EventData(b"b" * 300, {"k": "v" * 300}), "key")
    place = find_body(message)
    assert place is not None
    assert message[place[1] :] == b"b" * 300
    for length in range(len(message)):
        assert find_body(message[:length]) is None


def test_encoded_events_pass_unchanged() -> None:
    """A handler in the sink sees the event's own bytes."""
    messages = [encode_event(EventData(b"a", {"k": 1})), encode_event(EventData(b"b" * 1000), "key")]
    batch = encoded_event_batch("0", _events(*messages))
    assert batch.schema.equals(ENCODED_EVENT_ARROW_SCHEMA)
    assert batch.column("encodedEvent").to_pylist() == messages


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        ("s", "s"),
        (True, "true"),
        (3, "3"),
        (2.5, "2.5"),
        (b"\x00\xff", "AP8="),
        (datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00+00:00"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    ],
)
def test_property_values_as_text(value: PropertyValue, text: str | None) -> None:
    """The map column holds text; this is what each type looks like in it."""
    assert text_of(value) == text
