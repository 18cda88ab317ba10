"""No event leaves a query unaccounted for, however the rows arrive."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.model.errors import InvalidArgumentError
from tidegate.spark.sql_sink.accounting import (
    Gap,
    PendingRows,
    find_gaps,
    sequence_numbers_of,
    split_by_partition,
)


def _batch(partitions: list[str], sequence_numbers: list[int]) -> pa.RecordBatch:
    columns: list[pa.Array[Any]] = [pa.array(partitions, pa.string()), pa.array(sequence_numbers, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, names=["partition", "sequenceNumber"])


def _rows(*sequence_numbers: int) -> pa.RecordBatch:
    return _batch(["0"] * len(sequence_numbers), list(sequence_numbers))


@pytest.mark.parametrize(
    ("numbers", "gaps"),
    [
        ([], []),
        ([5], []),
        ([5, 6, 7], []),
        ([5, 5, 6, 6, 6], []),
        ([5, 6, 9, 12], [Gap(7, 9), Gap(10, 12)]),
        ([1, 2, 2, 4, 5, 8], [Gap(3, 4), Gap(6, 8)]),
    ],
)
def test_gaps_are_found(numbers: list[int], gaps: list[Gap]) -> None:
    """Each number must be there, repeated or not."""
    assert list(find_gaps(np.array(numbers, dtype=np.int64))) == gaps


def test_a_gap_reads_well() -> None:
    """The error sentence names what is missing, one event or several."""
    assert str(Gap(7, 8)) == "sequence number 7"
    assert str(Gap(7, 10)) == "sequence numbers 7 to 9"


def test_a_packed_task_is_split_by_hub_partition() -> None:
    """Spark cuts Arrow batches by rows: one may hold the end of a partition and the start of the next."""
    batch = _batch(["0", "0", "1", "0"], [1, 2, 1, 3])
    split = {partition: sequence_numbers_of(rows).tolist() for partition, rows in split_by_partition(batch)}
    assert split == {"0": [1, 2, 3], "1": [1]}


def test_a_row_without_partition_is_refused() -> None:
    """A null would otherwise make a hub partition of its own."""
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["0", None], pa.string()), pa.array([1, 2], pa.int64())],
        names=["partition", "sequenceNumber"],
    )
    with pytest.raises(InvalidArgumentError, match="partition is null"):
        list(split_by_partition(batch))


def test_full_buffers_hand_out_all_but_the_last_event() -> None:
    """An event with several rows never falls into two transactions."""
    rows = PendingRows(rows_max=4, bytes_max=1 << 20)
    rows.add(_rows(1, 2))
    assert rows.take_ready() is None
    rows.add(_rows(3, 3))
    ready = rows.take_ready()
    assert ready is not None
    assert sequence_numbers_of(ready).tolist() == [1, 2]
    rows.add(_rows(3, 4))
    rest = rows.take_rest()
    assert rest is not None
    assert sequence_numbers_of(rest).tolist() == [3, 3, 3, 4]
    assert rows.take_rest() is None


def test_shuffled_rows_wait_and_come_out_sorted() -> None:
    """A transformation with a shuffle costs memory, not correctness."""
    rows = PendingRows(rows_max=2, bytes_max=1 << 20)
    rows.add(_rows(4, 2))
    assert rows.take_ready() is None
    rows.add(_rows(1, 3))
    assert rows.take_ready() is None
    rest = rows.take_rest()
    assert rest is not None
    assert sequence_numbers_of(rest).tolist() == [1, 2, 3, 4]


def test_bytes_bound_a_transaction_too() -> None:
    """Large events fill memory long before they are many."""
    rows = PendingRows(rows_max=1 << 20, bytes_max=64)
    rows.add(_rows(*range(10)))
    ready = rows.take_ready()
    assert ready is not None
    assert ready.num_rows == 9
