"""The data source ``eventhubs-files``: writes each row to one published Parquet or JSON file.

For storage that Spark's own ``parquet`` and ``json`` sinks need further jars to reach (Azure Blob Storage,
SFTP, everything that fsspec supports), and for readers that list the folder: ``commits`` explains why no row
appears twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tidegate.spark.file_sink.commits import FileCommits, StagedFile
from tidegate.spark.file_sink.files import TaskFiles
from tidegate.spark.file_sink.options import FileSinkOptions
from tidegate.spark.file_sink.storage import SinkFolder
from tidegate.spark.runtime.options import check_appends
from tidegate.spark.runtime.workers import freeze_loaded_modules, micro_batch, running_task


@dataclass
class FilesCommitMessage(WriterCommitMessage):
    query: str
    files: Sequence[StagedFile]


class FileSinkDataSource(DataSource):
    """``writeStream.format("eventhubs-files")`` and ``write.format("eventhubs-files").mode("append")``."""

    @classmethod
    def name(cls) -> str:
        return "eventhubs-files"

    def streamWriter(self, schema: StructType, overwrite: bool) -> FileStreamWriter:  # noqa: N802 - Spark's name
        """The writer of a streaming query in append mode."""
        freeze_loaded_modules()
        check_appends(overwrite, '.outputMode("append")', "The format eventhubs-files")
        return FileStreamWriter(FileSinkOptions.parse(self.options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> FileBatchWriter:
        """The writer of a batch query in append mode."""
        check_appends(overwrite, '.mode("append")', "The format eventhubs-files")
        return FileBatchWriter(FileSinkOptions.parse(self.options, schema))


class FileStreamWriter(DataSourceStreamArrowWriter):
    """Stages files in tasks, and commits them on the driver."""

    def __init__(self, options: FileSinkOptions) -> None:
        self._options = options

    # The Arrow writer's parameter differs from its base class's in pyspark as well.
    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesCommitMessage:  # type: ignore[override]
        """Stage one task's rows, unless the micro-batch is already committed."""
        return _stage(self._options, *micro_batch(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish the tasks' staged files, or those of an earlier run of the micro-batch."""
        _commit(self._options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: staged files do not count, and are deleted when the micro-batch is committed."""


class FileBatchWriter(DataSourceArrowWriter):
    """The same for a batch query, which is a single batch."""

    def __init__(self, options: FileSinkOptions) -> None:
        self._options = options
        self._query = str(uuid.uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesCommitMessage:  # type: ignore[override]
        return _stage(self._options, self._query, 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._options, messages, 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what was staged, because this query is not repeated."""
        folder = SinkFolder(self._options.path, self._options.storage_options)
        folder.delete_tree(FileCommits(folder, self._query).staging(0))


def _stage(
    options: FileSinkOptions, query: str, batch_id: int, batches: Iterator[pa.RecordBatch]
) -> FilesCommitMessage:
    freeze_loaded_modules()
    folder = SinkFolder(options.path, options.storage_options)
    commits = FileCommits(folder, query)
    if commits.find(batch_id) is not None:
        return FilesCommitMessage(query, ())
    # Attempts never share a name, whether concurrent or of a killed driver and its successor.
    task = running_task().partitionId()
    attempt = f"{commits.staging(batch_id)}/{task:05}-{uuid.uuid4().hex}"
    prefix = f"part-{query[:13]}-{batch_id:010}-{task:05}"
    return FilesCommitMessage(query, TaskFiles(folder, options, attempt, prefix).write(batches))


def _commit(options: FileSinkOptions, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
    staged = [message for message in messages if isinstance(message, FilesCommitMessage)]
    if not staged:
        return
    folder = SinkFolder(options.path, options.storage_options)
    FileCommits(folder, staged[0].query).commit(batch_id, [file for each in staged for file in each.files])
