"""Checks the options and columns of the sink ``eventhubs`` when a query is planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType

from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.runtime.options import (
    HUB_OPTIONS,
    OPTIONS_OF_SPARK,
    connection_string_of,
    credential_of,
    flag,
    option,
    read_certificates,
    read_options,
    text,
)

_TYPES: Final[Mapping[str, tuple[DataType, ...]]] = {
    "body": (StringType(), BinaryType()),
    "partition": (StringType(),),
    "partitionKey": (StringType(),),
    "properties": (
        MapType(StringType(), StringType(), valueContainsNull=True),
        MapType(StringType(), StringType(), valueContainsNull=False),
    ),
}


@dataclass(frozen=True, slots=True)
class HubSinkOptions:
    """The checked options of one ``eventhubs`` sink."""

    connection_string: ConnectionString = option(connection_string_of, *HUB_OPTIONS, is_secret=True)
    """Names the event hub in ``entity_path``."""
    ca_certificates: str | None = option(read_certificates, "eventhubs.caFile", is_secret=True)
    """The content of the file (PEM)."""
    credential: str | None = option(credential_of, "eventhubs.credential")
    """``module:name`` of a credential factory; None: the connection string has a key or signature."""
    is_idempotent: bool = option(flag(True), "eventhubs.idempotent")
    """Number the batches if the service supports it; False: a repeated micro-batch is stored twice."""
    write_id: str | None = option(text(None), "eventhubs.writeId")
    """Batch queries only: names this write, so that repeating the same write stores nothing twice."""

    @classmethod
    def parse(cls, options: Mapping[str, str], *, is_stream: bool) -> HubSinkOptions:
        """Check the options that Spark passes (names in any case, with or without ``eventhubs.``).

        Raises InvalidArgumentError naming the option at fault; ConnectionStringError for the string itself.
        """
        parsed = read_options(cls, options, subject="The sink eventhubs", ignored=OPTIONS_OF_SPARK)
        if is_stream and parsed.write_id is not None:
            raise InvalidArgumentError(
                "The option eventhubs.writeId is for batch queries; a stream has its checkpoint instead.",
                next_step="Leave it out.",
            )
        return parsed


def check_columns(schema: StructType) -> None:
    """Raise InvalidArgumentError unless the columns are those of the JVM connector's sink.

    Source: azure-event-hubs-spark, "Structured Streaming … Writing Data to EventHubs": ``body`` is required,
    ``partition`` or ``partitionKey`` and ``properties`` are optional.
    """
    for field_ in schema.fields:
        types = _TYPES.get(field_.name)
        if types is None:
            raise InvalidArgumentError(
                f"The sink eventhubs has no column {field_.name!r}.",
                next_step=f"Its columns are {', '.join(_TYPES)}. Put other values into the body.",
            )
        if field_.dataType not in types:
            wanted = " or ".join(sorted({each.simpleString() for each in types}))
            raise InvalidArgumentError(
                f"The column {field_.name} is of type {field_.dataType.simpleString()}; the sink eventhubs "
                f"requires {wanted}.",
                next_step=f"Cast it, or convert it with to_json(…).alias('{field_.name}').",
            )
    if "body" not in schema.fieldNames():
        raise InvalidArgumentError(
            "The sink eventhubs requires the column body.",
            next_step="Select one, such as to_json(struct('*')).alias('body').",
        )
