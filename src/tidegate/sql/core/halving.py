"""Finding what fails by halving. Where nothing fails, one attempt does everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

_Error = TypeVar("_Error", bound=Exception)


def failures_of(
    attempt: Callable[[int, int], None], low: int, until: int, error_type: type[_Error]
) -> Iterator[tuple[int, _Error]]:
    """Attempt the items ``[low, until)``; where that fails, their halves, in order, down to single items.

    attempt: raises ``error_type``, and has then had no effect. Yields the index of each item that fails by
    itself, with its error; stop iterating to stop looking. k failures among n items cost about
    2 k log2(n / k) attempts more.
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
