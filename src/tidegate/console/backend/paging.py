"""How lists are told: a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

S = TypeVar("S")
T = TypeVar("T")

PAGE_SIZE: Final = 50
"""Rows on a page. Our choice: two screens, and a table that size is drawn in a few milliseconds."""


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some rows of a list."""

    items: Sequence[T]
    total: int | None
    """Rows of the whole list; None where counting them would cost too much."""
    next: str | None = None
    """What to ask the following page with; None: this is the last one."""
    previous: str | None = None
    """What to ask the page before with; None: this is the first one, or there is no way back but Back."""


def page_at(found: Sequence[S], start: int, row: Callable[[S], T]) -> Page[T]:
    """One page of a whole list, from ``start`` on. row: what becomes of each."""
    start = max(0, start)
    return page_of([row(each) for each in found[start : start + PAGE_SIZE]], start, len(found))


def page_of(items: Sequence[T], start: int, total: int) -> Page[T]:
    """A page of a list of ``total`` rows, of which ``items`` are those from ``start`` (0 or more) on."""
    end = start + PAGE_SIZE
    return Page(
        items,
        total=total,
        next=str(end) if end < total else None,
        previous=str(max(0, start - PAGE_SIZE)) if start > 0 else None,
    )
