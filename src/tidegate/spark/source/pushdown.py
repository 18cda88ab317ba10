"""Narrows what to read by a query's filters on partitions, sequence numbers and times.

A filter that the source accepts leaves Spark's plan, so only filters are accepted that a range of sequence
numbers answers exactly. Times narrow ranges but stay in the plan: Azure does not promise that they ascend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from tidegate.columns.schema import NEVER_NULL
from tidegate.model.times import milliseconds_of, time_of
from tidegate.spark.runtime.versions import filter_kinds
from tidegate.spark.source.offsets import PartitionRange

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

TIME_MARGIN: Final = timedelta(seconds=60)
"""How far the service's clock may have stepped back between two events of a partition (our choice)."""

FirstAtTime = Callable[[str, datetime], int]
"""Partition id and time → sequence number of its first event of that time or later."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """A half-open range of integers; None: unbounded."""

    start: int | None = None
    until: int | None = None

    def narrowed(self, other: Bounds) -> Bounds:
        """The intersection of both."""
        starts = [bound for bound in (self.start, other.start) if bound is not None]
        untils = [bound for bound in (self.until, other.until) if bound is not None]
        return Bounds(max(starts, default=None), min(untils, default=None))


@dataclass(frozen=True, slots=True)
class RowBounds:
    """The part of a hub's events that a query needs."""

    partition_ids: frozenset[str] | None = None
    """None: all."""
    numbers: Bounds = Bounds()
    """Sequence numbers."""
    times_ms: Bounds = Bounds()
    """Enqueued times: milliseconds since 1970-01-01 UTC."""

    def narrowed(self, other: RowBounds) -> RowBounds:
        """The intersection of both."""
        chosen = [ids for ids in (self.partition_ids, other.partition_ids) if ids is not None]
        return RowBounds(
            frozenset.intersection(*chosen) if chosen else None,
            self.numbers.narrowed(other.numbers),
            self.times_ms.narrowed(other.times_ms),
        )

    def apply(self, ranges: Iterable[PartitionRange], first_at_time: FirstAtTime) -> list[PartitionRange]:
        """What remains of the ranges, without empty ones. Looks up times only for ranges that have events."""
        narrowed: list[PartitionRange] = []
        after_ms, before_ms = self.times_ms.start, self.times_ms.until
        for item in ranges:
            if self.partition_ids is not None and item.partition_id not in self.partition_ids:
                continue
            start = max(item.start_sequence_number, self.numbers.start or 0)
            until = item.until_sequence_number
            if self.numbers.until is not None:
                until = min(until, self.numbers.until)
            if start < until and after_ms is not None:
                start = max(start, first_at_time(item.partition_id, time_of(after_ms) - TIME_MARGIN))
            if start < until and before_ms is not None:
                until = min(until, first_at_time(item.partition_id, time_of(before_ms) + TIME_MARGIN))
            if start < until:
                narrowed.append(replace(item, start_sequence_number=start, until_sequence_number=until))
        return narrowed


def narrow(filters: Iterable[Filter]) -> tuple[RowBounds, list[Filter]]:
    """What the filters allow together, and those that Spark must still apply."""
    bounds, left = RowBounds(), []
    for item in filters:
        allowed, is_exact = _allowed(item)
        bounds = bounds.narrowed(allowed)
        if not is_exact:
            left.append(item)
    return bounds, left


_LESS: Final = filter_kinds("LessThan", "LessThanOrEqual")
_GREATER: Final = filter_kinds("GreaterThan", "GreaterThanOrEqual")
_STRICT: Final = filter_kinds("LessThan", "GreaterThan")
_IN: Final = filter_kinds("In")
_EQUAL: Final = filter_kinds("EqualTo", "EqualNullSafe", "In")
_NOT_NULL: Final = filter_kinds("IsNotNull")


def _allowed(item: object) -> tuple[RowBounds, bool]:
    """What one filter allows, and whether it allows all of that, so that Spark need not apply it."""
    path: tuple[str, ...] = getattr(item, "attribute", ())
    column = path[0] if len(path) == 1 else None
    if isinstance(item, _NOT_NULL):
        return RowBounds(), column in NEVER_NULL
    if not isinstance(item, (*_LESS, *_GREATER, *_EQUAL)):
        return RowBounds(), False
    # A null in a list makes no further row true.
    value: Any = getattr(item, "value")  # noqa: B009 - mypy does not see which kinds of filters these are
    values = [each for each in value if each is not None] if isinstance(item, _IN) else [value]
    if column == "partition" and isinstance(item, _EQUAL) and all(isinstance(each, str) for each in values):
        return RowBounds(frozenset(values)), True
    if column == "sequenceNumber" and values and all(type(each) is int for each in values):
        # Several values leave gaps between them, which a range cannot express.
        is_exact = max(values) - min(values) + 1 == len(set(values))
        is_strict = isinstance(item, _STRICT)
        return RowBounds(numbers=_range(item, values, is_strict=is_strict)), is_exact
    if column == "enqueuedTime" and values and all(map(_is_instant, values)):
        times_ms = [milliseconds_of(each) for each in values]
        return RowBounds(times_ms=_range(item, times_ms, is_strict=False)), False  # they are rounded
    return RowBounds(), False


def _is_instant(value: object) -> bool:
    """PySpark passes times with their zone; one without could mean anything."""
    return isinstance(value, datetime) and value.tzinfo is not None


def _range(item: object, values: Sequence[int], *, is_strict: bool) -> Bounds:
    """The numbers from the least to the greatest value, or on one side of them; without them if strict."""
    start = None if isinstance(item, _LESS) else min(values) + is_strict
    return Bounds(start, None if isinstance(item, _GREATER) else max(values) + (not is_strict))
