"""The readers of the format ``eventhubs-replay``: a hub's stream, with deleted events read from Capture.

Theory of operation. It is the stream ``eventhubs``, with the same offsets: a micro-batch is a range of
sequence numbers per partition. When it is planned, each range is cut where the partition's log begins:

    SQL checkpoint            log begins                      end of the micro-batch
        │ ── from capture files ── │ ────── from the hub ─────────── │

Both parts of a partition go to the same task, in order, so the exactly-once sink sees unbroken numbers, and
neither it nor Spark's journal depends on where an event came from. Once the checkpoint is in the log, Capture
is no longer read.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from tidegate.model.errors import InvalidArgumentError, PositionOutOfRangeError
from tidegate.spark.capture.columns import CaptureRows, capture_batch, fields_for
from tidegate.spark.capture.files import open_capture_files
from tidegate.spark.capture.options import CaptureOptions
from tidegate.spark.capture.reader import read_rows
from tidegate.spark.capture.replay_index import CapturedRange, CaptureIndex, split_at
from tidegate.spark.runtime.workers import freeze_loaded_modules
from tidegate.spark.source.hub import HubDescription, HubReader
from tidegate.spark.source.offsets import JsonObject, PartitionRange
from tidegate.spark.source.options import SourceOptions
from tidegate.spark.source.pushdown import Bounds, RowBounds
from tidegate.spark.source.reader import EventHubsStreamReader, RangesInputPartition, read_ranges
from tidegate.sql import Pipeline

CAPTURE_PREFIX: Final = "capture."
"""Prefix of options for ``eventhubs-capture``."""

_logger = logging.getLogger(__name__)


def parse_options(options: Mapping[str, str]) -> tuple[SourceOptions, CaptureOptions]:
    """Split the options into the hub's and, those with the prefix ``capture.``, its captured events'.

    Raises InvalidArgumentError.
    """
    capture = {
        name[len(CAPTURE_PREFIX) :]: value
        for name, value in options.items()
        if name.lower().startswith(CAPTURE_PREFIX)
    }
    source = {name: value for name, value in options.items() if not name.lower().startswith(CAPTURE_PREFIX)}
    for name in capture:
        if name.lower() in ("partitions", "endingtime", "tasksmax"):
            raise InvalidArgumentError(
                f"The option {CAPTURE_PREFIX}{name} would exclude events from a replay.",
                next_step="Leave it out.",
            )
    return SourceOptions.parse(source), CaptureOptions.parse(capture)


def plan_replay(
    source_options: Mapping[str, str], capture_options: Mapping[str, str]
) -> tuple[dict[str, str], str]:
    """Examine hub and files before anything is claimed.

    Returns options for ``eventhubs-replay``, besides the hub's, and the source's option
    ``startingPositions``, for partitions without a SQL checkpoint.
    Raises InvalidArgumentError if no events of the hub are captured, and CaptureFileError.
    """
    prefixed = {CAPTURE_PREFIX + name: value for name, value in capture_options.items()}
    source, capture = parse_options({**source_options, **prefixed})
    hub = HubReader(source).describe()
    index = CaptureIndex(capture, event_hub=source.event_hub, event_hub_created_at_ms=hub.created_at_ms)
    index.refresh()
    first = index.first_of_all()
    if not first:
        raise InvalidArgumentError(
            f"There are no captured events of the event hub {source.event_hub!r} at {capture.path}.",
            next_step="Correct the path (the parent of {Namespace}/… in the names), or run the pipeline "
            "without Capture.",
        )
    begins = {key: bounds.begin_sequence_number for key, bounds in hub.bounds.items()}
    starts = {key: min(first.get(key, begin), begin) for key, begin in begins.items()}
    return prefixed, json.dumps({key: {"seqNo": number} for key, number in starts.items()})


def check_replayable(columns: Sequence[str], pipeline: Pipeline) -> None:
    """Raise InvalidArgumentError if the sink would ask the log for events that it no longer holds.

    columns: returned by a transformation, or given to a function over batches.
    """
    lost = [name for name in ("offset", "enqueuedTime") if name not in columns]
    if lost or pipeline.is_payload_copied:
        raise InvalidArgumentError(
            f"The transformation dropped the column {lost[0]!r}, which the log cannot provide in a replay."
            if lost
            else "A transformation, or a function over batches, has no copy of an event for its dead letter "
            "(is_payload_copied), and in a replay the log has none either.",
            next_step="Keep the columns offset and enqueuedTime, and leave is_payload_copied out.",
        )


@dataclass
class ReplayInputPartition(InputPartition):
    """What one task reads: for each hub partition, first the captured events, then those in the log."""

    captured: tuple[CapturedRange, ...]
    live: tuple[PartitionRange, ...]


class ReplayStreamReader(EventHubsStreamReader):
    """Plans micro-batches over Capture and log."""

    def __init__(self, options: SourceOptions, columns: Sequence[str], capture: CaptureOptions) -> None:
        super().__init__(options, columns)
        self._capture = capture
        self._index: CaptureIndex | None = None
        self._log_begins: Mapping[str, int] = {}

    def _describe(self, wanted: Mapping[str, int]) -> HubDescription:
        """The hub as if its partitions began at the wanted events that are captured."""
        hub = super()._describe(wanted)
        self._log_begins = {key: bounds.begin_sequence_number for key, bounds in hub.bounds.items()}
        bounds = dict(hub.bounds)
        for partition_id, number in wanted.items():
            held = hub.bounds.get(partition_id)
            if held is not None and number < held.begin_sequence_number:
                first = self._first_captured(hub, partition_id, number)
                if first is not None:
                    begin = min(first, held.begin_sequence_number)
                    bounds[partition_id] = replace(held, begin_sequence_number=begin)
        return replace(hub, bounds=bounds)

    def _first_captured(self, hub: HubDescription, partition_id: str, number: int) -> int | None:
        index = self._index_of(hub.created_at_ms)
        if index.first_from(partition_id, number) != number:
            index.refresh()
        return index.first_from(partition_id, number)

    def _index_of(self, created_at_ms: int) -> CaptureIndex:
        if self._index is None:
            self._index = CaptureIndex(
                self._capture, event_hub=self._options.event_hub, event_hub_created_at_ms=created_at_ms
            )
            self._index.refresh()
        return self._index

    def partitions(self, start: JsonObject, end: JsonObject) -> Sequence[InputPartition]:
        """The tasks of a micro-batch.

        Raises PositionOutOfRangeError if some of its events are neither in the log nor in Capture's files.
        """
        tasks = super().partitions(start, end)
        return [self._with_capture(task) for task in tasks if isinstance(task, RangesInputPartition)]

    def _with_capture(self, task: RangesInputPartition) -> InputPartition:
        captured: list[CapturedRange] = []
        live: list[PartitionRange] = []
        for wanted in task.ranges:
            before, after = split_at(wanted, self._log_begins[wanted.partition_id])
            if before is not None:
                captured.append(self._captured_range(before))
            if after is not None:
                live.append(after)
        return ReplayInputPartition(tuple(captured), tuple(live)) if captured else task

    def _captured_range(self, wanted: PartitionRange) -> CapturedRange:
        assert self._last_description is not None
        index = self._index_of(self._last_description.created_at_ms)
        missing = index.missing_from(wanted)
        if missing is not None:
            index.refresh()
            missing = index.missing_from(wanted)
        if missing is not None:
            first = index.first_from(wanted.partition_id, missing + 1) or wanted.until_sequence_number
            report_missing(wanted.partition_id, missing, first, self._options)
        return index.files_for(wanted)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task's events, in order per partition. Raises as ``partitions``, and CaptureFileError."""
        freeze_loaded_modules()
        if not isinstance(partition, ReplayInputPartition):
            yield from read_ranges(self._options, partition, self._columns)
            return
        for item in partition.captured:
            for rows in read_captured(self._capture, item, self._options, fields_for(self._columns)):
                yield capture_batch(item.wanted.partition_id, rows, self._columns)
        yield from read_ranges(self._options, RangesInputPartition(partition.live), self._columns)


