"""Records of capture files become the events that they were."""

from __future__ import annotations

import json
import tracemalloc
from datetime import UTC, datetime
from io import BytesIO
from typing import Any
from uuid import UUID

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.amqp.encode import encode_value
from tidegate.amqp.message import Message, Properties, decode_message, encode_message
from tidegate.amqp.types import Array, Described, Symbol, Timestamp, UInt, ULong
from tidegate.model.events import EventData
from tidegate.wire import capture
from tidegate.wire.batch import wrap_event
from tidegate.wire.capture import (
    AVRO_SCHEMA,
    PROPERTY_TYPES,
    AvroValue,
    capture_record,
    encoded_event,
    system_properties,
    typed_properties,
    undecodable_record,
)
from tidegate.wire.event_codec import decode_event, encode_event
from tidegate.wire.event_texts import EventTexts, decode_whole


def _captured(encoded: bytes) -> dict[str, Any]:
    """The record of an event after a trip through an Avro file."""
    file = BytesIO()
    record = capture_record(0, "t", decode_event(encoded), system_properties(encoded, 1_700_000_000_123))
    fastavro.writer(file, dict(AVRO_SCHEMA), [record])
    file.seek(0)
    (again,) = fastavro.reader(file)
    assert isinstance(again, dict)
    return again


def _again(record: dict[str, Any]) -> bytes:
    return encoded_event(record["Body"], record["Properties"], record["SystemProperties"])


_times = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)).map(  # noqa: DTZ001
    lambda time: time.replace(tzinfo=UTC, microsecond=time.microsecond // 1000 * 1000)
)
_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=300),
    st.binary(max_size=20),
    _times,
    st.uuids(),
)
_texts = st.none() | st.text(max_size=20)


@pytest.mark.slow
@given(
    body=st.binary(max_size=400),
    properties=st.dictionaries(st.text(max_size=10), _values, max_size=5),
    key=_texts,
    message_id=_texts,
    content_type=st.none() | st.text("az/+.", max_size=20),
)
def test_an_event_of_ours_comes_back_whole(
    body: bytes, properties: Any, key: str | None, message_id: str | None, content_type: str | None
) -> None:
    """Body, key, ids, and every property with the type that it was sent with."""
    event = EventData(body, properties, content_type=content_type, message_id=message_id)
    encoded = encode_event(event, key)
    again = _again(_captured(encoded))
    assert decode_event(again) == decode_event(encoded)
    assert EventTexts.decode(again) == EventTexts.decode(encoded)


@pytest.mark.parametrize(
    "value",
    [{"a": [1, "two"]}, [], ULong(2**64 - 1), Array.of(str, ["a"]), Described(Symbol("com.x:y"), "z")],
    ids=["map", "list", "large number", "array", "described"],
)
def test_a_property_that_only_other_senders_write_comes_back(value: object) -> None:
    """Protects a hub's replay: one event with such a property stopped whoever needs whole events."""
    encoded = encode_message(Message(application_properties={"p": value, "q": 1}, data=(b"body",)))
    again = _again(_captured(encoded))
    assert decode_event(again) == decode_event(encoded)
    assert EventTexts.decode(again) == EventTexts.decode(encoded)


_EVERYTHING = Message(
    message_annotations={
        Symbol("x-opt-publisher"): "device-7",
        Symbol("x-opt-partition-key"): "k",
        Symbol("flag"): True,
        Symbol("since"): Timestamp(1_700_000_000_123),
        Symbol("list"): [1, "two"],
    },
    properties=Properties(
        message_id=ULong(7),
        user_id=b"\x01",
        to="to",
        subject="subject",
        reply_to="reply",
        correlation_id=UUID(int=5),
        content_type=Symbol("a/b"),
        content_encoding=Symbol("gzip"),
        absolute_expiry_time=Timestamp(1_800_000_000_000),
        creation_time=Timestamp(1_700_000_000_001),
        group_id="g",
        group_sequence=UInt(3),
        reply_to_group_id="rg",
    ),
    application_properties={"n": 1},
    data=(b"body",),
)


def test_every_annotation_and_standard_property_reads_as_in_the_live_table() -> None:
    """As text they are equal, whatever their type was."""
    encoded = encode_message(_EVERYTHING)
    texts, body = decode_whole(_again(_captured(encoded)))
    assert body == b"body"
    assert texts == EventTexts.decode(encoded)
    assert texts.publisher == "device-7"
    assert texts.system_properties["since"] == "2023-11-14T22:13:20.123000+00:00"


