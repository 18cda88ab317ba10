"""The options of the format ``eventhubs-files``, checked when a query is planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from pyspark.sql.types import StructType

from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.capture.options import _path, _storage_options

_KNOWN: Final = (
    "path",
    "fileFormat",
    "compression",
    "partitionColumns",
    "storageConnectionString",
    "storageAccessKey",
    "storageToken",
    "storageOptions",
)
_NAMES: Final = {name.lower(): name for name in _KNOWN}
_OPTIONS_OF_SPARK: Final = ("checkpointlocation", "queryname")


class FileFormat(Enum):
    """What the files are, by the option's value."""

    PARQUET = "parquet"
    JSON = "json"


_COMPRESSIONS: Final[Mapping[FileFormat, tuple[str, ...]]] = {
    FileFormat.PARQUET: ("snappy", "gzip", "zstd", "none"),
    FileFormat.JSON: ("none", "gzip"),
}
"""By format; the first one is the default."""


@dataclass(frozen=True, slots=True)
class FileSinkOptions:
    """The checked options of one ``eventhubs-files`` sink."""

    path: str
    """A directory, or a URL that fsspec knows, without credentials."""
    file_format: FileFormat
    compression: str
    partition_columns: tuple[str, ...]
    """Columns that become folders ``name=value`` instead of being in the files."""
    storage_options: Mapping[str, object] = field(default_factory=dict, repr=False)
    """For the file system's library; holds secrets."""

    @property
    def suffix(self) -> str:
        """How the files' names end."""
        if self.file_format is FileFormat.PARQUET:
            return ".parquet"
        return ".json.gz" if self.compression == "gzip" else ".json"

    @classmethod
    def parse(cls, options: Mapping[str, str], schema: StructType) -> FileSinkOptions:
        """Check the options that Spark hands over (names in any case) against the query's columns.

        Raises InvalidArgumentError naming the option or the column at fault.
        """
        given: dict[str, str] = {}
        for raw_name, value in options.items():
            if raw_name.lower() in _OPTIONS_OF_SPARK:
                continue
            name = _NAMES.get(raw_name.lower())
            if name is None:
                raise InvalidArgumentError(
                    f"The format eventhubs-files has no option {raw_name!r}.",
                    next_step=f"It knows {', '.join(_KNOWN)} (in any case).",
                )
            given[name] = value
        path = _path(given)
        if path.startswith("memory:"):
            raise InvalidArgumentError(
                "The option path is in the memory of one process, and Spark writes from several.",
                next_step="Give a directory, or a URL such as az://container/folder.",
            )
        file_format = _choice(given, "fileFormat", [each.value for each in FileFormat])
        compressions = _COMPRESSIONS[FileFormat(file_format)]
        return cls(
            path=path,
            file_format=FileFormat(file_format),
            compression=_choice(given, "compression", compressions),
            partition_columns=_partition_columns(given.get("partitionColumns", ""), schema),
            storage_options=_storage_options(given),
        )


def _choice(given: Mapping[str, str], option: str, choices: list[str] | tuple[str, ...]) -> str:
    value = given.get(option, choices[0]).strip().lower()
    if value not in choices:
        raise InvalidArgumentError(f"The option {option} takes {', '.join(choices)}, not {value!r}.")
    return value


def _partition_columns(text: str, schema: StructType) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in schema.fieldNames()]
    if unknown or len(set(names)) < len(names):
        raise InvalidArgumentError(
            f"The option partitionColumns names {', '.join(unknown) or 'a column twice'}.",
            next_step=f"The query's columns are {', '.join(schema.fieldNames())}.",
        )
    if names and len(names) == len(schema.fields):
        raise InvalidArgumentError(
            "The option partitionColumns names all columns, so nothing would be in the files."
        )
    return names
