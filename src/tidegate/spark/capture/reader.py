"""Reads capture files: their events as batches of rows, or only the range that a file covers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from io import SEEK_END, BytesIO
from typing import TYPE_CHECKING, BinaryIO, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from tidegate.model.errors import EventHubReplacedError
from tidegate.spark.capture.columns import CaptureRows, capture_batch, capture_rows, fields_for
from tidegate.spark.capture.container import (
    CaptureFileError,
    ContainerHeader,
    Record,
    decode_records,
    iter_blocks,
    read_header,
)
from tidegate.spark.capture.files import (
    CaptureFiles,
    CaptureStorageError,
    list_capture_files,
    open_capture_files,
    opened,
)
from tidegate.spark.capture.names import CaptureFile, prune
from tidegate.spark.capture.options import CaptureOptions
from tidegate.spark.capture.plan import FileRange, Piece, plan_tasks
from tidegate.spark.capture.seen import OtherHubError, SeenNumbers
from tidegate.spark.runtime.session import usable_core_count
from tidegate.spark.runtime.workers import freeze_loaded_modules
from tidegate.spark.source.pushdown import RowBounds, narrow
from tidegate.wire.capture import guessable_marker

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_BATCH_ROWS: Final = 16_384
"""Our choice: about as many rows as in Spark's other Arrow batches."""
_BATCH_BYTES: Final = 16 * 1024 * 1024
_TAIL_BYTES: Final = 128 * 1024
"""Our choice: large enough for the last block of any service's files (64 KB for small events)."""
_PROBES_AT_A_TIME: Final = 16
"""Our choice: small reads from a storage account take tens of milliseconds, nearly all of it waiting."""

UNKNOWN_UNTIL: Final = 2**63 - 1
"""The end of a file whose end cannot be determined."""

_logger = logging.getLogger(__name__)


@dataclass
class PiecesInputPartition(InputPartition):
    """What one task reads."""

    pieces: tuple[Piece, ...]