def read_captured(
    capture: CaptureOptions, item: CapturedRange, options: SourceOptions, fields: tuple[str, ...]
) -> Iterator[CaptureRows]:
    """A range's events in order, each once.

    Raises PositionOutOfRangeError for an event in no file (unless ``failOnDataLoss`` is off).
    """
    files = open_capture_files(capture)
    expected, until = item.wanted.start_sequence_number, item.wanted.until_sequence_number
    bounds = RowBounds(numbers=Bounds(until=until))
    for file in item.files:
        for rows in read_rows(files, file, fields, bounds):
            numbers = rows.sequence_numbers
            chosen = rows.chosen((numbers >= expected) & (numbers < until))
            while len(chosen.records):
                run = _unbroken(chosen)
                first = int(run.sequence_numbers[0])
                if first > expected:
                    report_missing(item.wanted.partition_id, expected, first, options)
                yield run
                expected = int(run.sequence_numbers[-1]) + 1
                chosen = chosen.chosen(chosen.sequence_numbers >= expected)
    if expected < until:
        report_missing(item.wanted.partition_id, expected, until, options)


def _unbroken(rows: CaptureRows) -> CaptureRows:
    """The rows before the first gap in their numbers."""
    numbers = rows.sequence_numbers
    steps = numbers[1:] != numbers[:-1] + 1
    if not steps.any():
        return rows
    return rows.at(np.arange(int(steps.argmax()) + 1))


def report_missing(partition_id: str, missing: int, first: int, options: SourceOptions) -> None:
    """Raise or log (by the options) that events are neither in the log nor in Capture's files."""
    sentence = (
        f"Partition {partition_id}: sequence number {missing} was wanted, but the first available one is "
        f"{first}: retention has deleted the events between, and no capture file has them."
    )
    if options.fail_on_data_loss:
        raise PositionOutOfRangeError(
            sentence,
            next_step="If Capture is still writing them, start again later. Set failOnDataLoss to false "
            "(--allow-gaps) to continue at the first available event.",
        )
    _logger.warning(sentence)