def test_bytes_that_are_no_message_come_back_as_they_were() -> None:
    """They are a dead letter again, with the same reason."""
    stored = wrap_event(b"\xde\xad")
    system = undecodable_record(0, "t", stored, enqueued_time_ms=1)["SystemProperties"]
    assert isinstance(system, dict)
    again = encoded_event(stored, {}, system)
    assert again == b"\xde\xad"
    reason = system["tidegate-decode-error"]
    assert decode_whole(again)[0].system_properties == {"tidegate-decode-error": reason}


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"n":"timestamp"}', '{"n":"strange"}', '{"m":"uuid"}'])
def test_somebody_elses_remark_about_types_spoils_nothing(text: str) -> None:
    """The name could be anybody's annotation."""
    assert typed_properties({"n": "x"}, {PROPERTY_TYPES: text}) == {"n": "x"}


def test_a_sender_cannot_write_what_capture_writes() -> None:
    """Protects readers of files: the note of a decode error made a body count as the whole event, with any
    publisher and key in it, and one about types stopped every reader."""
    inner = encode_message(
        Message(
            message_annotations={"x-opt-publisher": "victim", "x-opt-partition-key": "victim"}, data=(b"x",)
        )
    )
    event = encode_message(
        Message(
            message_annotations={
                "x-opt-publisher": "mallory",
                "tidegate-decode-error": "x",
                "tidegate:property-types": '{"p":"uuid"}',
                "group-sequence": "abc",
            },
            application_properties={"p": 5},
            data=(wrap_event(inner),),
        )
    )
    record = _captured(event)
    assert record["SystemProperties"] == {
        "x-opt-enqueued-time": 1_700_000_000_123,
        "x-opt-publisher": "mallory",
    }
    again = decode_event(_again(record))
    assert (again.body, again.properties) == (wrap_event(inner), {"p": 5})
    assert decode_message(_again(record)).message_annotations == {"x-opt-publisher": "mallory"}
    assert "tidegate-decode-error" not in decode_whole(event)[0].system_properties


@pytest.mark.parametrize("types", ['{"p":"uuid"}', '{"p":["x"]}', "[" * 100_000, '{"p":"timestamp"}'])
def test_another_writers_notes_stop_no_reader(types: str) -> None:
    """Protects a whole hub's files from one record that another program wrote."""
    notes = {"tidegate:property-types": types, "tidegate-decode-error": "x", "group-sequence": "abc"}
    system: dict[str, AvroValue] = {**notes, "a": 1}
    assert typed_properties({"p": 5}, system) == {"p": 5}
    assert decode_event(encoded_event(b"body", {"p": 5}, system)).body == b"body"


def test_notes_of_many_properties_are_not_kept() -> None:
    """Protects a worker's memory: an event of a megabyte has 20 MB of them, and a thousand were kept."""
    names = [f"{'x' * 1000}{number}" for number in range(100)]
    tracemalloc.start()
    try:
        for each in range(20):
            typed_properties({}, {PROPERTY_TYPES: json.dumps(dict.fromkeys(names, f"type {each}"))})
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000


@pytest.mark.parametrize(
    ("kind", "text"), [("integer", str(10**30)), ("integer", str(-(10**30))), ("timestamp", "2026-09-01")]
)
def test_another_writers_values_beyond_amqp_stay_text(kind: str, text: str) -> None:
    """Protects a whole hub's files, too: a number of no AMQP type, and a time without its zone."""
    system: dict[str, AvroValue] = {"tidegate:property-types": json.dumps({"p": kind})}
    assert decode_event(encoded_event(b"body", {"p": text}, system)).properties == {"p": text}


def test_an_event_of_azure_needs_no_system_properties() -> None:
    """An empty map and no body, as the schema allows."""
    contents = decode_event(encoded_event(None, {"n": 2**40, "x": 0.5}, {}))
    assert contents.body == b""
    assert contents.properties == {"n": 2**40, "x": 0.5}
    assert contents.partition_key is None


def test_long_annotations_leave_nothing_in_memory() -> None:
    """In the service, a sender's 500 bytes can decode to 25 KB, and no limit counts what is cached."""

    def is_kept(annotation_count: int) -> bool:
        entries = {Symbol(f"a{number}"): number for number in range(annotation_count)}
        sections = b"\x00\x53\x72" + encode_value(entries)
        first, again = (capture._decoded_system_properties(sections) for _ in range(2))
        assert first == again
        return first is again

    assert (is_kept(2), is_kept(60)) == (True, False)