class CaptureReader(DataSourceReader):
    """Reads the files that exist when the query is planned."""

    def __init__(self, options: CaptureOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._bounds = RowBounds(options.partition_ids, times_ms=options.times_ms)

    def partitions(self) -> Sequence[InputPartition]:
        """List the files, exclude by name those that cannot matter, and distribute the rest over tasks.

        Raises InvalidArgumentError if there are files, but none of the chosen hub or partitions.
        """
        options = self._options
        files = open_capture_files(options)
        wanted = prune(
            list_capture_files(files, options),
            partition_ids=self._bounds.partition_ids,
            times_ms=self._bounds.times_ms,
            retention_hours=options.retention_hours,
        )
        probe = partial(probe_files, files, is_bad_file_skipped=options.is_bad_file_skipped)
        tasks = plan_tasks(wanted, options.tasks_max or usable_core_count(), probe)
        return [PiecesInputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The wanted events of a task's files, each once.

        Raises CaptureFileError for an unreadable file, and EventHubReplacedError if the files are of two hubs
        of the same name.
        """
        freeze_loaded_modules()
        if not isinstance(partition, PiecesInputPartition):
            return  # Spark's placeholder in a query that has nothing to read
        files = open_capture_files(self._options)
        skipped_count = 0
        for piece in partition.pieces:
            seen = SeenNumbers()
            for file in piece.files:
                try:
                    for rows in read_rows(files, file, fields_for(self._columns), self._bounds):
                        fresh = fresh_rows(seen, rows, file)
                        wanted = within(fresh, self._bounds)
                        if wanted.records:
                            yield capture_batch(file.partition_id, wanted, self._columns)
                except CaptureStorageError:
                    raise  # the file may exist, and be complete
                except CaptureFileError as error:
                    if not self._options.is_bad_file_skipped:
                        raise
                    skipped_count += 1
                    _logger.warning("Skipped, wholly or in part: %s", error.message)
        if skipped_count:
            _logger.warning("%d capture files of this task could not be read completely.", skipped_count)


class FilteringCaptureReader(CaptureReader):
    """The same, reading only what a query's filters need; ``FilteringBatchReader`` says why not always."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Use filters on partition, sequence number and time; Spark applies all of them as well."""
        self._bounds = self._bounds.narrowed(narrow(filters)[0])
        return filters


def read_rows(
    files: CaptureFiles, file: CaptureFile, fields: tuple[str, ...], bounds: RowBounds
) -> Iterator[CaptureRows]:
    """A file's events in batches, in order; stops early if all that follow are out of bounds.

    Raises CaptureFileError.
    """
    until_ms, until_number = bounds.times_ms.until, bounds.numbers.until
    with opened(files, file.name) as stream:
        header = read_header(stream, file.name)
        for records in _batches(stream, header, file.name, fields):
            rows = capture_rows(records, file.name)
            yield rows
            # A partition's numbers and times rise together, so the rest of the file is also out of bounds.
            if until_ms is not None and rows.times_ms[-1] >= until_ms:
                return
            if until_number is not None and rows.sequence_numbers[-1] >= until_number:
                return


def _batches(
    stream: BinaryIO, header: ContainerHeader, name: str, fields: tuple[str, ...]
) -> Iterator[list[Record]]:
    """Collect the records of blocks into batches; the first block is a batch of its own, because it shows
    whether the others are needed.
    """
    pending: list[Record] = []
    pending_bytes, is_first = 0, True
    try:
        for count, data in iter_blocks(stream, header, name):
            pending += decode_records(header, count, data, name, fields)
            pending_bytes += len(data)
            if pending and (is_first or len(pending) >= _BATCH_ROWS or pending_bytes >= _BATCH_BYTES):
                yield pending
                pending, pending_bytes, is_first = [], 0, False
    except CaptureFileError:
        if pending:
            yield pending  # the records before the damage
        raise
    if pending:
        yield pending


def fresh_rows(seen: SeenNumbers, rows: CaptureRows, file: CaptureFile) -> CaptureRows:
    """The rows that are not in ``seen``, after adding them to it. Raises EventHubReplacedError."""
    try:
        return rows.chosen(seen.add(rows.sequence_numbers, rows.times_ms))
    except OtherHubError as error:
        raise EventHubReplacedError(
            f"{file.name} and earlier files of partition {file.partition_id} hold different events with the "
            f"sequence number {error.sequence_number}: the event hub {file.event_hub!r} was deleted and "
            "created again, and both are captured here.",
            next_step="Choose one of the two with the options startingTime and endingTime.",
        ) from error


def within(rows: CaptureRows, bounds: RowBounds) -> CaptureRows:
    """The rows within the bounds of numbers and times."""
    mask = np.ones(len(rows.records), np.bool_)
    for values, wanted in ((rows.sequence_numbers, bounds.numbers), (rows.times_ms, bounds.times_ms)):
        if wanted.start is not None:
            mask &= values >= wanted.start
        if wanted.until is not None:
            mask &= values < wanted.until
    return rows.chosen(mask)


def probe_files(
    files: CaptureFiles, wanted: Sequence[CaptureFile], *, is_bad_file_skipped: bool
) -> list[FileRange]:
    """What each file covers, from two small reads; files without events are omitted.

    Raises CaptureFileError, unless bad files are skipped: such a file is then assumed to cover anything.
    """

    def probe(file: CaptureFile) -> FileRange | None:
        try:
            return probe_file(files, file)
        except CaptureStorageError:
            raise
        except CaptureFileError as error:
            if not is_bad_file_skipped:
                raise
            _logger.warning("Will be skipped, wholly or in part: %s", error.message)
            return FileRange(file, 0, UNKNOWN_UNTIL, 0)

    if len(wanted) < 2:
        return [found for file in wanted if (found := probe(file)) is not None]
    with ThreadPoolExecutor(_PROBES_AT_A_TIME) as executor:
        return [found for found in executor.map(probe, wanted) if found is not None]


def probe_file(files: CaptureFiles, file: CaptureFile) -> FileRange | None:
    """What a file covers; None if it has no events. Raises CaptureFileError."""
    name = file.name
    with opened(files, name) as stream:
        header = read_header(stream, name)
        data_start = stream.tell()
        first = next((each for each in iter_blocks(stream, header, name) if each[0]), None)
        if first is None:
            return None
        after_first = stream.tell()
        size = stream.seek(0, SEEK_END)
        last = first if size == after_first else _block_at_end(stream, header, data_start, size, name)
        if last is None:
            stream.seek(after_first)
            last = first
            for block in iter_blocks(stream, header, name):
                last = block if block[0] else last
        begin = capture_rows(decode_records(header, *first, name, fields_for(()))[:1], name)
        until = decode_records(header, *last, name, ("SequenceNumber",))[-1]["SequenceNumber"] + 1
        return FileRange(file, int(begin.sequence_numbers[0]), until, int(begin.times_ms[0]))


def _block_at_end(
    stream: BinaryIO, header: ContainerHeader, data_start: int, size: int, name: str
) -> tuple[int, bytes] | None:
    """The last block, from the file's end; None if only reading all blocks can find it.

    Blocks are between sync markers, so an event that has the marker can pass for the beginning of a block.
    """
    tail_bytes = _TAIL_BYTES
    while header.sync_marker != guessable_marker(name):
        start = max(data_start - len(header.sync_marker), size - tail_bytes)
        stream.seek(start)
        tail = stream.read(size - start)
        # The header's comes before the first block.
        place = tail.rfind(header.sync_marker, 0, len(tail) - len(header.sync_marker))
        if place >= 0:
            try:
                blocks = list(iter_blocks(BytesIO(tail[place + len(header.sync_marker) :]), header, name))
            except CaptureFileError:
                return None
            return blocks[0] if len(blocks) == 1 and blocks[0][0] else None
        if start <= data_start:
            break
        tail_bytes *= 8
    return None
