"""Functions per Arrow and per pandas batch do what a function per event does, and account for every event."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete
from tests.sql.support import LogOfEvents, flights, rows_in

from tidegate.amqp.message import Message, encode_message
from tidegate.amqp.types import Symbol, ULong
from tidegate.columns.names import EVENT_COLUMNS
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.events import EventData, ReceivedEvent
from tidegate.sql import (
    ArrowHandler,
    BatchResult,
    BatchResultError,
    Database,
    DeadLetters,
    PandasHandler,
    Pipeline,
    TransformationError,
    process_partition_batch,
)
from tidegate.sql.core.parked_keys import stored_key_of
from tidegate.sql.core.schema import checkpoint, dead_letter
from tidegate.sql.core.values import DeadLetterFilter, place_of
from tidegate.sql.handlers.arrow import event_batch_of
from tidegate.wire.event_codec import decode_event, encode_event
from tidegate.wire.names import PARTITION_KEY, PUBLISHER

_KINDS = ["row", "row", "row", "three rows", "skip", "raise", "error", "null delay", "same key"]
"""What an event asks the handlers of these tests to do."""


def _event(number: int, kind: str) -> ReceivedEvent:
    data = EventData(json.dumps({"kind": kind, "delay": number}).encode(), {"n": number})
    return ReceivedEvent(
        "0", number, str(number), 1_700_000_000_000 + number, encode_event(data, "UA1"), decode_event
    )


def _rows(number: int, body: bytes) -> list[dict[str, Any]]:
    """The rows of one event, with ``_error`` and ``_skip`` where it asks for them; raises where it does."""
    found = json.loads(body)
    kind, row = found["kind"], {"sequence_number": number, "partition_id": "0", "delay": found["delay"]}
    if kind == "raise":
        raise ValueError(f"event {number} cannot be scored")
    if kind == "three rows":
        return [{**row, "partition_id": part, "note": part} for part in "abc"]
    if kind == "error":
        return [row, {**row, "_error": "no arrival"}]
    if kind == "null delay":
        return [{**row, "delay": None}]
    if kind == "same key":
        return [{**row, "sequence_number": 0, "partition_id": "taken"}]
    return [{**row, "_skip": kind == "skip"}]


def _by_event(event: ReceivedEvent) -> list[dict[str, Any]]:
    rows = _rows(event.sequence_number, event.body)
    if any("_error" in row for row in rows):
        raise TransformationError("no arrival")
    return [{**row, "note": row.get("note")} for row in rows if not row.pop("_skip", False)]


def _table_of(numbers: Sequence[Any], bodies: Sequence[Any]) -> dict[str, list[Any]]:
    rows = [
        {"note": None, "_error": None, "_skip": None, **row, "sequenceNumber": number}
        for number, body in zip(numbers, bodies, strict=True)
        for row in _rows(number, body)
    ]
    names = ("sequenceNumber", *flights.columns.keys(), "_error", "_skip")
    return {name: [row[name] for row in rows] for name in names}


def _by_arrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = _table_of(batch.column("sequenceNumber").to_pylist(), batch.column("body").to_pylist())
    types: dict[str, Any] = {
        "delay": pa.int64(),
        "note": pa.string(),
        "_error": pa.string(),
        "_skip": pa.bool_(),
    }
    arrays = [pa.array(values, types.get(name)) for name, values in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _by_pandas(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(_table_of(list(frame["sequenceNumber"]), list(frame["body"])))


_HANDLERS: dict[str, Any] = {
    "event": _by_event,
    "arrow": ArrowHandler(_by_arrow),
    "pandas": PandasHandler(_by_pandas),
}


def _process(database: Database, handler: Any, events: Sequence[ReceivedEvent]) -> BatchResult:
    return process_partition_batch(
        database,
        Pipeline("flights", "flights", flights, handler, is_payload_copied=True),
        "0",
        events,
        start_sequence_number=events[0].sequence_number,
        until_sequence_number=events[-1].sequence_number + 1,
    )


def _state(database: Database) -> object:
    """Rows and dead letters, without what is different by nature: tracebacks and times of day."""
    letters = DeadLetters(database).list(DeadLetterFilter(), limit=None)
    return rows_in(database), [
        (
            letter.sequence_number,
            letter.error_type,
            letter.reason,
            letter.offset,
            letter.enqueued_time_ms,
            letter.partition_key,
            letter.payload,
        )
        for letter in letters
    ]


def _empty(database: Database) -> None:
    with database.writing() as connection, connection.begin():
        for table in (flights, dead_letter, checkpoint):
            connection.execute(delete(table))


@pytest.mark.slow
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kinds=st.lists(st.sampled_from(_KINDS), min_size=1, max_size=24), cut=st.integers(0, 24))
def test_all_forms_of_a_handler_write_the_same(database: Database, kinds: list[str], cut: int) -> None:
    """Rows and dead letters of random events with random failures, committed in one batch or in two."""
    states, results = [], []
    for handler in _HANDLERS.values():
        _empty(database)
        events = [_event(number, kind) for number, kind in enumerate(kinds)]
        parts = [part for part in (events[:cut], events[cut:]) if part]
        results.append([_process(database, handler, part) for part in parts])
        states.append(_state(database))
    assert states[1] == states[0]
    assert states[2] == states[0]
    assert results[1] == results[0]
    assert results[2] == results[0]


@pytest.mark.parametrize("form", ["arrow", "pandas"])
def test_a_redrive_runs_batches_of_one_and_of_several(database: Database, form: str) -> None:
    """The corrected function gets the events back with the same columns, and closes their dead letters."""
    kinds = ["raise", "row", "error", "skip", "raise"]
    events = [_event(number, kind) for number, kind in enumerate(kinds)]
    _process(database, _HANDLERS[form], events)
    seen: list[list[str]] = []

    def corrected(rows: int, bodies: list[Any]) -> dict[str, list[Any]]:
        seen.append([json.loads(body)["kind"] for body in bodies])
        if len(bodies) > 1 and "error" in seen[-1]:
            raise RuntimeError("not together")
        return {
            "sequence_number": [100 + len(seen)] * rows,
            "partition_id": [*map(str, range(rows))],
            "delay": [0] * rows,
        }

    handler: Any = ArrowHandler(
        lambda batch: pa.RecordBatch.from_pydict(corrected(batch.num_rows, batch.column(0).to_pylist()))
    )
    if form == "pandas":
        handler = PandasHandler(lambda frame: pd.DataFrame(corrected(len(frame), list(frame["body"]))))
    pipeline = Pipeline("flights", "flights", flights, handler)
    log = LogOfEvents(_event(number, kind) for number, kind in enumerate(kinds))
    report = DeadLetters(database).redrive(pipeline, log, maximum=1)
    assert (report.redriven, report.rows, seen) == (1, 1, [["raise"]])
    report = DeadLetters(database).redrive(pipeline, log)
    assert (report.redriven, report.failed) == (2, 0)
    assert seen[1:] == [["error", "raise"], ["error"], ["raise"]]


def test_every_column_of_the_source_can_be_had(database: Database) -> None:
    """With its type, in the order asked for; pandas gets maps as dicts."""
    batches: list[pa.RecordBatch] = []
    frames: list[pd.DataFrame] = []

    def look(batch: pa.RecordBatch) -> pa.RecordBatch:
        batches.append(batch)
        return batch.select(["sequenceNumber"]).slice(0, 0)

    def look_with_pandas(frame: pd.DataFrame) -> pd.DataFrame:
        frames.append(frame)
        return frame[["sequenceNumber"]][0:0]

    columns = (*EVENT_COLUMNS, "properties.n", "properties.m")
    for handler in (
        ArrowHandler(look, columns, is_missing_skipped=True),
        PandasHandler(look_with_pandas, columns, is_missing_skipped=True),
    ):
        _empty(database)
        _process(database, handler, [_event(7, "row")])
    (row,) = batches[0].to_pylist()
    assert batches[0].schema.names == list(columns) == list(frames[0].columns)
    assert (row["properties.n"], row["properties.m"]) == ("7", None)
    assert (row["offset"], row["partitionKey"], row["publisher"]) == ("7", "UA1", None)
    assert row["properties"] == [("n", "7")]
    assert frames[0]["properties"][0] == {"n": "7"}
    assert str(frames[0]["enqueuedTime"].dtype) == "datetime64[us, UTC]"


@pytest.mark.parametrize(
    "decode",
    [lambda event: event.properties, stored_key_of, lambda event: place_of(event, is_payload_copied=True)],
    ids=["tracing", "parked key", "retry"],
)
def test_columns_of_a_decoded_event_are_those_of_the_received_one(
    decode: Callable[[ReceivedEvent], object],
) -> None:
    """Encoded again it would lose its publisher, and a list or a large number could not be encoded at all."""
    message = Message(
        message_annotations={Symbol(PUBLISHER): "device-1", Symbol("x-own"): 1, Symbol(PARTITION_KEY): "k"},
        application_properties={"list": [1, 2], "large": ULong(2**63)},
        data=(b"a", b"b"),
    )
    encoded = [encode_message(message), b"garbage", b""]
    fresh, decoded = (
        [ReceivedEvent("0", n, str(n), 1, each, decode_event) for n, each in enumerate(encoded)]
        for _ in range(2)
    )
    for event in decoded:
        decode(event)
    columns = (*EVENT_COLUMNS, "properties.list", "properties.large")
    batch = event_batch_of(decoded, columns)
    assert batch == event_batch_of(fresh, columns)
    row = batch.to_pylist()[0]
    assert (row["publisher"], row["partitionKey"], row["body"]) == ("device-1", "k", b"ab")
    assert (row["properties.list"], row["properties.large"]) == ("[1,2]", str(2**63))
    assert ("x-own", "1") in row["systemProperties"]


def _drop(batch: pa.RecordBatch) -> pa.RecordBatch:
    return _by_arrow(batch.slice(1))


_ROW: dict[str, list[Any]] = {"sequence_number": [9], "partition_id": ["0"], "delay": [1]}


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (_drop, "returned nothing for 1 of 3 events, the first is 5"),
        (
            lambda batch: pa.RecordBatch.from_pydict(_ROW),
            "given 3 events and returned 1 rows without a column",
        ),
        (
            lambda batch: pa.RecordBatch.from_pydict({**_ROW, "sequenceNumber": [99]}),
            "event 99, which it was not",
        ),
        (
            lambda batch: pa.RecordBatch.from_pydict({**_ROW, "sequenceNumber": [None]}),
            "sequenceNumber holds null",
        ),
        (
            lambda batch: _by_arrow(batch).append_column("gate", pa.array([1] * 3)),
            "'gate', which the table flights lacks",
        ),
        (
            lambda batch: _by_arrow(batch).drop_columns(["delay"]),
            "no column 'delay', which the table flights requires",
        ),
        (lambda batch: _by_arrow(batch).set_column(3, "delay", pa.array([[1]] * 3)), "holds single values"),
        (lambda batch: _by_arrow(batch).set_column(6, "_skip", pa.array([1] * 3)), "_skip holds int64"),
        (lambda batch: batch.to_pylist(), "returned list, not a pyarrow.RecordBatch or Table"),
    ],
    ids=["missing", "no numbers", "strange", "null", "unknown column", "forgotten", "list", "skip", "type"],
)
@pytest.mark.slow
def test_a_result_that_fits_no_events_stops_the_pipeline(
    database: Database, function: Callable[..., Any], words: str
) -> None:
    """It is the function's fault, not an event's: nothing of the batch is written, the checkpoint stays."""
    events = [_event(number, "row") for number in (5, 6, 7)]
    with pytest.raises(BatchResultError, match=words):
        _process(database, ArrowHandler(function), events)
    assert _state(database) == ([], [])
    assert _process(database, ArrowHandler(_by_arrow), events).rows == 3


def test_missing_events_are_skipped_where_that_is_said(database: Database) -> None:
    """A function that filters is allowed to."""
    events = [_event(number, "row") for number in (5, 6, 7)]
    result = _process(database, ArrowHandler(_drop, is_missing_skipped=True), events)
    assert (result.rows, result.dead_letters, result.until_sequence_number) == (2, 0, 8)


def test_rows_without_numbers_are_of_the_events_in_their_order(database: Database) -> None:
    """One row per event needs no bookkeeping, not even for a dead letter in the middle."""

    def score(batch: pa.RecordBatch) -> pa.Table:
        numbers = batch.column("sequenceNumber")
        return pa.table(
            {
                "sequence_number": numbers,
                "partition_id": batch.column("partition"),
                "delay": numbers,
                "_error": pa.array([None, "bad", None]),
            }
        )

    assert _process(database, ArrowHandler(score), [_event(n, "row") for n in (5, 6, 7)]).dead_letters == 1
    assert [row[0] for row in rows_in(database)] == [5, 7]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("no function",), "needs a function, not str"),
        ((_by_arrow, "body"), "got the string 'body'"),
        ((_by_arrow, ("body", "Partition")), "no column 'Partition'"),
        ((_by_arrow, ("body", "properties.")), "no column 'properties.'"),
        ((_by_arrow, ()), "one column or more"),
        ((_by_arrow, ("body", "body")), "each once"),
    ],
)
def test_a_handler_says_what_is_wrong_with_it(arguments: tuple[Any, ...], words: str) -> None:
    """When it is made, not when the first batch comes."""
    with pytest.raises(InvalidArgumentError, match=words):
        ArrowHandler(*arguments)


@pytest.mark.slow
def test_pyarrow_and_pandas_are_not_needed_to_declare(sqlite_url: str) -> None:
    """The package, and a pipeline per event, work without them."""
    code = (
        "import sys; sys.modules['pyarrow'] = sys.modules['pandas'] = sys.modules['numpy'] = None\n"
        "import tidegate.sql as sql, tests.sql.support as support\n"
        "sql.ArrowHandler(print)\n"
        f"database = sql.Database.open({sqlite_url!r})\n"
        "database.ensure_table(support.flights)\n"
        "sql.process_partition_batch(database, support.PIPELINE, '0', support.events_between(0, 3),"
        " start_sequence_number=0, until_sequence_number=3)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    with Database.open(sqlite_url) as database:
        assert len(rows_in(database)) == 3
