"""The columns between the pipeline's steps, as Spark names them and as Arrow does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

_TIME = pa.timestamp("us", tz="UTC")


def _schema(columns: dict[str, pa.DataType]) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in columns.items()])


def to_bytes(rows: pa.RecordBatch) -> bytes:
    """Rows as one value of a row of Spark's; the receiver knows their schema."""
    encoded: bytes = rows.serialize().to_pybytes()
    return encoded


def from_bytes(encoded: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """What ``to_bytes`` was given."""
    return pa.ipc.read_record_batch(pa.py_buffer(encoded), schema)


def joined(parts: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Rows of several batches as one."""
    if len(parts) == 1:
        return parts[0]
    (rows,) = pa.Table.from_batches(parts, schema).combine_chunks().to_batches() or [empty(schema)]
    return rows


def empty(schema: pa.Schema) -> pa.RecordBatch:
    """No row."""
    return pa.RecordBatch.from_pylist([], schema)


_PLACE: Final[dict[str, Any]] = {
    "partition": pa.string(),
    "sequenceNumber": pa.int64(),
    "offset": pa.string(),
    "enqueuedTime": _TIME,
}

EVENTS: Final = ("partition", "sequenceNumber", "offset", "enqueuedTime", "partitionKey", "body")
"""What the pipeline needs of an event."""

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
"""Of a run of events of one partition. A row for each block of homes: what came for it, rows of ``READINGS``
and of ``REJECTED``. And a row for each millisecond in which events were enqueued: how many, and when the
last of them was sent, the event time; 1970, which moves no watermark, where none of them may say so. The
columns of the other kind are null, so that no watermark can be past a block."""

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
"""Readings of one hub partition: their places in it, and the fields of ``Reading``."""

REJECTED: Final = _schema({**_PLACE, "_error": pa.string()})
"""Events that become dead letters, and why."""

CHANGES: Final = (
    "block string, minutes binary, alarms binary, rejected binary, pages binary, state_bytes long"
)
"""What a micro-batch changes in a block of homes: rows of the schemas below; and how large its state is. A
block whose timer fires has a second row, behind the first."""

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
"""The rows of ``home_minute``; ``is_new``: no micro-batch before had a reading of that minute."""

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
"""What goes to SQL: rows of both tables, each naming its own, and dead letters, which have an ``_error``."""
