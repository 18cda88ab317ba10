"""Encoded events of every shape become the right columns."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.amqp.message import Message, Properties, encode_message
from tidegate.amqp.types import Described, Symbol, Timestamp, UInt
from tidegate.columns import batches
from tidegate.columns.batches import event_batch, event_batches
from tidegate.columns.entries import EntryTexts, decode_entries
from tidegate.columns.names import EVENT_COLUMNS
from tidegate.columns.places import Int64s, locate_bodies
from tidegate.columns.schema import ENCODED_EVENT_ARROW_SCHEMA, EVENT_ARROW_SCHEMA
from tidegate.model.events import EventData, PropertyValue
from tidegate.wire.encoded_events import EncodedEvents
from tidegate.wire.event_codec import encode_event
from tidegate.wire.event_texts import DECODE_ERROR_PROPERTY, EventTexts, decode_whole, text_of
from tidegate.wire.packed_messages import packed


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


@pytest.mark.parametrize("names", [EVENT_COLUMNS, ["sequenceNumber", "encodedEvent"], ["body", "partition"]])
@given(lengths=st.lists(st.integers(1, 5), max_size=6), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=20)
@pytest.mark.slow
def test_events_of_several_partitions_together(names: list[str], lengths: list[int], seed: int) -> None:
    """They are what each partition's would be by themselves: packed or not, good or not."""
    random_numbers = random.Random(seed)

    def message() -> bytes:
        if random_numbers.random() < 0.1:
            return random_numbers.randbytes(random_numbers.randint(0, 9))
        event = EventData(random_numbers.randbytes(5), properties={"n": random_numbers.randint(0, 3)})
        return encode_event(event, random_numbers.choice([None, "key"]))

    parts = []
    for number, length in enumerate(lengths):
        events = _events(*(message() for _ in range(length)))
        if random_numbers.random() < 0.5:
            events = replace(events, messages=packed(events.messages))
        parts.append((str(number), events))
    for together, (partition_id, events) in zip(event_batches(parts, names), parts, strict=True):
        together.validate(full=True)
        assert together.equals(event_batch(partition_id, events, names))


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


def test_a_property_has_a_column_of_its_own_where_one_is_named() -> None:
    """With the text that the map has; null where it is missing or null. A name may hold dots."""
    odd = encode_message(Message(value="text", application_properties={"n": "odd", "a.b": True}))
    each: list[dict[str, PropertyValue]] = [{"n": 1}, {}, {"n": None, "a.b": "x"}, {"n": b"\xff"}]
    messages = [encode_event(EventData(b"", item), key) for item in each for key in (None, "k")]
    names = ["properties.a.b", "sequenceNumber", "properties.n", "properties"]
    batch = event_batch("3", _events(*messages, odd, b"\xde\xad"), names)
    batch.validate(full=True)
    assert batch.schema.names == names
    for row in batch.to_pylist():
        texts = dict(row["properties"])
        assert (row["properties.n"], row["properties.a.b"]) == (texts.get("n"), texts.get("a.b"))
    assert batch.column("properties.n").to_pylist()[::2] == ["1", None, None, "/w==", "odd"]


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


@pytest.mark.slow
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
        # Exact, where a float of its seconds would not be.
        (
            Message(application_properties={"t": Timestamp(22_645_732_333_050)}, value="x"),
            "2687-08-13T09:12:13.050000+00:00",
        ),
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


def test_a_cut_message_has_no_body() -> None:
    """Truncated at any byte, with what the next event begins with behind it: no place is found for it."""
    message = encode_event(EventData(b"b" * 300, {"k": "v" * 300}), "key")
    for length in range(len(message) + 1):
        cut, good = message[:length], encode_event(EventData(b"good"))
        ends = np.cumsum([length, len(good)])
        places = locate_bodies(cut + good + bytes(8), ends - [length, len(good)], ends)
        assert places.is_found.tolist() == [length == len(message), True]
        assert length == len(message) or places.properties_starts[0] == -1
        assert (cut + good)[places.body_starts[1] : ends[1]] == b"good"


