"""The options of the format ``eventhubs-files``, checked when a query is planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final
from urllib.parse import quote

from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.runtime.options import (
    OPTIONS_OF_SPARK,
    STORAGE_OPTIONS,
    Given,
    option,
    read_options,
    storage_options,
    storage_path,
)


class FileFormat(Enum):
    """The file format; its value is the option's."""

    PARQUET = "parquet"
    JSON = "json"


_COMPRESSIONS: Final[Mapping[FileFormat, tuple[str, ...]]] = {
    FileFormat.PARQUET: ("snappy", "gzip", "zstd", "none"),
    FileFormat.JSON: ("none", "gzip"),
}
"""By format; the first is the default."""
_FOLDER_BYTES_MAX: Final = 200
"""Of a folder's name. Our choice: file systems allow 255."""
_FOLDERS_BYTES_MAX: Final = 600
"""Of all folders' names in a file's. Our choice: Azure and S3 allow 1,024 with the sink's own folder."""
HASH_BYTES: Final = 33
"""What replaces the end of a value that is too long for its folder's name."""


def _shared_path(given: Given, option: str) -> str:
    path = storage_path(given, option)
    if path.startswith("memory:"):
        raise InvalidArgumentError(
            f"The option {option} is in the memory of one process, but Spark writes from several.",
            next_step="Set it to a directory, or to a URL such as az://container/folder.",
        )
    return path


def _file_format(given: Given, option: str) -> FileFormat:
    return FileFormat(_choice(given, option, [each.value for each in FileFormat]))


def _compression(given: Given, option: str, format_option: str) -> str:
    return _choice(given, option, _COMPRESSIONS[_file_format(given, format_option)])


def _choice(given: Given, option: str, choices: Sequence[str]) -> str:
    value = given.get(option, choices[0]).strip().lower()
    if value not in choices:
        raise InvalidArgumentError(f"The option {option} must be one of {', '.join(choices)}, not {value!r}.")
    return value


def _names(given: Given, option: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in given.get(option, "").split(",") if name.strip())


@dataclass(frozen=True, slots=True)
class FileSinkOptions:
    """The checked options of one ``eventhubs-files`` sink."""

    path: str = option(_shared_path, "path")
    """A directory, or a URL that fsspec supports, without credentials."""
    file_format: FileFormat = option(_file_format, "fileFormat")
    compression: str = option(_compression, "compression", "fileFormat")
    partition_columns: tuple[str, ...] = option(_names, "partitionColumns")
    """Columns that become folders ``name=value`` and are not stored in the files."""
    storage_options: Mapping[str, object] = option(storage_options, *STORAGE_OPTIONS, is_secret=True)
    """For the file system's library."""

    @property
    def suffix(self) -> str:
        """The files' extension."""
        if self.file_format is FileFormat.PARQUET:
            return ".parquet"
        return ".json.gz" if self.compression == "gzip" else ".json"

    @property
    def folder_bytes_max(self) -> int:
        """The longest name of a folder."""
        return min(_FOLDER_BYTES_MAX, _FOLDERS_BYTES_MAX // max(1, len(self.partition_columns)))

    @classmethod
    def parse(cls, options: Mapping[str, str], schema: StructType) -> FileSinkOptions:
        """Check the options that Spark passes (names in any case) against the query's columns.

        Raises InvalidArgumentError naming the option or the column at fault.
        """
        ignored = [name for name in OPTIONS_OF_SPARK if name != "path"]
        parsed = read_options(cls, options, subject="The format eventhubs-files", ignored=ignored)
        _check_partition_columns(parsed.partition_columns, schema)
        parsed._check_folders()
        return parsed

    def _check_folders(self) -> None:
        for name in self.partition_columns:
            if len(folder_begin(name)) + HASH_BYTES > self.folder_bytes_max:
                raise InvalidArgumentError(
                    f"The option partitionColumns names {name!r}, which is too long for a folder's name.",
                    next_step="Rename the column, or choose fewer of them.",
                )


def folder_begin(column: str) -> str:
    """What a folder's name has before the column's value."""
    return f"{quote(column, safe='')}="


def _check_partition_columns(names: Sequence[str], schema: StructType) -> None:
    unknown = [name for name in names if name not in schema.fieldNames()]
    if unknown or len(set(names)) < len(names):
        problem = f"{unknown[0]!r}, which is not a column" if unknown else "a column twice"
        raise InvalidArgumentError(
            f"The option partitionColumns names {problem}.",
            next_step=f"The query's columns are {', '.join(schema.fieldNames())}.",
        )
    for name in names:
        kind = schema[name].dataType
        if isinstance(kind, BinaryType | ArrayType | MapType | StructType):
            raise InvalidArgumentError(
                f"The option partitionColumns names {name!r}, whose type {kind.simpleString()} has no text.",
                next_step="Cast it to a string.",
            )
    if names and len(names) == len(schema.fields):
        raise InvalidArgumentError(
            "The option partitionColumns names all columns, so the files would have none."
        )
