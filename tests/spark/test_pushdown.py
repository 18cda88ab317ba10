"""Filters narrow what a batch query reads, and never change what it returns."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from tidegate.spark.source.offsets import PartitionRange
from tidegate.spark.source.pushdown import narrow

_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_COMPARISONS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda a, b: a == b,
    EqualNullSafe: lambda a, b: a == b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
}


class _Log:
    """Three partitions of numbers 10..59; times go on by half a minute, some of them 40 s behind."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.times: dict[str, dict[int, datetime]] = {}
        for key in "012":
            seconds = 0
            self.times[key] = {}
            for number in range(10, 60):
                seconds += rng.choice([0, 30, 30])
                self.times[key][number] = _EPOCH + timedelta(seconds=seconds - rng.choice([0, 0, 40]))

    def rows(self, ranges: list[PartitionRange]) -> set[tuple[str, int]]:
        return {
            (item.partition_id, number)
            for item in ranges
            for number in range(item.start_sequence_number, item.until_sequence_number)
        }

    def first_at(self, partition_id: str, time: datetime) -> int:
        return next((number for number, at in self.times[partition_id].items() if at >= time), 60)

    def holds(self, item: Filter, row: tuple[str, int]) -> bool:
        """What Spark makes of the filter."""
        key, number = row
        values = {"partition": key, "sequenceNumber": number, "enqueuedTime": self.times[key][number]}
        if isinstance(item, Not):
            return not self.holds(item.child, row)
        value: Any = values[cast(Any, item).attribute[0]]
        if isinstance(item, In):
            return value in item.value
        if isinstance(item, IsNotNull | IsNull):
            return isinstance(item, IsNotNull)
        if isinstance(item, StringStartsWith):
            return str(value).startswith(item.value)
        return _COMPARISONS[type(item)](value, cast(Any, item).value)


_ORDERED = st.sampled_from(list(_COMPARISONS))
_NUMBERS = st.integers(-3, 70)
_TIMES = st.integers(-50, 1000).map(lambda seconds: _EPOCH + timedelta(seconds=seconds))


def _tuples_of(items: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, min_size=1, max_size=4).map(tuple)


_FILTERS = st.one_of(
    st.builds(lambda kind, value: kind(("sequenceNumber",), value), _ORDERED, _NUMBERS),
    st.builds(
        lambda values: In(("sequenceNumber",), tuple(values)), st.lists(_NUMBERS, min_size=1, max_size=4)
    ),
    st.builds(lambda value: EqualTo(("partition",), value), st.sampled_from("0129")),
    st.builds(
        lambda values: In(("partition",), tuple(values)), st.lists(st.sampled_from("0129"), max_size=3)
    ),
    st.builds(lambda kind, value: kind(("enqueuedTime",), value), _ORDERED, _TIMES),
    st.builds(lambda name: IsNotNull((name,)), st.sampled_from(["partition", "enqueuedTime"])),
    st.just(IsNull(("partition",))),
    st.just(StringStartsWith(("partition",), "1")),
    st.builds(lambda kind, value: Not(kind(("sequenceNumber",), value)), _ORDERED, _NUMBERS),
    st.just(GreaterThan(("partition",), "0")),
)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.lists(_FILTERS, max_size=4), st.integers(0, 50))
def test_a_narrowed_read_returns_what_a_whole_one_does(filters: list[Filter], seed: int) -> None:
    """A filter that is taken leaves the plan: with those that are left, the same rows must remain."""
    log = _Log(seed)
    whole = [PartitionRange(key, 10, 60) for key in "012"]
    narrowing, left = narrow(filters)
    read = log.rows(narrowing.apply(whole, log.first_at))
    expected = {row for row in log.rows(whole) if all(log.holds(item, row) for item in filters)}
    assert {row for row in read if all(log.holds(item, row) for item in left)} == expected


def test_what_is_taken_and_what_is_left() -> None:
    """Exact ones are Spark's no more; times narrow, and stay in the plan."""
    time = GreaterThan(("enqueuedTime",), _EPOCH + timedelta(seconds=600))
    taken: list[Filter] = [
        IsNotNull(("partition",)),
        In(("partition",), ("1", "2")),
        GreaterThanOrEqual(("sequenceNumber",), 20),
        LessThan(("sequenceNumber",), 30),
    ]
    left: list[Filter] = [
        time,
        LessThanOrEqual(("enqueuedTime",), _EPOCH + timedelta(seconds=700)),
        IsNotNull(("body",)),
        In(("sequenceNumber",), (21, 25)),
        EqualTo(("body",), b""),
    ]
    narrowing, found = narrow([*taken, *left])
    assert found == left
    asked: list[tuple[str, datetime]] = []

    def first_at(partition_id: str, at: datetime) -> int:
        asked.append((partition_id, at))
        return 24 if at < _EPOCH + timedelta(seconds=600) else 26

    whole = [PartitionRange(key, 0, 1000) for key in "0123"]
    assert narrowing.apply(whole, first_at) == [PartitionRange(key, 24, 26) for key in "12"]
    bounds = [_EPOCH + timedelta(seconds=540), _EPOCH + timedelta(seconds=760, milliseconds=1)]
    assert asked == [(key, bound) for key in "12" for bound in bounds]
