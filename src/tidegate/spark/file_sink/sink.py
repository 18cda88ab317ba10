"""The writer of the format ``eventhubs-files``: writes each row to one published Parquet or JSON file.

For storage that Spark's own ``parquet`` and ``json`` sinks need further jars to reach (Azure Blob Storage,
SFTP, everything that fsspec supports), and for readers that list the folder: ``commits`` explains why no row
appears twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from tidegate.spark.file_sink.commits import FileCommits, StagedFile
from tidegate.spark.file_sink.files import TaskFiles
from tidegate.spark.file_sink.options import FileSinkOptions
from tidegate.spark.file_sink.storage import SinkFolder
from tidegate.spark.runtime.options import check_appends
from tidegate.spark.runtime.versions import ArrowWriter
from tidegate.spark.runtime.workers import TaskIdentity, freeze_loaded_modules


@dataclass
class FilesCommitMessage(WriterCommitMessage):
    query: str
    files: Sequence[StagedFile]


def file_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool, *, is_stream: bool
) -> FileWriter:
    """The writer of a query. Raises InvalidArgumentError (option, column, mode)."""
    check_appends(overwrite, "The format eventhubs-files", is_stream=is_stream)
    return FileWriter(FileSinkOptions.parse(options, schema), None if is_stream else str(uuid.uuid4()))


class FileWriter(ArrowWriter):
    """Stages files in tasks, and commits them on the driver. A batch query is a single micro-batch."""

    def __init__(self, options: FileSinkOptions, write: str | None) -> None:
        """write: names a batch query's write; None: a stream."""
        self._options = options
        self._write = write

    # The Arrow writer's parameter differs from its base class's in pyspark as well.
    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesCommitMessage:  # type: ignore[override]
        """Stage one task's rows, unless the micro-batch is already committed."""
        freeze_loaded_modules()
        identity = TaskIdentity.of_this_task(self._write)
        query, batch_id, task = identity.write, identity.batch_id, identity.task
        folder, commits = self._commits(query)
        if commits.find(batch_id) is not None:
            return FilesCommitMessage(query, ())
        # Attempts never share a name, whether concurrent or of a killed driver and its successor.
        attempt = f"{commits.staging(batch_id)}/{task:05}-{uuid.uuid4().hex}"
        prefix = f"part-{query[:13]}-{batch_id:010}-{task:05}"
        files = TaskFiles(folder, self._options, attempt, prefix)
        return FilesCommitMessage(query, files.write(iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803
        """Publish the tasks' staged files, or those of an earlier run of the micro-batch."""
        staged = [message for message in messages if isinstance(message, FilesCommitMessage)]
        if staged:
            _, commits = self._commits(staged[0].query)
            commits.commit(batchId, [file for each in staged for file in each.files])

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803
        """Delete what a batch query staged, because it is not repeated.

        What a stream staged does not count, and is deleted when the micro-batch is committed.
        """
        if self._write is not None:
            folder, commits = self._commits(self._write)
            folder.delete_tree(commits.staging(batchId))

    def _commits(self, query: str) -> tuple[SinkFolder, FileCommits]:
        folder = SinkFolder(self._options.path, self._options.storage_options)
        return folder, FileCommits(folder, query)
