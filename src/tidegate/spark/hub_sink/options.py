"""The options and columns of the sink ``eventhubs``, checked when a query is planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType

from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.runtime.certificates import read_certificates
from tidegate.spark.source.options import _boolean, _connection_string, _credential

_PREFIX: Final = "eventhubs."
_KNOWN: Final = (
    "eventhubs.connectionString",
    "eventhubs.eventHubName",
    "eventhubs.caFile",
    "eventhubs.credential",
    "eventhubs.idempotent",
    "eventhubs.writeId",
)
_NAMES: Final = {name.lower(): name for name in _KNOWN}
_OPTIONS_OF_SPARK: Final = ("checkpointlocation", "path", "queryname")

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

    connection_string: ConnectionString = field(repr=False)
    """Names the event hub in ``entity_path``."""
    ca_certificates: str | None = field(repr=False)
    """What the option ``caFile`` names, in PEM."""
    credential: str | None
    """``module:name`` of what makes a credential; None: the key or signature of the connection string."""
    is_idempotent: bool
    """Number the batches where the service knows how; False stores a repeated micro-batch again."""
    write_id: str | None
    """Batch queries: what names this write, so that the same write begun again stores nothing twice."""

    @classmethod
    def parse(cls, options: Mapping[str, str], *, is_stream: bool) -> HubSinkOptions:
        """Check the options that Spark hands over (names in any case, with or without ``eventhubs.``).

        Raises InvalidArgumentError naming the option at fault; ConnectionStringError for the string itself.
        """
        given: dict[str, str] = {}
        for raw_name, value in options.items():
            if raw_name.lower() in _OPTIONS_OF_SPARK:
                continue
            name = _NAMES.get(_PREFIX + raw_name.lower().removeprefix(_PREFIX))
            if name is None:
                raise InvalidArgumentError(
                    f"The sink eventhubs has no option {raw_name!r}.",
                    next_step=f"It knows {', '.join(_KNOWN)} (each also without `eventhubs.`, in any case).",
                )
            if given.setdefault(name, value) != value:
                raise InvalidArgumentError(
                    f"The option {name} is given twice, with different values.", next_step="Give it once."
                )
        if is_stream and "eventhubs.writeId" in given:
            raise InvalidArgumentError(
                "The option eventhubs.writeId is for batch queries; a stream is known by its checkpoint.",
                next_step="Leave it out.",
            )
        ca_file = given.get("eventhubs.caFile")
        connection_string = _connection_string(given)
        return cls(
            connection_string=connection_string,
            ca_certificates=None if ca_file is None else read_certificates(ca_file),
            credential=_credential(given, connection_string),
            is_idempotent=_boolean(given, "eventhubs.idempotent", default=True),
            write_id=given.get("eventhubs.writeId"),
        )


def check_columns(schema: StructType) -> None:
    """Raise InvalidArgumentError unless the columns are among those of the JVM connector's sink.

    Source: azure-event-hubs-spark, "Structured Streaming … Writing Data to EventHubs": ``body`` is required,
    ``partition`` or ``partitionKey`` and ``properties`` are optional.
    """
    for field_ in schema.fields:
        types = _TYPES.get(field_.name)
        if types is None:
            raise InvalidArgumentError(
                f"The sink eventhubs has no column {field_.name!r}.",
                next_step=f"It takes {', '.join(_TYPES)}: put what else there is into the body.",
            )
        if field_.dataType not in types:
            wanted = " or ".join(sorted({each.simpleString() for each in types}))
            raise InvalidArgumentError(
                f"The column {field_.name} is {field_.dataType.simpleString()}, and the sink eventhubs takes "
                f"{wanted}.",
                next_step=f"Cast it, or make text of it with to_json(…).alias('{field_.name}').",
            )
    if "body" not in schema.fieldNames():
        raise InvalidArgumentError(
            "The sink eventhubs needs the column body.",
            next_step="Select one, such as to_json(struct('*')).alias('body').",
        )
