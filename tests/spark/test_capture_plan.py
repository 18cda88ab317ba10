"""What overlaps is read once; what is dealt to tasks is whole; what filters bound is never too narrow."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
)

from tidegate.spark.capture.names import CaptureFile
from tidegate.spark.capture.plan import FileRange, plan_tasks, split_where_apart
from tidegate.spark.capture.seen import OtherHubError, SeenNumbers
from tidegate.spark.source.pushdown import narrow

_ranges = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda pair: range(pair[0], pair[0] + pair[1])),
    max_size=8,
)


@given(batches=_ranges)
@pytest.mark.slow
def test_each_number_is_new_once(batches: list[range]) -> None:
    """Whatever order and overlap: as a plain set says."""
    seen, known = SeenNumbers(), set[int]()
    for batch in batches:
        numbers = np.array(batch, np.int64)
        mask = seen.add(numbers, numbers * 1000)
        assert mask.tolist() == [number not in known for number in batch]
        known |= set(batch)


@given(numbers=st.lists(st.integers(0, 10), max_size=20))
@pytest.mark.slow
def test_a_number_twice_in_a_batch(numbers: list[int]) -> None:
    """The first of them counts."""
    mask = SeenNumbers().add(np.array(numbers, np.int64), np.zeros(len(numbers), np.int64))
    assert [number for number, is_new in zip(numbers, mask, strict=True) if is_new] == list(
        dict.fromkeys(numbers)
    )


def test_numbers_of_a_hub_made_anew_are_noticed() -> None:
    """They begin again at 0, later than all that was."""
    numbers = np.arange(10, dtype=np.int64)
    seen = SeenNumbers()
    seen.add(numbers, numbers * 1000)
    assert not seen.add(numbers, numbers * 1000 + 999).any()
    with pytest.raises(OtherHubError) as caught:
        seen.add(numbers[3:], numbers[3:] * 1000 + 3_600_000)
    assert caught.value.sequence_number == 3


def _file(partition_id: str, number: int, size: int = 1_000_000) -> CaptureFile:
    return CaptureFile(f"{partition_id}/{number}", "ns", "hub", partition_id, number, size)


@given(bounds=_ranges)
@pytest.mark.slow
def test_pieces_do_not_overlap_and_nothing_is_lost(bounds: list[range]) -> None:
    """Every file is in one piece, and numbers of two pieces are apart."""
    ranges = [
        FileRange(_file("0", index), item.start, item.stop, 0)
        for index, item in enumerate(bounds)
        if len(item)
    ]
    by_file = {
        item.file: set(range(item.start_sequence_number, item.until_sequence_number)) for item in ranges
    }
    pieces = split_where_apart(ranges)
    covered = [set[int]().union(*(by_file[file] for file in piece.files)) for piece in pieces]
    assert sum(map(len, covered)) == len(set[int]().union(*covered))
    assert sorted(file.name for piece in pieces for file in piece.files) == sorted(f.name for f in by_file)


def test_a_partition_is_split_only_where_cores_would_idle() -> None:
    """Sixteen even partitions are not looked into; one large one is, and four tasks share it evenly."""
    looked: list[str] = []

    def probe(files: Sequence[CaptureFile]) -> list[FileRange]:
        looked.extend({file.partition_id for file in files})
        return [FileRange(file, file.time_s * 10, file.time_s * 10 + 10, 0) for file in files]

    even = [_file(str(partition), number) for partition in range(16) for number in range(3)]
    assert [len(task) for task in plan_tasks(even, 4, probe)] == [4, 4, 4, 4]
    assert looked == []
    large = [_file("0", number) for number in range(40)] + [_file("1", 0)]
    tasks = plan_tasks(large, 4, probe)
    assert looked == ["0"]
    costs = [sum(piece.cost for piece in task) for task in tasks]
    assert max(costs) < 1.3 * sum(costs) / 4
    assert sorted(file.name for task in tasks for piece in task for file in piece.files) == sorted(
        file.name for file in large
    )
    assert plan_tasks([], 4, probe) == []


_TIME = datetime(2026, 11, 20, 12, 0, 0, 123_456, tzinfo=UTC)
_times = st.integers(-3000, 3000).map(lambda offset: _TIME + timedelta(microseconds=offset))
_numbers = st.integers(0, 9)
_filters = st.lists(
    st.one_of(
        st.builds(EqualTo, st.just(("partition",)), st.sampled_from("012")),
        st.builds(In, st.just(("partition",)), st.lists(st.sampled_from("012")).map(tuple)),
        *(
            st.builds(kind, st.just((column,)), values)
            for kind in (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
            for column, values in (("sequenceNumber", _numbers), ("enqueuedTime", _times))
        ),
        st.builds(Not, st.builds(EqualTo, st.just(("sequenceNumber",)), _numbers)),
    ),
    max_size=3,
)


def _holds(condition: Filter, row: dict[str, object]) -> bool:
    if isinstance(condition, Not):
        return not _holds(condition.child, row)
    value = row[condition.attribute[0]]  # type: ignore[attr-defined]
    other = condition.value  # type: ignore[attr-defined]
    match condition:
        case In():
            return value in other
        case EqualTo() | EqualNullSafe():
            return bool(value == other)
        case GreaterThan():
            return bool(value > other)
        case GreaterThanOrEqual():
            return bool(value >= other)
        case LessThan():
            return bool(value < other)
    return bool(value <= other)


@given(filters=_filters, partition=st.sampled_from("012"), number=_numbers, time=_times)
@pytest.mark.slow
def test_bounds_never_leave_out_what_filters_want(
    filters: list[Filter], partition: str, number: int, time: datetime
) -> None:
    """Each row that all filters accept is within what they bound."""
    row: dict[str, object] = {"partition": partition, "sequenceNumber": number, "enqueuedTime": time}
    bounds, _ = narrow(filters)
    time_ms = (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    row["enqueuedTime"] = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
    if all(_holds(condition, row) for condition in filters):
        assert bounds.partition_ids is None or partition in bounds.partition_ids
        assert bounds.numbers.start is None or number >= bounds.numbers.start
        assert bounds.numbers.until is None or number < bounds.numbers.until
        assert bounds.times_ms.start is None or time_ms >= bounds.times_ms.start
        assert bounds.times_ms.until is None or time_ms < bounds.times_ms.until
