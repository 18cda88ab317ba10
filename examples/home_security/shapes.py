"""The columns between the pipeline's steps, declared as Spark reads them, and for Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

_TYPES: Final[dict[str, pa.DataType]] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def _arrow(columns: str) -> pa.Schema:
    """The schema of ``name type, …``."""
    pairs = (column.split() for column in columns.split(", "))
    return pa.schema([pa.field(name, _TYPES[kind]) for name, kind in pairs])


def rows_of(schema: pa.Schema, *columns: Any) -> pa.RecordBatch:
    """Rows with these columns, in the schema's order."""
    return pa.RecordBatch.from_arrays(list(columns), schema=schema)


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


EVENTS: Final = ("partition", "sequenceNumber", "offset", "enqueuedTime", "partitionKey", "body")
"""The columns of an event that the pipeline needs."""

GATHERED: Final = (
    "block string, partition string, first long, readings binary, rejected binary, "
    "sent timestamp, enqueued_ms long, events long"
)
"""The result of parsing a run of events of one partition: a row for each block of homes with its events (rows
of ``READINGS`` and ``REJECTED``), and a row for each millisecond in which events were enqueued: their number,
and when the last one was sent, the event time; or 1970, which moves no watermark, if none may move it. The
columns of the other kind are null, so that a block is never behind a watermark."""
GATHERED_ARROW: Final = _arrow(GATHERED)

READINGS: Final = _arrow(
    "sequenceNumber long, offset string, enqueuedTime timestamp, home string, sensor string, kind byte, "
    "number long, taken_ms long, sent_ms long, value double"
)
"""Readings of one hub partition: their positions in it, and the fields of ``Reading``."""

_REJECTED: Final = (
    "partition string, sequenceNumber long, offset string, enqueuedTime timestamp, _error string"
)
REJECTED: Final = _arrow(_REJECTED)
"""Events that become dead letters, with the reason."""

CHANGES: Final = (
    "block string, minutes binary, alarms binary, rejected binary, pages binary, state_bytes long"
)
"""What a micro-batch changes in a block of homes (rows of the schemas below), and the size of its state. A
block whose timer fires has a second row after the first."""

_MINUTES: Final = (
    "home string, minute_ms long, readings int, motions int, openings int, co_max_ppm double, duplicates int"
)
MINUTES: Final = _arrow(f"{_MINUTES}, is_new boolean")
"""The rows of ``home_minute``; ``is_new``: no earlier micro-batch had a reading of that minute."""

_RAISED: Final = "sensor string, number long, kind string, raised_ms long, value double"
ALARMS: Final = _arrow(f"home string, {_RAISED}")
"""The rows of ``home_alarm``."""

PAGES: Final = _arrow("home string, page string")
"""Residents' pages, as JSON."""

RESULTS: Final = f"_table string, {_MINUTES}, {_RAISED}, {_REJECTED}"
"""The rows for SQL: of both tables, each naming its own, and dead letters, which have an ``_error``."""
RESULTS_ARROW: Final = _arrow(RESULTS)
