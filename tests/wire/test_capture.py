"""Capture files as other programs know them: schema, records, times and names."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from io import BytesIO
from uuid import UUID

import fastavro
import pytest
from tests.support.calls import calls_of

from tidegate.amqp.message import decode_message
from tidegate.model.capture import NAME_FORMAT_DEFAULT
from tidegate.model.events import EventContents, EventData
from tidegate.wire.capture import (
    AVRO_SCHEMA,
    PROPERTY_TYPES,
    capture_file_name,
    capture_record,
    encoded_event,
    enqueued_time_text,
    system_properties,
    undecodable_record,
)
from tidegate.wire.event_codec import decode_event, encode_event
from tidegate.wire.event_texts import cached_when_short


def _written(record: object) -> object:
    """The record after a trip through an Avro file."""
    file = BytesIO()
    fastavro.writer(file, dict(AVRO_SCHEMA), [record])
    file.seek(0)
    return next(iter(fastavro.reader(file)))


def test_only_short_surroundings_are_kept() -> None:
    """Protects memory: what 4,096 events have around their bodies may be a megabyte each."""
    decoded: list[bytes] = []

    @cached_when_short
    def decode(data: bytes) -> bytes:
        decoded.append(data)
        return data

    for data in (b"s" * 100, b"l" * 100_000):
        assert decode(data) == decode(data) == data
    assert decoded == [b"s" * 100, b"l" * 100_000, b"l" * 100_000]


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (datetime(2020, 6, 12, 18, 32, 34, tzinfo=UTC), "6/12/2020 6:32:34 PM"),
        (datetime(2020, 6, 25, 15, 47, 29, 999_000, tzinfo=UTC), "6/25/2020 3:47:29 PM"),
        (datetime(2026, 1, 2, 0, 5, 6, tzinfo=UTC), "1/2/2026 12:05:06 AM"),
        (datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC), "1/2/2026 12:00:00 PM"),
        (datetime(2026, 1, 2, 11, 59, 59, tzinfo=UTC), "1/2/2026 11:59:59 AM"),
    ],
)
def test_times_read_as_in_azures_files(time: datetime, text: str) -> None:
    """The first two are from captured files of 2020."""
    assert enqueued_time_text(int(time.timestamp() * 1000)) == text


def test_a_name_has_the_documented_parts() -> None:
    """Two digits from the month down, as in Azure's example of 2017-08-31."""
    time_s = int(datetime(2017, 8, 31, 19, 11, 5, tzinfo=UTC).timestamp())
    parts = {"namespace": "ns", "event_hub": "hub", "partition_id": "1", "time_s": time_s}
    assert capture_file_name(NAME_FORMAT_DEFAULT, **parts) == "ns/hub/1/2017/08/31/19/11/05.avro"  # type: ignore[arg-type]
    other = "y={Year}/{Month}{Day}/{Namespace}-{EventHub}.{PartitionId}_{Hour}{Minute}{Second}"
    assert capture_file_name(other, **parts) == "y=2017/0831/ns-hub.1_191105.avro"  # type: ignore[arg-type]


def test_an_event_keeps_everything() -> None:
    """Body, properties by type, partition key and standard properties come back from an Avro file."""
    event = EventData(
        b"\x00body",
        {"n": 7, "big": 2**62, "x": 1.5, "s": "text", "b": b"\xff", "yes": True, "none": None},
        content_type="application/json",
        message_id="m",
        correlation_id="c",
    )
    encoded = encode_event(event, "key")
    system = system_properties(encoded, 1_700_000_000_123)
    record = capture_record(42, "1/2/2026 12:00:00 PM", decode_event(encoded), system)
    assert _written(record) == {
        "SequenceNumber": 42,
        "Offset": "42",
        "EnqueuedTimeUtc": "1/2/2026 12:00:00 PM",
        "SystemProperties": {
            "x-opt-enqueued-time": 1_700_000_000_123,
            "x-opt-partition-key": "key",
            "message-id": "m",
            "correlation-id": "c",
            "content-type": "application/json",
            "tidegate:property-types": '{"yes":"boolean","none":"null"}',
        },
        "Properties": {
            "n": 7,
            "big": 2**62,
            "x": 1.5,
            "s": "text",
            "b": b"\xff",
            "yes": "true",
            "none": "",
        },
        "Body": b"\x00body",
    }


def test_a_plain_event_has_empty_maps() -> None:
    """As in the captured files of 2020 that hold events without properties."""
    record = _written(capture_record(0, "t", decode_event(encode_event(EventData(b"x")))))
    assert isinstance(record, dict)
    assert record["SystemProperties"] == record["Properties"] == {}


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (2**63, str(2**63)),
        (-(2**63), -(2**63)),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00+00:00"),
        (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (False, "false"),
        ([1], b"\xc0\x03\x01\x55\x01"),
    ],
)
def test_values_that_the_schema_lacks_have_a_form(value: object, written: object) -> None:
    """No property keeps an event from being captured."""
    contents = EventContents(b"", {"p": value})  # type: ignore[dict-item]  # lists come from raw AMQP only
    record = _written(capture_record(0, "t", contents))
    assert isinstance(record, dict)
    assert record["Properties"] == {"p": written}


def test_other_threads_run_while_types_are_noted() -> None:
    """Protects the event loop, which waits while C code has the interpreter: a megabyte may have 170,000
    properties whose type the schema lacks. Python code can be interrupted at each of its calls."""

    def work(count: int) -> Callable[[], object]:
        contents = EventContents(b"", {f'"p{number}': None for number in range(count)})
        return lambda: capture_record(0, "t", contents)

    # Each has its value found by a call, and its name written by some others.
    assert calls_of(work(5_000)) - calls_of(work(1_000)) > 3 * 4_000
    assert capture_record(0, "t", EventContents(b"", {'"é': None, "b": True}))["SystemProperties"] == {
        PROPERTY_TYPES: r'{"\"\u00e9":"null","b":"boolean"}'
    }


@pytest.mark.parametrize(("value", "body"), [("é", "é".encode()), (b"\x01", b"\x01"), (7, b"\x55\x07")])
def test_a_body_of_another_kind_has_a_form(value: object, body: bytes) -> None:
    """Text and binary as they are, all else AMQP-encoded."""
    record = _written(capture_record(0, "t", EventContents(b"", body_value=value)))
    assert isinstance(record, dict)
    assert record["Body"] == body


@pytest.mark.parametrize(("number", "kept"), [(7, 7), (2**32, None), (-1, None)])
def test_a_group_sequence_that_amqp_lacks_is_left_out(number: int, kept: int | None) -> None:
    """Of another program's file, whose events are read for all that."""
    encoded = encoded_event(b"x", {}, {"group-sequence": number, "subject": "s"})
    found = decode_message(encoded).properties
    assert found is not None
    assert (found.group_sequence, found.subject) == (kept, "s")


def test_bytes_that_are_no_message_are_kept() -> None:
    """Capture must not stop at an event that the service took in without decoding it."""
    record = _written(undecodable_record(3, "t", b"\xde\xad", enqueued_time_ms=5))
    assert isinstance(record, dict)
    assert record["SystemProperties"].keys() == {"x-opt-enqueued-time", "tidegate-decode-error"}
    assert (record["SequenceNumber"], record["Offset"], record["Body"]) == (3, "3", b"\xde\xad")
