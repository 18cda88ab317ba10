"""Writes a task's rows to files: one per combination of the partition columns' values.

Folders are ``name=value`` as Hive and Spark write them: percent-encoded, and null and "" share one. Senders
may choose the values, so names over 200 bytes are shortened to a beginning and a hash: after the manifest, a
file that cannot get its name would stop the query for good. None ends with a dot or a blank, which Azure and
Windows drop.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, BinaryIO, Final
from urllib.parse import quote

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.file_sink.commits import StagedFile
from tidegate.spark.file_sink.options import FileFormat, FileSinkOptions
from tidegate.spark.file_sink.storage import SinkFolder

_FILES_OPEN_MAX: Final = 256
"""Our choice: each file holds a row group or a block in memory, and more suggest a wrong partition column."""
_NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
"""Hive's and Spark's folder name for rows whose partition column is null or empty."""
_SEGMENT_BYTES_MAX: Final = 200
"""Of a folder's name. Our choice: file systems allow 255."""
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
        self._writers: dict[str, _RowWriter] = {}
        self._rows: dict[str, int] = {}

    def write(self, batches: Iterator[pa.RecordBatch]) -> list[StagedFile]:
        """Write all rows. Raises InvalidArgumentError (too many folders), FileSinkError."""
        with ExitStack() as open_files:
            for rows in batches:
                if rows.num_rows:
                    for place, part in _split(rows, self._options.partition_columns):
                        self._writer(open_files, place, part.schema).write(part)
                        self._rows[place] = self._rows.get(place, 0) + part.num_rows
            for writer in self._writers.values():
                writer.close()
        return [
            StagedFile(
                self._staged(number), f"{place}{self._prefix}{self._options.suffix}", self._rows[place]
            )
            for number, place in enumerate(self._writers)
        ]

    def _writer(self, open_files: ExitStack, place: str, schema: pa.Schema) -> _RowWriter:
        writer = self._writers.get(place)
        if writer is None:
            number = len(self._writers)
            if number >= _FILES_OPEN_MAX:
                raise InvalidArgumentError(
                    f"A task has rows for over {_FILES_OPEN_MAX} values of the partition columns.",
                    next_step="Choose coarser columns, or repartition by these columns before writing.",
                )
            file = open_files.enter_context(self._folder.writing(self._staged(number)))
            writer = self._writers[place] = _row_writer(file, schema, self._options)
        return writer

    def _staged(self, number: int) -> str:
        return f"{self._attempt}/{number:05}{self._options.suffix}"


def _split(rows: pa.RecordBatch, columns: tuple[str, ...]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """(folder, its rows in order without the partition columns) for each combination of their values."""
    if not columns:
        yield "", rows
        return
    texts = [
        _compute.fill_null(rows.column(name).cast(pa.string()), "").dictionary_encode() for name in columns
    ]
    numbers = np.zeros(rows.num_rows, dtype=np.int64)
    for text in texts:
        numbers = numbers * max(1, len(text.dictionary)) + text.indices.to_numpy(zero_copy_only=False)
    rest = rows.drop_columns(list(columns))
    for number in np.unique(numbers):
        indices = np.flatnonzero(numbers == number)
        values = [text[int(indices[0])].as_py() for text in texts]
        folder = "".join(f"{_segment(name, value)}/" for name, value in zip(columns, values, strict=True))
        yield folder, rest.take(indices.astype(np.int64))


def _segment(name: str, value: str) -> str:
    begin = f"{quote(name, safe='')}="
    shown = _quoted(value)
    if len(begin) + len(shown) > _SEGMENT_BYTES_MAX:
        digest = f"{_HASH_MARK}{hashlib.sha256(value.encode()).hexdigest()[:32]}"
        # Each of these bytes may need three.
        bytes_kept = max(0, _SEGMENT_BYTES_MAX - len(begin) - len(digest)) // 3
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
        objects = rows.to_pylist(maps_as_pydicts="lossy")
        lines = [orjson.dumps(each, default=_plain, option=orjson.OPT_UTC_Z) for each in objects]
        self._stream.write(b"\n".join(lines) + b"\n")

    def close(self) -> None:
        if isinstance(self._stream, gzip.GzipFile):
            self._stream.close()


_RowWriter = pq.ParquetWriter | _JsonLines


def _plain(value: object) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
