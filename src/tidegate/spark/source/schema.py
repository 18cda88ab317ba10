"""The columns of the format ``eventhubs``, as Spark types and as Arrow types.

Names, order and types are those of the JVM connector (azure-eventhubs-spark), so that queries move over
unchanged. The Arrow schema must match what Spark derives from the Spark schema to the letter: Spark checks
the first batch only, and reads garbage from a later one that differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
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

from tidegate.model.errors import InvalidArgumentError
from tidegate.wire.event_texts import property_of

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
"""One row per event, decoded. Beside these, ``.schema(…)`` may name ``properties.NAME`` (``property_of``)."""

COMMITTED_COLUMN: Final = "committed"
"""The one column of rows from tasks that commit where they read: binary, null but for one row of a task."""

MADE_COLUMN: Final = "made"
"""The one column of what a function makes where events are read: a struct of that, or null in rows that are
there to be counted, which cost Spark next to nothing so."""

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

_ARROW_TYPES: Final = dict([*_EVENT_COLUMNS, *_ENCODED_EVENT_COLUMNS])
_NEVER_NULL: Final = ("partition", "offset", "sequenceNumber", "enqueuedTime", "encodedEvent")


@lru_cache(maxsize=64)
def _arrow_schema(names: tuple[str, ...]) -> pa.Schema:
    return pa.schema(
        [(name, _ARROW_TYPES[name] if property_of(name) is None else pa.string()) for name in names]
    )


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """The Arrow schema of some of the columns, in this order."""
    return _arrow_schema(tuple(names))


def event_field(name: str) -> StructField:
    """A column of ``EVENT_SCHEMA``, or the one of a property."""
    return EVENT_SCHEMA[name] if property_of(name) is None else StructField(name, StringType())


def check_chosen_columns(chosen: StructType, available: StructType) -> None:
    """Refuse what ``.schema(…)`` names and the source does not have; any columns in any order are fine.

    Raises InvalidArgumentError, which names the column, for an unknown one, one of another type, one given
    twice, one declared NOT NULL that may be null, and where there is none at all.
    """
    types = {item.name: item.dataType for item in available.fields}
    if "properties" in types:
        types |= {name: StringType() for name in chosen.fieldNames() if property_of(name) is not None}
    hint = (
        f"The columns are {', '.join(f'{item.name} {item.dataType.simpleString()}' for item in available)}."
    )
    seen: set[str] = set()
    for item in chosen.fields:
        if item.name not in types:
            raise InvalidArgumentError(f"The source has no column {item.name!r}.", next_step=hint)
        if item.dataType != types[item.name]:
            raise InvalidArgumentError(
                f"The column {item.name} is of the type {types[item.name].simpleString()}, "
                f"and not {item.dataType.simpleString()}.",
                next_step=hint + " Cast it in the query.",
            )
        if not item.nullable and item.name not in _NEVER_NULL:
            raise InvalidArgumentError(
                f"The column {item.name} may be null.", next_step="Leave NOT NULL out."
            )
        if item.name in seen:
            raise InvalidArgumentError(f"The column {item.name} is named twice.", next_step="Name it once.")
        seen.add(item.name)
    if not seen:
        raise InvalidArgumentError("No column is named.", next_step=hint)
