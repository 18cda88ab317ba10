"""Compares two lists of rows that a database keeps in the order of their key, page by page.

Theory of operation. Only the database knows its order (that of strings depends on the collation), so keys are
compared here for equality alone. A page of the live rows says up to which key to read the shadow's; if those
do not fit into a page, their last key says up to which the live ones count. Memory is bounded by two pages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final

RowValues = tuple[Any, ...]
"""A row: first the key, then the other columns."""
Page = Callable[[RowValues | None, RowValues | None, int], Sequence[RowValues]]
"""Returns the first N rows whose keys are beyond the first key and not beyond the second; None: no bound."""

PAGE_ROWS: Final = 1_000


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A row that differs; None: that side has no such row."""

    key: RowValues
    live: RowValues | None
    shadow: RowValues | None

    @property
    def kind(self) -> str:
        """``changed``, ``only live`` or ``only shadow``."""
        if self.live is None:
            return "only shadow"
        return "only live" if self.shadow is None else "changed"


@dataclass(slots=True)
class Comparison:
    """How many rows are the same and differ, and the first that do."""

    same: int = 0
    changed: int = 0
    only_live: int = 0
    only_shadow: int = 0
    first: list[RowDifference] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Whether no row differs."""
        return not (self.changed or self.only_live or self.only_shadow)


def compare_rows(
    live: Page, shadow: Page, *, key_size: int, limit: int, page_rows: int = PAGE_ROWS
) -> Comparison:
    """Compare all rows. key_size: columns of the key, of which each row has another. limit: rows to list."""
    found = Comparison()
    after: RowValues | None = None
    while True:
        ours = live(after, None, page_rows)
        until = ours[-1][:key_size] if len(ours) == page_rows else None
        theirs = shadow(after, until, page_rows)
        if len(theirs) == page_rows and theirs[-1][:key_size] != until:
            until = theirs[-1][:key_size]
            ours = live(after, until, page_rows)
        _compare_page(ours, theirs, key_size, limit, found)
        if until is None:
            return found
        after = until


def _compare_page(
    ours: Sequence[RowValues], theirs: Sequence[RowValues], size: int, limit: int, found: Comparison
) -> None:
    """Count the rows of one range of keys."""
    live = {row[:size]: row[size:] for row in ours}
    shadow = {row[:size]: row[size:] for row in theirs}
    for key in _in_order(live, shadow):
        difference = RowDifference(key, live.get(key), shadow.get(key))
        if difference.live is None:
            found.only_shadow += 1
        elif difference.shadow is None:
            found.only_live += 1
        elif all(map(is_same, difference.live, difference.shadow)):
            found.same += 1
            continue
        else:
            found.changed += 1
        if len(found.first) < limit:
            found.first.append(difference)


def _in_order(live: Collection[RowValues], shadow: Collection[RowValues]) -> Iterator[RowValues]:
    """All keys, in an order that both sides agree with."""
    theirs = iter(shadow)
    for key in live:
        if key in shadow:
            yield from takewhile(lambda each, key=key: each != key, theirs)  # type: ignore[misc]
        yield key
    yield from theirs


def is_same(old: object, new: object) -> bool:
    """Whether two values are equal; a NaN equals another."""
    return bool(old == new or (old != old and new != new))