def _any_event(rng: random.Random) -> tuple[bytes, bool]:
    """An event of any shape and whether it is whole; few distinct surroundings, as real ones have."""
    if rng.random() < 0.1:
        return rng.randbytes(rng.randrange(40)), False
    body = rng.randbytes(rng.choice([0, 1, 2, 3, 8, 255, 256, 1000]))
    message = Message(
        message_annotations={Symbol("x-opt-partition-key"): f"k{rng.randrange(3)}"}
        if rng.random() < 0.5
        else {},
        properties=Properties(message_id=f"m{rng.randrange(3)}") if rng.random() < 0.5 else None,
        application_properties={"n": rng.randrange(3), "t": "x" * rng.choice([1, 300])}
        if rng.random() < 0.5
        else {},
        data=(body,) if rng.random() < 0.9 else (body, body),
    )
    encoded = bytearray(encode_message(message))
    is_broken = rng.random() < 0.2
    if is_broken:
        encoded[rng.randrange(min(len(encoded), 60))] ^= 1 << rng.randrange(8)
    return bytes(encoded), not is_broken


@pytest.mark.slow
@pytest.mark.parametrize("is_alike", [True, False])
@pytest.mark.parametrize("is_packed", [True, False])
def test_columns_are_what_decoding_each_event_gives(
    is_packed: bool, is_alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fast ways against the slow one, whatever is in a chunk and whichever columns are asked for."""
    monkeypatch.setattr(batches, "_are_alike", lambda *_: is_alike)
    for seed in range(150):
        rng = random.Random(seed)
        drawn = [_any_event(rng) for _ in range(rng.randrange(1, 40))]
        events = _events(*(message for message, _ in drawn))
        if is_packed:
            columns = events.sequence_numbers, events.enqueued_times_ms, events.offsets
            events = EncodedEvents(*columns, packed(events.messages))
        names = rng.sample(EVENT_COLUMNS, rng.randrange(1, len(EVENT_COLUMNS) + 1))
        batch = event_batch("3", events, names)
        batch.validate(full=True)
        assert batch.schema.names == names
        for (message, is_whole), row in zip(drawn, batch.to_pylist(), strict=True):
            if not is_whole:
                continue  # what is left of it is anybody's guess; it must not harm the others
            texts, body = decode_whole(message)
            expected = {
                "body": body,
                "publisher": texts.publisher,
                "partitionKey": texts.partition_key,
                "properties": list(texts.properties.items()),
                "systemProperties": list(texts.system_properties.items()),
            }
            for name in expected.keys() & set(names):
                assert row[name] == expected[name], f"seed {seed}, {name} of {message.hex()}"


def test_encoded_events_pass_unchanged() -> None:
    """A handler in the sink sees the event's own bytes."""
    messages = [encode_event(EventData(b"a", {"k": 1})), encode_event(EventData(b"b" * 1000), "key")]
    batch = event_batch("0", _events(*messages), ENCODED_EVENT_ARROW_SCHEMA.names)
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


def test_what_is_not_asked_for_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pruned columns cost nothing: bodies decode no prefix, and positions look at no message."""
    done: list[str] = []

    def counted(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            done.append(name)
            return function(*arguments)

        return call

    for name in ("_decode_rest", "locate_bodies", "decode_entries", "cut", "packed"):
        monkeypatch.setattr(batches, name, counted(name, getattr(batches, name)))
    events = _events(
        *(encode_event(EventData(b"body %d" % value, {"n": value}), "key") for value in range(5))
    )
    positions = ["sequenceNumber", "partition", "offset", "enqueuedTime"]
    assert event_batch("0", events, positions).schema.names == positions
    assert done == []
    event_batch("0", events, ["body"])
    assert done == ["packed", "locate_bodies", "cut"]
    done.clear()
    event_batch("0", events, ["partitionKey", "properties"])
    # Keys are cut out, and between them and the bodies there are only properties.
    assert done == ["packed", "locate_bodies", "decode_entries", "cut"]


def test_events_that_differ_are_not_decoded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand devices with a key each, and properties of their own: they are cut out in columns,
    and what is left is the same for all."""
    done: list[bytes] = []

    def decode(rest: bytes) -> EventTexts:
        done.append(rest)
        return EventTexts.decode(rest) if rest else EventTexts()

    monkeypatch.setattr(batches, "_decode_rest", decode)
    monkeypatch.setattr(batches, "decode_whole", None)
    keys = [f"schlüssel-{number}" * (number % 5) for number in range(200)]
    messages = [
        encode_event(EventData(b"a body", {"n": number, "key": key} if key else {}, content_type="text"), key)
        for number, key in enumerate(keys)
    ]
    batch = event_batch("0", _events(*messages), ["partitionKey", "properties.n", "properties.key"])
    assert batch.column("partitionKey").to_pylist() == keys
    assert batch.column("properties.key").to_pylist() == [key or None for key in keys]
    assert batch.column("properties.n").to_pylist() == [str(n) if keys[n] else None for n in range(200)]
    assert len(done) == 1


@pytest.mark.parametrize(("devices", "is_cut_out"), [(1, False), (16, False), (40, True), (200, True)])
def test_properties_that_most_events_share_are_decoded_once(
    devices: int, is_cut_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And those of many devices in columns; each event has its own either way."""
    done: list[str] = []
    decode_rest = batches._decode_rest

    def decode(rest: bytes) -> EventTexts:
        done.append("decoded")
        return decode_rest(rest)

    def cut_out(payload: bytes, starts: Int64s, ends: Int64s) -> EntryTexts:
        done.append("cut out")
        return decode_entries(payload, starts, ends)

    monkeypatch.setattr(batches, "_decode_rest", decode)
    monkeypatch.setattr(batches, "decode_entries", cut_out)
    messages = [encode_event(EventData(b"", {"device": number % devices})) for number in range(200)]
    batch = event_batch("0", _events(*messages), ["properties.device", "properties"])
    assert batch.column("properties.device").to_pylist() == [str(number % devices) for number in range(200)]
    assert batch.column("properties").to_pylist() == [[("device", str(n % devices))] for n in range(200)]
    assert done == (["cut out"] if is_cut_out else ["decoded"] * devices)


_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=9),
    st.text("ab", min_size=250, max_size=300),
    st.binary(max_size=9),
    st.uuids(),
    st.integers(0, 2**32 - 1).map(UInt),
    st.integers(-(2**63), 2**63 - 1).map(Timestamp),
    st.just(Symbol("symbol")),
    st.lists(st.integers(0, 9), max_size=3),
    st.just(Described(Symbol("com.microsoft:uri"), "https://example.com")),
)
_KEYS = st.one_of(st.sampled_from(("device", "kind", "n")), st.text(max_size=5), st.text("k", min_size=256))


@settings(max_examples=80)
@given(
    st.lists(
        st.tuples(
            st.dictionaries(_KEYS, _VALUES, max_size=5),
            st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=1),
        ),
        min_size=1,
        max_size=12,
    )
)
@pytest.mark.slow
def test_properties_are_what_the_decoder_says(
    shapes: list[tuple[dict[object, object], list[tuple[int, int]]]],
) -> None:
    """Of all types, and whatever bytes are changed: keys that are repeated, text that is not UTF-8, sizes
    that are wrong. The decoder of single events is the reference."""
    messages: list[bytes] = []
    for properties, changes in shapes:
        changed = bytearray(encode_message(Message(application_properties=properties, data=(b"body",))))
        for place, value in changes:
            changed[place % len(changed)] = value
        messages.append(bytes(changed))
    names = ["properties", "properties.device", "systemProperties"]
    batch = event_batch("3", _events(*messages), names)
    batch.validate(full=True)
    for row, message in zip(batch.to_pylist(), messages, strict=True):
        texts, _ = decode_whole(message)
        if DECODE_ERROR_PROPERTY not in texts.system_properties:  # what is garbage, columns may not look at
            assert row["properties"] == list(texts.properties.items())
            assert row["properties.device"] == texts.properties.get("device")


def test_more_properties_than_are_cut_out() -> None:
    """An event with hundreds of properties loses none of them."""
    many: dict[str, PropertyValue] = {f"p{number}": number for number in range(300)}
    rows = _rows(encode_event(EventData(b"x", {"n": 1})), encode_event(EventData(b"x", many)))
    assert [dict(row["properties"]) for row in rows] == [  # type: ignore[call-overload]
        {"n": "1"},
        {name: str(value) for name, value in many.items()},
    ]


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.text(max_size=20), st.text(min_size=250, max_size=300)),
            st.sampled_from(({}, {"n": 1})),
            st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=2),
        ),
        min_size=1,
        max_size=8,
    )
)
@pytest.mark.slow
def test_keys_are_what_the_decoder_says(
    shapes: list[tuple[str | None, dict[str, PropertyValue], list[tuple[int, int]]]],
) -> None:
    """Whatever bytes are changed: a key is cut out only where the decoder finds the same."""
    messages: list[bytes] = []
    for key, properties, changes in shapes:
        changed = bytearray(encode_event(EventData(b"body", properties), key))
        for place, value in changes:
            changed[place % len(changed)] = value
        messages.append(bytes(changed))
    for row, message in zip(_rows(*messages), messages, strict=True):
        texts, _ = decode_whole(message)
        if DECODE_ERROR_PROPERTY not in texts.system_properties:  # what is garbage, columns may not look at
            assert row["partitionKey"] == texts.partition_key
            assert dict(row["properties"]) == texts.properties  # type: ignore[call-overload]
