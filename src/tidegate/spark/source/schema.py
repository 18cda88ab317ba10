"""The columns of the format ``eventhubs``, as Spark types and as Arrow types.

Names, order and types are those of the JVM connector (azure-eventhubs-spark), so that queries can be moved
unchanged. The Arrow schema must match what Spark derives from the Spark schema exactly: Spark checks the
first batch only, and reads garbage from a later one that differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
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
"""One row per event, decoded. ``.schema(…)`` may also name ``properties.NAME`` (``property_of``)."""

ENCODED_EVENT_SCHEMA: Final = StructType(
    [
        StructField("partition", StringType()),
        StructField("offset", StringType()),
        StructField("sequenceNumber", LongType()),
        StructField("enqueuedTime", TimestampType()),
        StructField("encodedEvent", BinaryType()),
    ]
)
"""One row per event, still encoded: what the SQL sink passes to a Python handler, so that it gets the same
``ReceivedEvent``, with typed properties, as every other consumer."""

NEVER_NULL: Final = tuple(ENCODED_EVENT_SCHEMA.fieldNames())
"""The columns that are never null."""

_ARROW_TYPES: Final[Mapping[DataType, pa.DataType]] = {
    BinaryType(): pa.binary(),
    StringType(): pa.string(),
    LongType(): pa.int64(),
    TimestampType(): pa.timestamp("us", tz="UTC"),
    _TEXT_MAP: pa.map_(pa.string(), pa.string()),
}
_TYPES: Final = {field.name: field.dataType for field in (*EVENT_SCHEMA, *ENCODED_EVENT_SCHEMA)}


@lru_cache(maxsize=64)
def arrow_schema(names: tuple[str, ...]) -> pa.Schema:
    """The Arrow schema of these columns, in this order."""
    return pa.schema([(name, _ARROW_TYPES[_TYPES.get(name, StringType())]) for name in names])


EVENT_ARROW_SCHEMA: Final = arrow_schema(tuple(EVENT_SCHEMA.fieldNames()))
ENCODED_EVENT_ARROW_SCHEMA: Final = arrow_schema(tuple(ENCODED_EVENT_SCHEMA.fieldNames()))


def event_field(name: str) -> StructField:
    """A column of ``EVENT_SCHEMA``, or that of a property."""
    return EVENT_SCHEMA[name] if property_of(name) is None else StructField(name, StringType())


def check_chosen_columns(chosen: StructType, available: StructType) -> None:
    """Refuse columns of ``.schema(…)`` that the source does not have; any subset in any order is fine.

    Raises InvalidArgumentError, naming the column, where one is unknown, has another type, is given twice or
    is wrongly declared NOT NULL, and where there is no column at all.
    """
    types = {item.name: item.dataType for item in available.fields}
    if "properties" in types:
        types |= {name: StringType() for name in chosen.fieldNames() if property_of(name) is not None}
    columns = ", ".join(f"{item.name} {item.dataType.simpleString()}" for item in available)
    hint = f"The columns are {columns}."
    seen: set[str] = set()
    for item in chosen.fields:
        if item.name not in types:
            raise InvalidArgumentError(f"The source has no column {item.name!r}.", next_step=hint)
        if item.dataType != types[item.name]:
            raise InvalidArgumentError(
                f"The column {item.name} is of type {types[item.name].simpleString()}, "
                f"not {item.dataType.simpleString()}.",
                next_step=hint + " Cast it in the query.",
            )
        if not item.nullable and item.name not in NEVER_NULL:
            raise InvalidArgumentError(
                f"The column {item.name} may be null.", next_step="Leave NOT NULL out."
            )
        if item.name in seen:
            raise InvalidArgumentError(f"The column {item.name} is given twice.", next_step="Give it once.")
        seen.add(item.name)
    if not seen:
        raise InvalidArgumentError("No column is given.", next_step=hint)
