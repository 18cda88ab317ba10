"""The columns of the format ``eventhubs``, as Spark types and as Arrow types.

Names, order and types are those of the JVM connector (azure-eventhubs-spark), so that queries move over
unchanged. The Arrow schema must match what Spark derives from the Spark schema to the letter: Spark checks
the first batch only, and reads garbage from a later one that differs.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_TEXT_MAP = MapType(StringType(), StringType(), valueContainsNull=True)

EVENT_SCHEMA: Final = StructType(
    [
        StructField("body", BinaryType()),
        StructField("partition", StringType()),
        StructField("offset", StringType()),
        StructField("sequenceNumber", LongType()),
        StructField("enqueuedTime", TimestampType()),
        StructField("publisher", StringType()),
        StructField("partitionKey", StringType()),
        StructField("properties", _TEXT_MAP),
        StructField("systemProperties", _TEXT_MAP),
    ]
)
"""One row per event, decoded."""

ENCODED_EVENT_SCHEMA: Final = StructType(
    [
        StructField("partition", StringType()),
        StructField("offset", StringType()),
        StructField("sequenceNumber", LongType()),
        StructField("enqueuedTime", TimestampType()),
        StructField("encodedEvent", BinaryType()),
    ]
)
"""One row per event, the event itself still encoded: what a Python handler in the SQL sink is fed with, so
that it sees the same ``ReceivedEvent`` (typed properties and all) as every other consumer."""

_ARROW_TIMESTAMP = pa.timestamp("us", tz="UTC")
_ARROW_TEXT_MAP = pa.map_(pa.string(), pa.string())

_EVENT_COLUMNS: Final[list[tuple[str, pa.DataType]]] = [
    ("body", pa.binary()),
    ("partition", pa.string()),
    ("offset", pa.string()),
    ("sequenceNumber", pa.int64()),
    ("enqueuedTime", _ARROW_TIMESTAMP),
    ("publisher", pa.string()),
    ("partitionKey", pa.string()),
    ("properties", _ARROW_TEXT_MAP),
    ("systemProperties", _ARROW_TEXT_MAP),
]
EVENT_ARROW_SCHEMA: Final = pa.schema(_EVENT_COLUMNS)

_ENCODED_EVENT_COLUMNS: Final[list[tuple[str, pa.DataType]]] = [
    ("partition", pa.string()),
    ("offset", pa.string()),
    ("sequenceNumber", pa.int64()),
    ("enqueuedTime", _ARROW_TIMESTAMP),
    ("encodedEvent", pa.binary()),
]
ENCODED_EVENT_ARROW_SCHEMA: Final = pa.schema(_ENCODED_EVENT_COLUMNS)
