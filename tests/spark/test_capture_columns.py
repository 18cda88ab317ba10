"""Columns of captured events against those of the same events live, without a Spark."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from tests.spark.capture_support import START_S, azure_record, azure_time, write_file

from tidegate.capture.avro_file import AvroEncoder
from tidegate.columns.batches import event_batch
from tidegate.columns.names import EVENT_COLUMNS
from tidegate.model.events import EventData
from tidegate.spark.capture.columns import capture_batch, capture_rows
from tidegate.spark.capture.container import CaptureFileError
from tidegate.spark.capture.options import CaptureOptions
from tidegate.spark.capture.reader import CaptureReader
from tidegate.spark.source.schema import ENCODED_EVENT_SCHEMA
from tidegate.spark.sql_sink.commits import received_events
from tidegate.wire.batch import wrap_event
from tidegate.wire.encoded_events import EncodedEvents
from tidegate.wire.event_codec import decode_event, encode_event

_TIME_MS = START_S * 1000 + 123
_VALUES = [None, True, 1, 2**62, 1.0, 0.5, "é", b"\xff", datetime(2026, 1, 1, tzinfo=UTC), UUID(int=9), ""]


def _events(rng: random.Random) -> list[bytes]:
    return [
        encode_event(
            EventData(
                rng.randbytes(rng.randrange(400)),
                {name: rng.choice(_VALUES) for name in rng.sample("abcde", rng.randrange(5))},
                message_id=rng.choice([None, "m"]),
                content_type=rng.choice([None, "a/b"]),
            ),
            rng.choice([None, "k1", "k2"]),
        )
        for _ in range(500)
    ] + [b"\xde\xad"]


def _read(path: Path, columns: list[str]) -> pa.Table:
    reader = CaptureReader(CaptureOptions.parse({"path": str(path)}), columns)
    return pa.Table.from_batches([batch for task in reader.partitions() for batch in reader.read(task)])


@pytest.fixture
def captured(tmp_path: Path) -> list[bytes]:
    """Events of random shapes, one of them no AMQP message, in a file of our service."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    encoded = _events(random.Random(seed))
    sections = [wrap_event(event) for event in encoded]
    encoder = AvroEncoder(b"a marker 16 long")
    encoder.append(0, _TIME_MS, memoryview(b"".join(sections)), list(map(len, sections)))
    path = write_file(tmp_path, [])
    path.write_bytes(encoder.take() + encoder.finish())
    return encoded


def test_every_column_is_the_live_one(captured: list[bytes], tmp_path: Path) -> None:
    """Types and values, nulls and the reason of what cannot be decoded; also in another order."""
    numbers = range(len(captured))
    events = EncodedEvents(numbers, [_TIME_MS] * len(captured), [str(n) for n in numbers], list(captured))
    live = pa.Table.from_batches([event_batch("0", events, EVENT_COLUMNS)])
    found = _read(tmp_path, list(EVENT_COLUMNS))
    assert found.schema == live.schema
    for name in EVENT_COLUMNS:
        for mine, theirs in zip(found[name].to_pylist(), live[name].to_pylist(), strict=True):
            # Maps come as lists of pairs, whose order says nothing.
            assert (sorted(mine) if isinstance(mine, list) else mine) == (
                sorted(theirs) if isinstance(theirs, list) else theirs
            ), name
    few = _read(tmp_path, ["sequenceNumber", "properties"])
    assert few == found.select(["sequenceNumber", "properties"])
    one = [event_batch("0", events, ["properties.a", "properties.b"])]
    assert _read(tmp_path, ["properties.a", "properties.b"]) == pa.Table.from_batches(one)


def test_a_handler_is_given_the_event_that_was_sent(captured: list[bytes], tmp_path: Path) -> None:
    """Contents with their types, and where it lies."""
    table = _read(tmp_path, ENCODED_EVENT_SCHEMA.fieldNames())
    found = received_events("0", table)
    assert len(found) == len(captured)
    for number, (event, sent) in enumerate(zip(found[:-1], captured[:-1], strict=True)):
        assert event.contents == decode_event(sent)
        assert (event.sequence_number, event.offset) == (number, str(number))
        assert event.enqueued_time_ms == _TIME_MS


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("6/12/2020 6:32:34 PM", 1591986754000),
        ("11/20/2026 12:00:00 AM", 1795132800000),
        ("2019-05-10T06:06:32.7220000Z", 1557468392722),
    ],
)
def test_times_as_azure_writes_them(text: str, time_ms: int) -> None:
    """Of Event Hubs, and of IoT Hub's routing."""
    rows = capture_rows([azure_record(0, EnqueuedTimeUtc=text)], "f")
    assert rows.times_ms.tolist() == [time_ms]


def test_a_time_that_contradicts_is_not_taken() -> None:
    """Whoever else uses our name for the exact time: the documented field counts."""
    system = {"x-opt-enqueued-time": START_S * 1000 + 5000}
    assert capture_rows([azure_record(0, SystemProperties=system)], "f").times_ms.tolist() == [START_S * 1000]
    assert azure_time(START_S) == "11/20/2026 12:00:00 PM"


def test_a_time_that_is_none_names_the_file() -> None:
    """Another service's Avro with the same field names."""
    with pytest.raises(CaptureFileError, match=r"f\.avro does not hold captured events"):
        capture_rows([azure_record(0, EnqueuedTimeUtc="yesterday")], "f.avro")


def test_equal_numbers_of_two_types_stay_apart() -> None:
    """1 and 1.0 are equal in Python, and read differently."""
    records = [azure_record(n, SystemProperties={"v": value}) for n, value in enumerate((1, 1.0, 1))]
    batch = capture_batch("0", capture_rows(records, "f"), ["systemProperties"])
    assert batch.column(0).to_pylist() == [[("v", "1")], [("v", "1.0")], [("v", "1")]]
