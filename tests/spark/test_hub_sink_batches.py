"""The hub sink cuts the same rows into the same batches, and refuses rows by number; no Spark, no service."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.responses import section_lengths

from tidegate.model.errors import EventTooLargeError, InvalidArgumentError, NotFoundError
from tidegate.model.partition_key import partition_for_key
from tidegate.spark.hub_sink.batches import BatchCutter, HubBatch, sendable_rows
from tidegate.spark.hub_sink.writer import producer_of
from tidegate.spark.runtime.workers import TaskIdentity
from tidegate.wire.batch import iter_events
from tidegate.wire.event_codec import decode_event

_SCHEMA = pa.schema([("body", pa.string()), ("partition", pa.string()), ("partitionKey", pa.string())])
_Row = tuple[str, str | None, str | None]

_row = st.one_of(
    st.tuples(st.text(max_size=40), st.sampled_from(["0", "1", "2"]), st.none()),
    st.tuples(st.text(max_size=40), st.none(), st.one_of(st.none(), st.text(max_size=3))),
)


def _rows(rows: list[_Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"body": body, "partition": partition, "partitionKey": key} for body, partition, key in rows],
        _SCHEMA,
    )


def _cut(
    rows: list[_Row], borders: list[int], *, bytes_max: int = 300, first_turn: int = 1
) -> list[HubBatch]:
    cutter = BatchCutter(("0", "1", "2"), bytes_max, first_turn=first_turn)
    batches: list[HubBatch] = []
    for start, until in zip([0, *borders], [*borders, len(rows)], strict=True):
        if start < until:
            batches += cutter.add(_rows(rows[start:until]))
    return [*batches, *cutter.finish()]


@pytest.mark.slow
@given(rows=st.lists(_row, min_size=1, max_size=60), data=st.data())
def test_batches_depend_on_the_rows_alone(rows: list[_Row], data: st.DataObject) -> None:
    """However Spark cuts up a task's rows, each partition gets the same batches, full but for the last."""
    borders = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    whole, in_parts = _cut(rows, []), _cut(rows, borders)
    for partition in range(3):
        mine = [batch for batch in whole if batch.partition_index == partition]
        assert mine == [batch for batch in in_parts if batch.partition_index == partition]
        for batch, following in pairwise(mine):
            assert len(batch.sections) <= 300 < len(batch.sections) + section_lengths(following.sections)[0]


@given(rows=st.lists(_row, min_size=1, max_size=60))
@pytest.mark.slow
def test_every_row_is_an_event_of_its_partition_in_order(rows: list[_Row]) -> None:
    """By partition, by the service's hash of the key, or in turn; within a partition in the order of rows."""
    found: dict[int, list[tuple[bytes, str | None]]] = {0: [], 1: [], 2: []}
    for batch in _cut(rows, []):
        lengths = section_lengths(batch.sections)
        assert len(lengths) == batch.event_count
        for event in map(decode_event, iter_events(batch.sections, lengths)):
            found[batch.partition_index].append((event.body, event.partition_key))
    expected: dict[int, list[tuple[bytes, str | None]]] = {0: [], 1: [], 2: []}
    for body, partition, key in rows:
        index = int(partition) if partition else 1 if key is None else partition_for_key(key, 3)
        expected[index].append((body.encode(), key))
    assert found == expected


def test_rows_without_key_take_turns() -> None:
    """Every 500 rows the next partition, counted over all of the task, so that none is left out."""
    rows: list[_Row] = [(str(number), None, None) for number in range(1200)]
    batches = _cut(rows, [100, 700], bytes_max=100_000, first_turn=2)
    assert {batch.partition_index: batch.event_count for batch in batches} == {2: 500, 0: 500, 1: 200}


@pytest.mark.parametrize(
    ("row", "error", "words"),
    [
        ((None, None, None), InvalidArgumentError, "Row 11 of the task has no body"),
        (("a", "1", "key"), InvalidArgumentError, "Row 11 of the task has a partition and a partitionKey"),
        (("a", None, "k" * 129), InvalidArgumentError, "Row 11 of the task has a partitionKey of over 128"),
        (("a", "3", None), NotFoundError, "no partition '3'"),
        (("a" * 300, None, None), EventTooLargeError, "Row 11 of the task is an event of 316 encoded bytes"),
    ],
)
def test_a_row_that_cannot_be_an_event_is_named(row: _Row, error: type[Exception], words: str) -> None:
    """By its number in the task, before anything of the rows that came with it is in a batch."""
    good: list[_Row] = [("a", None, None)]
    cutter = BatchCutter(("0", "1", "2"), 300, first_turn=0)
    assert list(cutter.add(_rows(good * 10))) == []
    with pytest.raises(error, match=words):
        list(cutter.add(_rows([*good, row])))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_text_that_is_not_utf8_is_sent_with_replaced_characters(kind: pa.DataType) -> None:
    """Spark casts any bytes to a string, and its ``left`` took four of these for one character. The body, in
    which an event may have any bytes, and keys that are too long but text stay as they are. With
    useLargeVarTypes, Spark's text has Arrow's other type."""

    def cast(*values: bytes | None) -> Any:
        raw = pa.large_binary() if pa.types.is_large_string(kind) else pa.binary()
        return pa.array(values, raw).view(kind)

    keys = cast(b"k\xff", None, b"\xf0abc" * 128, b"k")
    texts = cast(b"\xff", b"v", None, b"v")
    starts: Any = pa.array([0, 2, 2, 3, 4], pa.int32())
    maps = pa.MapArray.from_arrays(starts, texts.fill_null("n"), texts)
    columns = {"body": texts.fill_null(""), "partitionKey": keys, "properties": maps}
    rows = sendable_rows(pa.RecordBatch.from_pydict(columns))
    cutter = BatchCutter(("0",), 10_000, first_turn=0)
    (batch,) = [*cutter.add(rows), *cutter.finish()]
    events = [decode_event(each) for each in iter_events(batch.sections, section_lengths(batch.sections))]
    assert [(event.body, event.partition_key, dict(event.properties)) for event in events] == [
        (b"\xff", "k\ufffd", {"\ufffd": "\ufffd", "v": "v"}),
        (b"v", None, {}),
        (b"", "\ufffdabc" * 32, {"n": None}),
        (b"v", "k", {"v": "v"}),
    ]
    long = pa.RecordBatch.from_pydict(
        {
            "body": texts.fill_null(""),
            "partitionKey": cast(b"\xff", b"k" * 129, b"k", b"k"),
        }
    )
    with pytest.raises(InvalidArgumentError, match="Row 5 of the task has a partitionKey of over 128"):
        list(cutter.add(sendable_rows(long)))


def test_identities_differ_and_epochs_wrap() -> None:
    """Tasks and queries are producers of their own; after 32,768 micro-batches another one begins anew."""
    first = producer_of(TaskIdentity("query", 0, 0))
    assert first == producer_of(TaskIdentity("query", 0, 0))
    assert first.producer_id == producer_of(TaskIdentity("query", 32_767, 0)).producer_id
    assert producer_of(TaskIdentity("query", 32_767, 0)).epoch == 32_767
    others = [
        producer_of(TaskIdentity(*each)) for each in (("query", 32_768, 0), ("query", 0, 1), ("other", 0, 0))
    ]
    assert len({first.producer_id, *(other.producer_id for other in others)}) == 4
    assert {other.epoch for other in others} == {0}
