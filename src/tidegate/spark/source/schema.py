"""The columns of the format ``eventhubs``, as Spark types; ``columns.schema`` has them as Arrow types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

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

from tidegate.columns.names import EVENT_COLUMNS
from tidegate.columns.schema import NEVER_NULL
from tidegate.model.errors import InvalidArgumentError
from tidegate.wire.event_texts import property_of

_TEXT_MAP = MapType(StringType(), StringType(), valueContainsNull=True)
_TYPES: Final[Mapping[str, DataType]] = {
    "body": BinaryType(),
    "partition": StringType(),
    "offset": StringType(),
    "sequenceNumber": LongType(),
    "enqueuedTime": TimestampType(),
    "publisher": StringType(),
    "partitionKey": StringType(),
    "properties": _TEXT_MAP,
    "systemProperties": _TEXT_MAP,
    "encodedEvent": BinaryType(),
}


def schema_of(names: Iterable[str]) -> StructType:
    """The Spark schema of these columns: any event column, or ``properties.NAME`` (``property_of``)."""
    return StructType([StructField(name, _TYPES.get(name, StringType())) for name in names])


EVENT_SCHEMA: Final = schema_of(EVENT_COLUMNS)
"""One row per event, decoded."""

ENCODED_EVENT_SCHEMA: Final = schema_of(NEVER_NULL)
"""One row per event, still encoded: what the SQL sink passes to a Python handler, so that it gets the same
``ReceivedEvent``, with typed properties, as every other consumer."""


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
