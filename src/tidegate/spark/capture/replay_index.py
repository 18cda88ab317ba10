"""The index of which capture file holds which events, with which the driver plans a replay.

Two small reads per file build it, and their results are kept. It is refreshed when a needed event is missing,
because Capture continues to write while a replay runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tidegate.spark.capture.files import list_capture_files, open_capture_files
from tidegate.spark.capture.names import CaptureFile, prune
from tidegate.spark.capture.options import CaptureOptions
from tidegate.spark.capture.plan import FileRange
from tidegate.spark.capture.reader import UNKNOWN_UNTIL, probe_files
from tidegate.spark.source.offsets import PartitionRange
from tidegate.spark.source.pushdown import Bounds


@dataclass(frozen=True, slots=True)
class CapturedRange:
    """A range of a partition's events, and the capture files to read it from."""

    wanted: PartitionRange
    files: tuple[CaptureFile, ...]
    """By their first sequence numbers."""


class CaptureIndex:
    """The capture files of one event hub."""

    def __init__(self, options: CaptureOptions, *, event_hub: str, event_hub_created_at_ms: int) -> None:
        """event_hub: whose files to use if the options do not say. event_hub_created_at_ms: older events
        belong to a deleted hub of this name.
        """
        self._options = options
        self._event_hub = event_hub
        self._created_at_ms = event_hub_created_at_ms
        self._known: dict[CaptureFile, FileRange | None] = {}
        self._by_partition: dict[str, list[FileRange]] = {}

    def refresh(self) -> None:
        """Look for new files. Raises CaptureFileError, InvalidArgumentError."""
        files = open_capture_files(self._options)
        since = Bounds(self._created_at_ms // 1000 * 1000)
        listed = prune(
            list_capture_files(files, self._options, event_hub=self._event_hub),
            partition_ids=None,
            times_ms=self._options.times_ms.narrowed(since),
            retention_hours=self._options.retention_hours,
        )
        new = [file for file in listed if file not in self._known]
        found = {
            item.file: item
            for item in probe_files(files, new, is_bad_file_skipped=self._options.is_bad_file_skipped)
        }
        self._known = {file: self._known.get(file, found.get(file)) for file in listed}
        self._by_partition = {}
        for file, item in self._known.items():
            # Azure truncates times to seconds, so compare only seconds.
            if item is None or item.until_sequence_number == UNKNOWN_UNTIL:
                continue
            if item.first_event_ms // 1000 >= self._created_at_ms // 1000:
                self._by_partition.setdefault(file.partition_id, []).append(item)
        for ranges in self._by_partition.values():
            ranges.sort(key=lambda item: item.start_sequence_number)

    def first_from(self, partition_id: str, sequence_number: int) -> int | None:
        """The first captured event at or after ``sequence_number``; None if there is none."""
        for item in self._by_partition.get(partition_id, ()):
            if item.until_sequence_number > sequence_number:
                return max(item.start_sequence_number, sequence_number)
        return None

    def first_of_all(self) -> Mapping[str, int]:
        """The first captured event of each partition that has any."""
        return {key: ranges[0].start_sequence_number for key, ranges in self._by_partition.items()}

    def missing_from(self, wanted: PartitionRange) -> int | None:
        """The first event of the range that is in no file; None if files cover all of it."""
        return first_missing(self._by_partition.get(wanted.partition_id, ()), wanted)

    def files_for(self, wanted: PartitionRange) -> CapturedRange:
        """The files to read the range from, as far as it is captured."""
        files = [
            item.file
            for item in self._by_partition.get(wanted.partition_id, ())
            if item.start_sequence_number < wanted.until_sequence_number
            and item.until_sequence_number > wanted.start_sequence_number
        ]
        return CapturedRange(wanted, tuple(files))


def first_missing(ranges: Iterable[FileRange], wanted: PartitionRange) -> int | None:
    """The first event of ``wanted`` that no range covers. ranges: by their first sequence numbers."""
    expected = wanted.start_sequence_number
    for item in ranges:
        if item.start_sequence_number > expected or expected >= wanted.until_sequence_number:
            break
        expected = max(expected, item.until_sequence_number)
    return None if expected >= wanted.until_sequence_number else expected


def split_at(
    wanted: PartitionRange, sequence_number: int
) -> tuple[PartitionRange | None, PartitionRange | None]:
    """The parts of a range before a sequence number and from it on; None for an empty part."""
    start, until = wanted.start_sequence_number, wanted.until_sequence_number
    middle = min(max(sequence_number, start), until)
    before = PartitionRange(wanted.partition_id, start, middle) if middle > start else None
    after = replace(wanted, start_sequence_number=middle) if until > middle else None
    return before, after
