"""The columns of events as Arrow types.

Names, order and types are those of the JVM connector (azure-eventhubs-spark), so that queries can be moved
unchanged. They are the types that Spark derives from its own: Spark checks the first batch only, and reads
garbage from a later one that differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import pyarrow as pa

from tidegate.columns.names import EVENT_COLUMNS

NEVER_NULL: Final = ("partition", "offset", "sequenceNumber", "enqueuedTime", "encodedEvent")
"""The columns that are never null."""

_TEXT_MAP: Final = pa.map_(pa.string(), pa.string())
TYPES: Final[Mapping[str, pa.DataType]] = {
    "body": pa.binary(),
    "partition": pa.string(),
    "offset": pa.string(),
    "sequenceNumber": pa.int64(),
    "enqueuedTime": pa.timestamp("us", "UTC"),
    "publisher": pa.string(),
    "partitionKey": pa.string(),
    "properties": _TEXT_MAP,
    "systemProperties": _TEXT_MAP,
    "encodedEvent": pa.binary(),
}

assert tuple(TYPES) == (*EVENT_COLUMNS, "encodedEvent")


@lru_cache(maxsize=64)
def arrow_schema(names: tuple[str, ...]) -> pa.Schema:
    """The Arrow schema of these columns, in this order: any of the above, or ``properties.NAME``."""
    return pa.schema([(name, TYPES.get(name, pa.string())) for name in names])


EVENT_ARROW_SCHEMA: Final = arrow_schema(EVENT_COLUMNS)
"""One row per event, decoded."""

ENCODED_EVENT_ARROW_SCHEMA: Final = arrow_schema(NEVER_NULL)
"""One row per event, still encoded."""
