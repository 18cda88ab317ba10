"""Pages of lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlencode

from starlette.requests import Request

S = TypeVar("S")
T = TypeVar("T")

PAGE_SIZE: Final = 50
"""Rows on a page. Our choice: two screens, drawn in a few milliseconds."""


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some rows of a list."""

    items: Sequence[T]
    total: int | None
    """Rows of the whole list; None if counting would cost too much."""
    next: str | None = None
    """The cursor of the next page; None on the last page."""
    previous: str | None = None
    """The cursor of the previous page; None on the first page, or if only the browser's Back leads there."""

    def map(self, row: Callable[[T], S]) -> Page[S]:
        """The same page with converted rows."""
        return Page([row(each) for each in self.items], self.total, self.next, self.previous)


def page_at(found: Sequence[T], start: int) -> Page[T]:
    """One page of a whole list, from ``start`` on."""
    start = max(0, start)
    return page_of(found[start : start + PAGE_SIZE], start, len(found))


def page_of(items: Sequence[T], start: int, total: int) -> Page[T]:
    """A page of a list of ``total`` rows; ``items`` are those from ``start`` (0 or more) on."""
    end = start + PAGE_SIZE
    return Page(
        items,
        total=total,
        next=str(end) if end < total else None,
        previous=str(max(0, start - PAGE_SIZE)) if start > 0 else None,
    )


def pager(path: str, found: Page[T], *, place: str = "start", **query: str) -> dict[str, str | None]:
    """URLs of the previous and next pages, for ``pager.html``. place: the query parameter of the cursor;
    query: other parameters, without empty ones.
    """

    def address(start: str | None) -> str | None:
        if start is None:
            return None
        given = {name: value for name, value in query.items() if value}
        return f"{path}?{urlencode(given | {place: start})}"

    return {"previous_page": address(found.previous), "next_page": address(found.next)}


def listing(request: Request, path: str, found: Page[Any], **filters: str) -> dict[str, Any]:
    """What the template of a list needs: the page, its neighbours, its filters, and the request's query."""
    query = urlencode(request.query_params.multi_items())
    return {"found": found, "query": query, **filters, **pager(path, found, **filters)}
