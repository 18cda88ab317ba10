"""The columns between the pipeline's steps, as Spark names them and as Arrow does."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

_TIME = pa.timestamp("us", tz="UTC")


def _schema(columns: dict[str, pa.DataType]) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in columns.items()])


GATHERED: Final = "block string, first long, sent timestamp, readings binary, rejected binary"
GATHERED_ARROW: Final = _schema(
    {
        "block": pa.string(),
        "first": pa.int64(),
        "sent": _TIME,
        "readings": pa.binary(),
        "rejected": pa.binary(),
    }
)
"""What came for a block of homes in a run of events."""

CHANGES: Final = "minutes binary, alarms binary, rejected binary, summaries binary"
"""What a micro-batch changes in a block of homes."""

MINUTES: Final = (
    "home string, minute_ms long, readings int, motions int, openings int, co_max_ppm double, duplicates int"
)
MINUTES_ARROW: Final = _schema(
    {
        "home": pa.string(),
        "minute_ms": pa.int64(),
        "readings": pa.int32(),
        "motions": pa.int32(),
        "openings": pa.int32(),
        "co_max_ppm": pa.float64(),
        "duplicates": pa.int32(),
    }
)
"""The rows of ``home_minute``."""

ALARMS: Final = (
    "home string, sensor string, number long, kind string, raised_ms long, value double, _error string, "
    "partition string, sequenceNumber long, offset string, enqueuedTime timestamp"
)
ALARMS_ARROW: Final = _schema(
    {
        "home": pa.string(),
        "sensor": pa.string(),
        "number": pa.int64(),
        "kind": pa.string(),
        "raised_ms": pa.int64(),
        "value": pa.float64(),
        "_error": pa.string(),
        "partition": pa.string(),
        "sequenceNumber": pa.int64(),
        "offset": pa.string(),
        "enqueuedTime": _TIME,
    }
)
"""The rows of ``home_alarm``, and those that become dead letters: they have an ``_error`` and a place."""
