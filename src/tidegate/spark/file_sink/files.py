"""Writes a task's rows to files: at least one per combination of the partition columns' values.

Folders are ``name=value`` as Hive and Spark write them: percent-encoded, and null and "" share one. Senders
may choose the values, and must not be able to stop the query for good by them:

- Long names are shortened to a beginning and a hash. After the manifest, a file must be able to get its name.
- No name ends with a dot or a blank, which Azure and Windows drop.
- Files are numbered within the task, as two folders may be one for storage that ignores case.
- Text is made UTF-8, and JSON has null for times that Python does not have (``columns.valid``).
- Any number of combinations may occur: those that had no rows for longest continue in another file.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any, BinaryIO, Final
from urllib.parse import quote

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.columns.valid import python_rows, with_valid_text
from tidegate.spark.file_sink.commits import StagedFile
from tidegate.spark.file_sink.options import HASH_BYTES, FileFormat, FileSinkOptions, folder_begin
from tidegate.spark.file_sink.storage import FileSinkError, SinkFolder

_FILES_OPEN_MAX: Final = 256
"""Our choice: each holds a row group or a block in memory."""
_NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
"""Hive's and Spark's folder name for rows whose partition column is null or empty."""
_HASH_MARK: Final = "!"
"""Before the hash in a shortened name: whole values have it encoded."""

_compute: Any = pc


class TaskFiles:
    """Writes one task's files; used once."""

    def __init__(self, folder: SinkFolder, options: FileSinkOptions, attempt: str, prefix: str) -> None:
        """attempt: this attempt's folder. prefix: of the files' final names."""
        self._folder = folder
        self._options = options
        self._attempt = attempt
        self._prefix = prefix
        self._open: dict[str, _OpenFile] = {}
        """By folder; the one written last is last."""
        self._opened_count = 0
        self._closed: list[StagedFile] = []

    def write(self, batches: Iterator[pa.RecordBatch]) -> list[StagedFile]:
        """Write all rows. Raises FileSinkError, and what ``batches`` raises."""
        try:
            for rows in batches:
                if rows.num_rows:
                    self._write(rows)
            while self._open:
                self._close_oldest()
        finally:
            # After an error: otherwise each writer would fail later, when Python deletes it.
            for file in self._open.values():
                with suppress(FileSinkError):
                    file.close()
        return self._closed

    def _write(self, rows: pa.RecordBatch) -> None:
        parts = _split(with_valid_text(rows), self._options)
        # Open files first, so that few are closed between two of their batches.
        for folder, part in sorted(parts, key=lambda each: each[0] not in self._open):
            file = self._open.pop(folder, None) or self._next_file(folder, part.schema)
            self._open[folder] = file
            file.write(part)

    def _next_file(self, folder: str, schema: pa.Schema) -> _OpenFile:
        if len(self._open) >= _FILES_OPEN_MAX:
            self._close_oldest()
        number, suffix = f"{self._opened_count:05}", self._options.suffix
        self._opened_count += 1
        staged, name = f"{self._attempt}/{number}{suffix}", f"{folder}{self._prefix}-{number}{suffix}"
        return _OpenFile(self._folder, staged, name, schema, self._options)

    def _close_oldest(self) -> None:
        folder, file = next(iter(self._open.items()))
        file.close()
        del self._open[folder]
        self._closed.append(StagedFile(file.staged, file.name, file.row_count))


class _OpenFile:
    """A staged file that takes rows. An error closes it."""

    def __init__(
        self, folder: SinkFolder, staged: str, name: str, schema: pa.Schema, options: FileSinkOptions
    ) -> None:
        self.staged = staged
        self.name = name
        self.row_count = 0
        with ExitStack() as stack:
            file = stack.enter_context(folder.writing(staged))
            self._writer = _row_writer(file, schema, options)
            stack.callback(self._writer.close)
            self._stack = stack.pop_all()

    def write(self, rows: pa.RecordBatch) -> None:
        # Through the stack: it makes a FileSinkError of whatever the storage's library raises.
        with self._stack.pop_all() as stack:
            self._writer.write(rows)
            self._stack = stack.pop_all()
        self.row_count += rows.num_rows

    def close(self) -> None:
        """Complete the file; harmless twice. Raises FileSinkError."""
        self._stack.close()


def _split(rows: pa.RecordBatch, options: FileSinkOptions) -> Iterator[tuple[str, pa.RecordBatch]]:
    """(folder, its rows in order without the partition columns) for each combination of their values."""
    columns = options.partition_columns
    if not columns:
        yield "", rows
        return
    texts = [
        _compute.fill_null(rows.column(name).cast(pa.string()), "").dictionary_encode() for name in columns
    ]
    numbers = np.zeros(rows.num_rows, dtype=np.int64)
    for text in texts:
        combined = numbers * max(1, len(text.dictionary)) + text.indices.to_numpy(zero_copy_only=False)
        # Numbered again for each column: 64 bits hold two numbers of rows, but not many.
        numbers = np.unique(combined, return_inverse=True)[1]
    rest = rows.drop_columns(list(columns))
    for number in np.unique(numbers):
        indices = np.flatnonzero(numbers == number)
        values = [text[int(indices[0])].as_py() for text in texts]
        folder = "".join(
            f"{_segment(name, value, options.folder_bytes_max)}/"
            for name, value in zip(columns, values, strict=True)
        )
        yield folder, rest.take(indices.astype(np.int64))


def _segment(name: str, value: str, bytes_max: int) -> str:
    begin = folder_begin(name)
    shown = _quoted(value)
    if len(begin) + len(shown) > bytes_max:
        digest = f"{_HASH_MARK}{hashlib.sha256(value.encode()).hexdigest()[: HASH_BYTES - 1]}"
        # Each of these bytes may need three.
        bytes_kept = (bytes_max - len(begin) - len(digest)) // 3
        shown = _quoted(value.encode()[:bytes_kept].decode(errors="ignore")) + digest
    return begin + (shown or _NULL_FOLDER)


def _quoted(value: str) -> str:
    text = quote(value, safe=" -_.,+@()")
    return f"{text[:-1]}%{ord(text[-1]):02X}" if text.endswith((".", " ")) else text


def _row_writer(file: BinaryIO, schema: pa.Schema, options: FileSinkOptions) -> _RowWriter:
    if options.file_format is FileFormat.PARQUET:
        compression: Any = options.compression
        return pq.ParquetWriter(file, schema, compression=compression)
    # Without a timestamp, so that the same rows give the same bytes.
    return _JsonLines(gzip.GzipFile("", "wb", 6, file, mtime=0) if options.compression == "gzip" else file)


class _JsonLines:
    """Writes one JSON object per line. Binary values are base64, as in Spark's ``to_json``."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, rows: pa.RecordBatch) -> None:
        objects = python_rows(rows, maps_as_pydicts="lossy")
        lines = [orjson.dumps(each, default=_plain, option=orjson.OPT_UTC_Z) for each in objects]
        self._stream.write(b"\n".join(lines) + b"\n")

    def close(self) -> None:
        if isinstance(self._stream, gzip.GzipFile):
            self._stream.close()


_RowWriter = pq.ParquetWriter | _JsonLines


def _plain(value: object) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
