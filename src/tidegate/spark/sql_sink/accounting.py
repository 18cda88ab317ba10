"""Accounts for every event: splits rows by hub partition and finds gaps between them.

Pure functions over Arrow batches. They serve one rule: a partition's SQL checkpoint moves past an event only
if the query returned that event, as rows, a dead letter or skipped on purpose, or certainly filtered it
(``SinkPlan.may_filter``). Any other event that did not come out is found here, before anything is committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.errors import InvalidArgumentError
from tidegate.sql.handlers.batches import PARTITION_COLUMN, SEQUENCE_NUMBER_COLUMN

SequenceNumbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Gap:
    """Missing sequence numbers: a half-open range."""

    start_sequence_number: int
    until_sequence_number: int

    def __str__(self) -> str:
        if self.until_sequence_number == self.start_sequence_number + 1:
            return f"sequence number {self.start_sequence_number}"
        return f"sequence numbers {self.start_sequence_number} to {self.until_sequence_number - 1}"


def split_by_partition(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each hub partition in a batch, in the order of the batch; no copy where there is one.

    Raises InvalidArgumentError for a row whose partition is null.
    """
    column = batch.column(PARTITION_COLUMN)
    values = pc.unique(column).to_pylist()
    for value in values:
        if value is None:
            raise InvalidArgumentError(
                f"The transformation returned a row whose {PARTITION_COLUMN} is null.",
                next_step=f"Keep the columns {PARTITION_COLUMN} and {SEQUENCE_NUMBER_COLUMN} unchanged.",
            )
        is_only_one = len(values) == 1
        yield value, batch if is_only_one else batch.filter(pc.equal(column, pa.scalar(value)))


def sequence_numbers_of(rows: pa.Table | pa.RecordBatch) -> SequenceNumbers:
    """The sequence numbers of rows, in their order."""
    column = rows.column(SEQUENCE_NUMBER_COLUMN)
    numbers: SequenceNumbers = np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)
    return numbers


def find_gaps(sequence_numbers: SequenceNumbers) -> Iterator[Gap]:
    """The gaps between ascending numbers, of which some may repeat (several rows of one event)."""
    for at in np.flatnonzero(np.diff(sequence_numbers) > 1):
        yield Gap(int(sequence_numbers[at]) + 1, int(sequence_numbers[at + 1]))


@dataclass(slots=True)
class PendingRows:
    """Rows of one hub partition that wait for their transaction."""

    rows_max: int
    """From this many rows on, ``take_ready`` returns some."""
    bytes_max: int
    are_gaps_filtered: bool = False
    """True: rows need not be contiguous to be in order."""
    _batches: list[pa.RecordBatch] = field(default_factory=list)
    _row_count: int = 0
    _byte_count: int = 0
    _is_ordered: bool = True

    def add(self, batch: pa.RecordBatch) -> None:
        """Append rows, in any order."""
        self._batches.append(batch)
        self._row_count += batch.num_rows
        self._byte_count += batch.nbytes

    def take_ready(self) -> pa.Table | None:
        """Enough rows for a transaction; None: wait for more.

        The last event's rows stay, because more of them may follow. Rows that are out of order or not
        contiguous (a transformation that shuffles) stay until ``take_rest``.
        """
        is_full = self._row_count >= self.rows_max or self._byte_count >= self.bytes_max
        if not is_full or not self._is_ordered:
            return None
        table = pa.Table.from_batches(self._batches)
        numbers = sequence_numbers_of(table)
        steps = np.diff(numbers)
        if np.any((steps < 0) | ((steps > 1) & (not self.are_gaps_filtered))):
            self._is_ordered = False
            return None
        ready_count = int(np.searchsorted(numbers, numbers[-1]))
        if ready_count == 0:
            return None
        self._batches = table.slice(ready_count).to_batches()
        self._row_count -= ready_count
        self._byte_count = sum(batch.nbytes for batch in self._batches)
        return table.slice(0, ready_count)

    def take_rest(self) -> pa.Table | None:
        """All remaining rows in the order of their sequence numbers; None: there are none."""
        if not self._batches:
            return None
        table = pa.Table.from_batches(self._batches)
        self._batches, self._row_count, self._byte_count = [], 0, 0
        if np.any(np.diff(sequence_numbers_of(table)) < 0):
            # A stable sort: several rows of one event keep their order.
            order: SequenceNumbers = np.argsort(sequence_numbers_of(table), kind="stable").astype(np.int64)
            table = table.take(order)
        return table
