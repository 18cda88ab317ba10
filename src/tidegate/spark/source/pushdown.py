"""What a batch query's filters say about where to read: which partitions, which numbers, which times.

A filter that is taken leaves Spark's plan, so only those are taken that a range of sequence numbers answers
exactly. Times narrow the ranges and stay in the plan: Azure does not promise that they ascend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from tidegate.spark.source.offsets import PartitionRange

TIME_MARGIN: Final = timedelta(seconds=60)
"""Our choice: how far a clock of the service may have stepped back between two events of a partition."""

_NEVER_NULL: Final = ("partition", "offset", "sequenceNumber", "enqueuedTime", "encodedEvent")

FirstAtTime = Callable[[str, datetime], int]
"""Partition id and time → sequence number of its first event of that time or later."""


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Everything that the filters allow; what they say nothing about is None."""

    partitions: frozenset[str] | None = None
    start_sequence_number: int | None = None
    until_sequence_number: int | None = None
    time_from: datetime | None = None
    time_until: datetime | None = None
    """Included."""

    def apply(self, ranges: Iterable[PartitionRange], first_at_time: FirstAtTime) -> list[PartitionRange]:
        """What is left of the ranges; empty ones are left out. Asks for times only of ranges with events."""
        narrowed: list[PartitionRange] = []
        for item in ranges:
            if self.partitions is not None and item.partition_id not in self.partitions:
                continue
            start = max(item.start_sequence_number, self.start_sequence_number or 0)
            until = item.until_sequence_number
            if self.until_sequence_number is not None:
                until = min(until, self.until_sequence_number)
            if start < until and self.time_from is not None:
                start = max(start, first_at_time(item.partition_id, self.time_from - TIME_MARGIN))
            if start < until and self.time_until is not None:
                until = min(until, first_at_time(item.partition_id, self.time_until + TIME_MARGIN))
            if start < until:
                narrowed.append(replace(item, start_sequence_number=start, until_sequence_number=until))
        return narrowed


def narrow(filters: Iterable[Filter]) -> tuple[Narrowing, list[Filter]]:
    """What the filters, all of which hold, allow; and those of them that Spark has to apply itself."""
    found, left = Narrowing(), []
    for item in filters:
        is_exact = (
            isinstance(item, IsNotNull) and len(item.attribute) == 1 and item.attribute[0] in _NEVER_NULL
        )
        column = _column(item)
        if column == "partition":
            found, is_exact = _by_partition(found, item)
        elif column == "sequenceNumber":
            found, is_exact = _by_sequence_number(found, item)
        elif column == "enqueuedTime":
            found = _by_time(found, item)
        if not is_exact:
            left.append(item)
    return found, left


_COMPARISONS: Final = (
    EqualTo,
    EqualNullSafe,
    In,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
)


def _column(item: Filter) -> str | None:
    """The column that a comparison is about; None for other filters, and for parts of a column."""
    if isinstance(item, _COMPARISONS) and len(item.attribute) == 1:
        return item.attribute[0]
    return None


def _values(item: Filter) -> tuple[object, ...] | None:
    """What a column has to be one of; None where the filter is of another kind."""
    if isinstance(item, In):
        # A null in the list makes no row true that was not.
        return tuple(value for value in item.value if value is not None)
    if isinstance(item, EqualTo | EqualNullSafe):
        return (item.value,)
    return None


def _by_partition(found: Narrowing, item: Filter) -> tuple[Narrowing, bool]:
    values = _values(item)
    if values is None or not all(isinstance(value, str) for value in values):
        return found, False
    allowed = frozenset(str(value) for value in values)
    return replace(
        found, partitions=allowed if found.partitions is None else found.partitions & allowed
    ), True


def _by_sequence_number(found: Narrowing, item: Filter) -> tuple[Narrowing, bool]:
    values = _values(item)
    if values is None:
        values = (getattr(item, "value", None),)
    if not values or not all(type(value) is int for value in values):
        return found, False
    numbers = [value for value in values if isinstance(value, int)]
    lowest, highest = min(numbers), max(numbers)
    start: int | None = None
    until: int | None = None
    if isinstance(item, GreaterThan | GreaterThanOrEqual):
        start = lowest + isinstance(item, GreaterThan)
    elif isinstance(item, LessThan | LessThanOrEqual):
        until = highest + isinstance(item, LessThanOrEqual)
    else:
        start, until = lowest, highest + 1
    if start is not None:
        found = replace(found, start_sequence_number=max(found.start_sequence_number or 0, start))
    if until is not None:
        now = found.until_sequence_number
        found = replace(found, until_sequence_number=until if now is None else min(now, until))
    # Several values leave gaps between them, which a range does not know.
    return found, highest - lowest + 1 == len(set(numbers))


def _by_time(found: Narrowing, item: Filter) -> Narrowing:
    """Only ever narrows with what Spark looks at again."""
    values = _values(item)
    if values is None:
        values = (getattr(item, "value", None),)
    # PySpark hands times over with their zone; one without would be anybody's guess.
    times = [value for value in values if isinstance(value, datetime) and value.tzinfo is not None]
    if not times or len(times) != len(values):
        return found
    if not isinstance(item, LessThan | LessThanOrEqual):
        start = min(times)
        found = replace(found, time_from=start if found.time_from is None else max(found.time_from, start))
    if not isinstance(item, GreaterThan | GreaterThanOrEqual):
        until = max(times)
        found = replace(found, time_until=until if found.time_until is None else min(found.time_until, until))
    return found
