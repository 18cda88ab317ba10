"""The lag of a group is no better than that of its worst partition."""

from __future__ import annotations

from tidegate.processor.group_view import Lag, total_of


def test_what_is_not_known_is_not_called_small() -> None:
    """Events add up; the most seconds count; and what is unknown of one partition is unknown of the group."""
    known = [Lag(3, 2.0, 1), Lag(4, 9.0, 0)]
    assert total_of(known) == Lag(7, 9.0, 1)
    beyond = Lag(None, None, None, is_beyond_log=True)
    assert total_of([*known, beyond]) == Lag(None, None, None, is_beyond_log=True)
    assert total_of([*known, Lag(1, None, 0)]) == Lag(8, None, 1)
    assert total_of([]) == Lag(0, None, 0)
