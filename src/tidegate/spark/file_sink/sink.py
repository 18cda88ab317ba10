"""The data source ``eventhubs-files``: rows become Parquet or JSON files, each row in one file that counts.

For places that Spark's own ``parquet`` and ``json`` sinks do not reach without further jars (Azure Blob
Storage, SFTP, whatever fsspec knows), and with files that a plain listing may trust: ``commits``
says why no row counts twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.file_sink.commits import FileCommits, StagedFile
from tidegate.spark.file_sink.files import TaskFiles
from tidegate.spark.file_sink.options import FileSinkOptions
from tidegate.spark.file_sink.storage import SinkFolder
from tidegate.spark.runtime.workers import freeze_loaded_modules


@dataclass
class FilesCommitMessage(WriterCommitMessage):
    """What one task has staged."""

    query: str
    files: Sequence[StagedFile]


class FileSinkDataSource(DataSource):
    """``writeStream.format("eventhubs-files")`` and ``write.format("eventhubs-files").mode("append")``."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "eventhubs-files"

    def streamWriter(self, schema: StructType, overwrite: bool) -> FileStreamWriter:  # noqa: N802 - Spark's name
        """The writer of a streaming query in append mode."""
        freeze_loaded_modules()
        return FileStreamWriter(_checked(self.options, schema, overwrite, '.outputMode("append")'))

    def writer(self, schema: StructType, overwrite: bool) -> FileBatchWriter:
        """The writer of a batch query in append mode."""
        return FileBatchWriter(_checked(self.options, schema, overwrite, '.mode("append")'))


class FileStreamWriter(DataSourceStreamArrowWriter):
    """Stages files in tasks, and commits them on the driver."""

    def __init__(self, options: FileSinkOptions) -> None:
        self._options = options

    # The Arrow writer's parameter differs from its base class's in pyspark, too.
    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesCommitMessage:  # type: ignore[override]
        """Stage the rows of one task; nothing where the micro-batch was committed before."""
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId")
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        assert query is not None
        assert batch_id is not None
        return _stage(self._options, query, int(batch_id), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish what the tasks have staged, or what an earlier run of the micro-batch had."""
        _commit(self._options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing: what is staged counts for nothing, and goes when the micro-batch is committed."""


class FileBatchWriter(DataSourceArrowWriter):
    """The same for the one batch of a batch query."""

    def __init__(self, options: FileSinkOptions) -> None:
        self._options = options
        self._query = str(uuid.uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesCommitMessage:  # type: ignore[override]
        """Stage the rows of one task."""
        return _stage(self._options, self._query, 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what the tasks have staged."""
        _commit(self._options, messages, 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what was staged: this query does not come back."""
        folder = SinkFolder(self._options.path, self._options.storage_options)
        folder.delete_tree(FileCommits(folder, self._query).staging(0))


def _stage(
    options: FileSinkOptions, query: str, batch_id: int, batches: Iterator[pa.RecordBatch]
) -> FilesCommitMessage:
    freeze_loaded_modules()
    context = TaskContext.get()
    assert context is not None
    folder = SinkFolder(options.path, options.storage_options)
    commits = FileCommits(folder, query)
    if commits.find(batch_id) is not None:
        return FilesCommitMessage(query, ())
    # Attempts never share a name: neither twins, nor one of a driver that was killed and its successor's.
    attempt = f"{commits.staging(batch_id)}/{context.partitionId():05}-{uuid.uuid4().hex}"
    prefix = f"part-{query[:13]}-{batch_id:010}-{context.partitionId():05}"
    return FilesCommitMessage(query, TaskFiles(folder, options, attempt, prefix).write(batches))


def _commit(options: FileSinkOptions, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
    staged = [message for message in messages if isinstance(message, FilesCommitMessage)]
    if not staged:
        return
    folder = SinkFolder(options.path, options.storage_options)
    FileCommits(folder, staged[0].query).commit(batch_id, [file for each in staged for file in each.files])


def _checked(options: Mapping[str, str], schema: StructType, overwrite: bool, how: str) -> FileSinkOptions:
    if overwrite:
        raise InvalidArgumentError(
            "The format eventhubs-files appends and never overwrites.", next_step=f"Use {how}."
        )
    return FileSinkOptions.parse(options, schema)
