"""The columns between the pipeline's steps, for Spark and for Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

_TIME = pa.timestamp("us", tz="UTC")


def _schema(columns: dict[str, pa.DataType]) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in columns.items()])


def to_bytes(rows: pa.RecordBatch) -> bytes:
    """Rows as one value of a Spark row; the receiver knows their schema."""
    encoded: bytes = rows.serialize().to_pybytes()
    return encoded


def from_bytes(encoded: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """The inverse of ``to_bytes``."""
    return pa.ipc.read_record_batch(pa.py_buffer(encoded), schema)


def joined(parts: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Rows of several batches as one."""
    if len(parts) == 1:
        return parts[0]
    (rows,) = pa.Table.from_batches(parts, schema).combine_chunks().to_batches() or [empty(schema)]
    return rows


def empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema)


_PLACE: Final[dict[str, Any]] = {
    "partition": pa.string(),
    "sequenceNumber": pa.int64(),
    "offset": pa.string(),
    "enqueuedTime": _TIME,
}

EVENTS: Final = ("partition", "sequenceNumber", "offset", "enqueuedTime", "partitionKey", "body")
"""The columns of an event that the pipeline needs."""

GATHERED: Final = (
    "block string, partition string, first long, readings binary, rejected binary, "
    "sent timestamp, enqueued_ms long, events long"
)
GATHERED_ARROW: Final = _schema(
    {
        "block": pa.string(),
        "partition": pa.string(),
        "first": pa.int64(),
        "readings": pa.binary(),
        "rejected": pa.binary(),
        "sent": _TIME,
        "enqueued_ms": pa.int64(),
        "events": pa.int64(),
    }
)
"""The result of parsing a run of events of one partition: a row for each block of homes with its events (rows
of ``READINGS`` and ``REJECTED``), and a row for each millisecond in which events were enqueued: their number,
and when the last one was sent, the event time; or 1970, which moves no watermark, if none may move it. The
columns of the other kind are null, so that a block is never behind a watermark."""

READINGS: Final = _schema(
    {
        "sequenceNumber": pa.int64(),
        "offset": pa.string(),
        "enqueuedTime": _TIME,
        "home": pa.string(),
        "sensor": pa.string(),
        "kind": pa.int8(),
        "number": pa.int64(),
        "taken_ms": pa.int64(),
        "sent_ms": pa.int64(),
        "value": pa.float64(),
    }
)
"""Readings of one hub partition: their positions in it, and the fields of ``Reading``."""

REJECTED: Final = _schema({**_PLACE, "_error": pa.string()})
"""Events that become dead letters, with the reason."""

CHANGES: Final = (
    "block string, minutes binary, alarms binary, rejected binary, pages binary, state_bytes long"
)
"""What a micro-batch changes in a block of homes (rows of the schemas below), and the size of its state. A
block whose timer fires has a second row after the first."""

MINUTES: Final = _schema(
    {
        "home": pa.string(),
        "minute_ms": pa.int64(),
        "readings": pa.int32(),
        "motions": pa.int32(),
        "openings": pa.int32(),
        "co_max_ppm": pa.float64(),
        "duplicates": pa.int32(),
        "is_new": pa.bool_(),
    }
)
"""The rows of ``home_minute``; ``is_new``: no earlier micro-batch had a reading of that minute."""

ALARMS: Final = _schema(
    {
        "home": pa.string(),
        "sensor": pa.string(),
        "number": pa.int64(),
        "kind": pa.string(),
        "raised_ms": pa.int64(),
        "value": pa.float64(),
    }
)
"""The rows of ``home_alarm``."""

PAGES: Final = _schema({"home": pa.string(), "page": pa.string()})
"""Residents' pages, as JSON."""

RESULTS: Final = (
    "_table string, home string, minute_ms long, readings int, motions int, openings int, co_max_ppm double, "
    "duplicates int, sensor string, number long, kind string, raised_ms long, value double, "
    "partition string, sequenceNumber long, offset string, enqueuedTime timestamp, _error string"
)
RESULTS_ARROW: Final = pa.unify_schemas(
    [
        pa.schema([("_table", pa.string())]),
        MINUTES.remove(MINUTES.get_field_index("is_new")),
        ALARMS,
        REJECTED,
    ]
)
"""The rows for SQL: of both tables, each naming its own, and dead letters, which have an ``_error``."""
