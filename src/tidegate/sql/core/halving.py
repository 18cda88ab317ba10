"""Finds what fails by halving. If nothing fails, one attempt does everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

_Error = TypeVar("_Error", bound=Exception)


def failures_of(
    attempt: Callable[[int, int], None], low: int, until: int, error_type: type[_Error]
) -> Iterator[tuple[int, _Error]]:
    """Attempt the items ``[low, until)``; if that fails, their halves in order, down to single items.

    attempt: raises ``error_type``, and then has had no effect. Yields (index, error) of each item that fails
    alone; stop iterating to stop the search. k failures among n items cost about 2 k log2(n / k) extra
    attempts.
    """
    pending = [(low, until)]
    while pending:
        low, until = pending.pop()
        if low == until:
            continue
        try:
            attempt(low, until)
            continue
        except error_type as error:
            failure = error
        if until - low == 1:
            yield low, failure
        else:
            middle = (low + until) // 2
            pending += [(middle, until), (low, middle)]
