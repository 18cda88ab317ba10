"""The options of the format ``eventhubs-files``, checked when a query is planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from pyspark.sql.types import StructType

from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.runtime.options import (
    OPTIONS_OF_SPARK,
    STORAGE_OPTIONS,
    known_options,
    storage_options,
    storage_path,
)

KNOWN: Final = (*STORAGE_OPTIONS, "fileFormat", "compression", "partitionColumns")


class FileFormat(Enum):
    """The file format; its value is the option's."""

    PARQUET = "parquet"
    JSON = "json"


_COMPRESSIONS: Final[Mapping[FileFormat, tuple[str, ...]]] = {
    FileFormat.PARQUET: ("snappy", "gzip", "zstd", "none"),
    FileFormat.JSON: ("none", "gzip"),
}
"""By format; the first is the default."""


@dataclass(frozen=True, slots=True)
class FileSinkOptions:
    """The checked options of one ``eventhubs-files`` sink."""

    path: str
    """A directory, or a URL that fsspec supports, without credentials."""
    file_format: FileFormat
    compression: str
    partition_columns: tuple[str, ...]
    """Columns that become folders ``name=value`` and are not stored in the files."""
    storage_options: Mapping[str, object] = field(default_factory=dict, repr=False)
    """For the file system's library; may hold secrets."""

    @property
    def suffix(self) -> str:
        """The files' extension."""
        if self.file_format is FileFormat.PARQUET:
            return ".parquet"
        return ".json.gz" if self.compression == "gzip" else ".json"

    @classmethod
    def parse(cls, options: Mapping[str, str], schema: StructType) -> FileSinkOptions:
        """Check the options that Spark passes (names in any case) against the query's columns.

        Raises InvalidArgumentError naming the option or the column at fault.
        """
        ignored = [name for name in OPTIONS_OF_SPARK if name != "path"]
        given = known_options(options, KNOWN, subject="The format eventhubs-files", ignored=ignored)
        path = storage_path(given)
        if path.startswith("memory:"):
            raise InvalidArgumentError(
                "The option path is in the memory of one process, but Spark writes from several.",
                next_step="Set it to a directory, or to a URL such as az://container/folder.",
            )
        file_format = FileFormat(_choice(given, "fileFormat", [each.value for each in FileFormat]))
        return cls(
            path=path,
            file_format=file_format,
            compression=_choice(given, "compression", _COMPRESSIONS[file_format]),
            partition_columns=_partition_columns(given.get("partitionColumns", ""), schema),
            storage_options=storage_options(given),
        )


def _choice(given: Mapping[str, str], option: str, choices: Sequence[str]) -> str:
    value = given.get(option, choices[0]).strip().lower()
    if value not in choices:
        raise InvalidArgumentError(f"The option {option} must be one of {', '.join(choices)}, not {value!r}.")
    return value


def _partition_columns(text: str, schema: StructType) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in schema.fieldNames()]
    if unknown or len(set(names)) < len(names):
        problem = f"{unknown[0]!r}, which is not a column" if unknown else "a column twice"
        raise InvalidArgumentError(
            f"The option partitionColumns names {problem}.",
            next_step=f"The query's columns are {', '.join(schema.fieldNames())}.",
        )
    if names and len(names) == len(schema.fields):
        raise InvalidArgumentError(
            "The option partitionColumns names all columns, so the files would have none."
        )
    return names
