"""Narrows what to read by a query's filters on partitions, sequence numbers and times.

A filter that the source accepts leaves Spark's plan, so only filters are accepted that a range of sequence
numbers answers exactly. Times narrow ranges but stay in the plan: Azure does not promise that they ascend.
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
from tidegate.spark.source.schema import NEVER_NULL

TIME_MARGIN: Final = timedelta(seconds=60)
"""How far the service's clock may have stepped back between two events of a partition (our choice)."""


FirstAtTime = Callable[[str, datetime], int]
"""Partition id and time → sequence number of its first event of that time or later."""


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What the filters allow; None: not restricted."""

    partitions: frozenset[str] | None = None
    start_sequence_number: int | None = None
    until_sequence_number: int | None = None
    time_from: datetime | None = None
    time_until: datetime | None = None
    """Inclusive."""

    def apply(self, ranges: Iterable[PartitionRange], first_at_time: FirstAtTime) -> list[PartitionRange]:
        """What remains of the ranges, without empty ones. Looks up times only for ranges that have events."""
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
    """What the filters allow together, and those that Spark must still apply."""
    found, left = Narrowing(), []
    for item in filters:
        is_exact = (
            isinstance(item, IsNotNull) and len(item.attribute) == 1 and item.attribute[0] in NEVER_NULL
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
    """The column that a comparison restricts; None for other filters, and for parts of a column."""
    if isinstance(item, _COMPARISONS) and len(item.attribute) == 1:
        return item.attribute[0]
    return None


def _values(item: Filter) -> tuple[object, ...]:
    """The values to which a comparison compares."""
    if isinstance(item, In):
        # A null in the list makes no further row true.
        return tuple(value for value in item.value if value is not None)
    return (getattr(item, "value", None),)


def _by_partition(found: Narrowing, item: Filter) -> tuple[Narrowing, bool]:
    values = _values(item)
    is_equality = isinstance(item, In | EqualTo | EqualNullSafe)
    if not is_equality or not all(isinstance(value, str) for value in values):
        return found, False
    allowed = frozenset(map(str, values))
    if found.partitions is not None:
        allowed &= found.partitions
    return replace(found, partitions=allowed), True


def _by_sequence_number(found: Narrowing, item: Filter) -> tuple[Narrowing, bool]:
    numbers = [value for value in _values(item) if type(value) is int]
    if not numbers or len(numbers) < len(_values(item)):
        return found, False
    lowest, highest = min(numbers), max(numbers)
    start, until = found.start_sequence_number or 0, found.until_sequence_number
    if not isinstance(item, LessThan | LessThanOrEqual):
        start = max(start, lowest + isinstance(item, GreaterThan))
    if not isinstance(item, GreaterThan | GreaterThanOrEqual):
        end = highest + (not isinstance(item, LessThan))
        until = end if until is None else min(until, end)
    # Several values leave gaps between them, which a range cannot express.
    is_exact = highest - lowest + 1 == len(set(numbers))
    return replace(found, start_sequence_number=start, until_sequence_number=until), is_exact


def _by_time(found: Narrowing, item: Filter) -> Narrowing:
    """Only narrows, since Spark applies the filter as well."""
    # PySpark passes times with their zone; one without could mean anything.
    times = [value for value in _values(item) if isinstance(value, datetime) and value.tzinfo is not None]
    if not times or len(times) < len(_values(item)):
        return found
    start, until = found.time_from, found.time_until
    if not isinstance(item, LessThan | LessThanOrEqual):
        start = min(times) if start is None else max(start, min(times))
    if not isinstance(item, GreaterThan | GreaterThanOrEqual):
        until = max(times) if until is None else min(until, max(times))
    return replace(found, time_from=start, time_until=until)
