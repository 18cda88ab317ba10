"""Reads capture files: whole ones as rows in batches, and of a file just which events it covers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import SEEK_END, BytesIO
from typing import BinaryIO, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

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
    list_chosen_files,
    open_capture_files,
    opened,
)
from tidegate.spark.capture.names import CaptureFile, prune
from tidegate.spark.capture.options import CaptureOptions
from tidegate.spark.capture.plan import FileRange, Piece, RowBounds, plan_tasks
from tidegate.spark.capture.seen import OtherHubError, SeenNumbers
from tidegate.spark.runtime.session import usable_core_count
from tidegate.spark.runtime.workers import freeze_loaded_modules

_BATCH_ROWS: Final = 16_384
"""Our choice: Spark has Arrow batches of about ten thousand rows elsewhere, too."""
_BATCH_BYTES: Final = 16 * 1024 * 1024
_TAIL_BYTES: Final = 128 * 1024
"""Our choice: holds the last block of either service's files, which have blocks of at most 64 KB of small
events."""
_PROBES_AT_A_TIME: Final = 16
"""Our choice: small reads of a storage account take tens of milliseconds, nearly all of it waiting."""

UNKNOWN_UNTIL: Final = 2**63 - 1
"""Where a file ends of which that cannot be told."""

_logger = logging.getLogger(__name__)


class PiecesInputPartition(InputPartition):
    """What one task reads."""

    def __init__(self, pieces: tuple[Piece, ...]) -> None:
        super().__init__(pieces)
        self.pieces = pieces


class CaptureReader(DataSourceReader):
    """Reads the files that a query needs, as they are when it is planned."""

    def __init__(self, options: CaptureOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._bounds = RowBounds(options.partition_ids, options.times)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Use what bounds partition, sequence number or time; Spark applies all of them again."""
        for condition in filters:
            self._bounds = self._bounds.with_filter(condition)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """List the files, leave out what cannot matter by name, and deal the rest to tasks.

        Raises InvalidArgumentError where there are files, and none of the hub or partitions of the options.
        """
        files = open_capture_files(self._options)
        wanted = prune(
            list_chosen_files(files, self._options),
            partition_ids=self._bounds.partition_ids,
            times=self._bounds.times,
            retention_hours=self._options.retention_hours,
        )
        tasks = plan_tasks(
            wanted, self._options.tasks_max or usable_core_count(), lambda some: self._probe(files, some)
        )
        return [PiecesInputPartition(task) for task in tasks]

    def _probe(self, files: CaptureFiles, wanted: Sequence[CaptureFile]) -> list[FileRange]:
        return probe_files(files, wanted, is_bad_file_skipped=self._options.is_bad_file_skipped)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The wanted events of a task's files, each once.

        Raises CaptureFileError for a file that cannot be read, EventHubReplacedError where files are of two
        incarnations of the hub.
        """
        freeze_loaded_modules()
        if not isinstance(partition, PiecesInputPartition):
            return  # Spark's stand-in for a query that has nothing to read
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
                    raise  # it may be there, and whole
                except CaptureFileError as error:
                    if not self._options.is_bad_file_skipped:
                        raise
                    skipped_count += 1
                    _logger.warning("Left out, or the rest of it: %s", error.message)
        if skipped_count:
            _logger.warning("%d capture files of this task could not be read whole.", skipped_count)


def read_rows(
    files: CaptureFiles, file: CaptureFile, fields: tuple[str, ...], bounds: RowBounds
) -> Iterator[CaptureRows]:
    """The events of a file in batches, as it has them; ends early where all that follows is out of bounds.

    Raises CaptureFileError.
    """
    until_ms, until_number = bounds.times.until_ms, bounds.until_sequence_number
    with opened(files, file.name) as stream:
        header = read_header(stream, file.name)
        for records in _batches(stream, header, file.name, fields):
            rows = capture_rows(records, file.name)
            yield rows
            # A partition's numbers and times rise together, so the rest of the file is beyond as well.
            if until_ms is not None and rows.times_ms[-1] >= until_ms:
                return
            if until_number is not None and rows.sequence_numbers[-1] >= until_number:
                return


def _batches(
    stream: BinaryIO, header: ContainerHeader, name: str, fields: tuple[str, ...]
) -> Iterator[list[Record]]:
    """The records of blocks until there are enough for a batch; the first block by itself, for it tells
    whether the others are needed."""
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
            yield pending  # what is before the damage
        raise
    if pending:
        yield pending


def fresh_rows(seen: SeenNumbers, rows: CaptureRows, file: CaptureFile) -> CaptureRows:
    """Those that ``seen`` has not, which it takes. Raises EventHubReplacedError."""
    try:
        return rows.chosen(seen.add(rows.sequence_numbers, rows.times_ms))
    except OtherHubError as error:
        raise EventHubReplacedError(
            f"{file.name} holds another event with the sequence number {error.sequence_number} than earlier "
            f"files of partition {file.partition_id}: the event hub {file.event_hub!r} was deleted and "
            "created again, and both are captured here.",
            next_step="Choose one of the two with the options startingTime and endingTime.",
        ) from error


def within(rows: CaptureRows, bounds: RowBounds) -> CaptureRows:
    """Those within the bounds of numbers and times."""
    numbers, times = rows.sequence_numbers, rows.times_ms
    for values, start, until in (
        (numbers, bounds.start_sequence_number, bounds.until_sequence_number),
        (times, bounds.times.start_ms, bounds.times.until_ms),
    ):
        if not len(values):
            break
        if (start is not None and values.min() < start) or (until is not None and values.max() >= until):
            mask = (values >= (values.min() if start is None else start)) & (
                values < (values.max() + 1 if until is None else until)
            )
            return within(rows.chosen(mask), bounds)
    return rows


def probe_files(
    files: CaptureFiles, wanted: Sequence[CaptureFile], *, is_bad_file_skipped: bool
) -> list[FileRange]:
    """What each file covers, by two small reads; files without events are left out.

    Raises CaptureFileError, unless bad files are skipped: then such a file may cover anything.
    """

    def probe(file: CaptureFile) -> FileRange | None:
        try:
            return probe_file(files, file)
        except CaptureStorageError:
            raise
        except CaptureFileError as error:
            if not is_bad_file_skipped:
                raise
            _logger.warning("Will be left out, or the rest of it: %s", error.message)
            return FileRange(file, 0, UNKNOWN_UNTIL, 0)

    if len(wanted) < 2:
        return [found for file in wanted if (found := probe(file)) is not None]
    with ThreadPoolExecutor(_PROBES_AT_A_TIME) as executor:
        return [found for found in executor.map(probe, wanted) if found is not None]


def probe_file(files: CaptureFiles, file: CaptureFile) -> FileRange | None:
    """What a file covers; None where it has no events. Raises CaptureFileError."""
    name = file.name
    with opened(files, name) as stream:
        header = read_header(stream, name)
        data_start = stream.tell()
        first = next((each for each in iter_blocks(stream, header, name) if each[0]), None)
        if first is None:
            return None
        after_first = stream.tell()
        size = stream.seek(0, SEEK_END)
        last = first if size == after_first else _last_block(stream, header, data_start, size, name)
        begin = capture_rows(decode_records(header, *first, name, fields_for(()))[:1], name)
        until = decode_records(header, *last, name, ("SequenceNumber",))[-1]["SequenceNumber"] + 1
        return FileRange(file, int(begin.sequence_numbers[0]), until, int(begin.times_ms[0]))


def _last_block(
    stream: BinaryIO, header: ContainerHeader, data_start: int, size: int, name: str
) -> tuple[int, bytes]:
    """The last block that has records, found from the end of the file."""
    tail_bytes = _TAIL_BYTES
    while True:
        start = max(data_start - len(header.sync_marker), size - tail_bytes)
        stream.seek(start)
        tail = stream.read(size - start)
        # Blocks stand between sync markers; the one before the first block is the header's.
        place = tail.rfind(header.sync_marker, 0, len(tail) - len(header.sync_marker))
        while place >= 0:
            after = BytesIO(tail[place + len(header.sync_marker) :])
            blocks = list(iter_blocks(after, header, name))
            if blocks and blocks[-1][0]:
                return blocks[-1]
            place = tail.rfind(header.sync_marker, 0, place)
        if start <= data_start:
            raise CaptureFileError(f"{name} is damaged: its last block does not begin anywhere.")
        tail_bytes *= 8
