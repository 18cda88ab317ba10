"""The lag of a group is no better than that of its worst partition."""

from __future__ import annotations

from tidegate.processor.group_view import Lag, total_of


def test_what_is_not_known_is_not_called_small() -> None:
    """Events add up; the most seconds count, and one partition's unknown time makes the group's unknown."""
    known = [Lag(3, 2.0, 1), Lag(4, 9.0, 0)]
    assert total_of(known) == Lag(7, 9.0, 1)
    beyond = Lag(None, None, None, is_beyond_log=True)
    assert total_of([*known, beyond]) == Lag(7, None, 1, is_beyond_log=True)
    assert total_of([]) == Lag(0, None, 0)
