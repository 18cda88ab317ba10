"""The plan of a checkpoint's move says what it skips and repeats, and never calls the unknown harmless."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate.model.errors import PositionOutOfRangeError
from tidegate.model.position import EventPosition
from tidegate.model.times import time_of
from tidegate.processor.checkpoint import ProcessorCheckpoint
from tidegate.processor.moves import MovePlan, PlannedMove, resume_point_of


def _at(sequence_number: int | None, created_at_ms: int | None = 1) -> ProcessorCheckpoint:
    return ProcessorCheckpoint("0", sequence_number, event_hub_created_at_ms=created_at_ms)


@pytest.mark.parametrize(
    ("before", "events", "is_rewind"),
    [
        (None, None, False),
        (_at(3), 6, False),
        (_at(9), 0, False),
        (_at(-1), 10, False),
        (_at(14), -5, True),
        (_at(3, None), 6, False),
        (_at(3, 2), None, True),
        (_at(None), None, True),
        (replace(_at(3, None), moved_at=time_of(1)), 6, False),
        (replace(_at(3, None), moved_at=time_of(0)), None, True),
    ],
)
def test_what_a_move_does(before: ProcessorCheckpoint | None, events: int | None, is_rewind: bool) -> None:
    """Backwards, into another hub of the name, or from a position without number: each is a rewind."""
    move = PlannedMove(_at(9), before)
    assert (move.resume_point, move.events, move.is_rewind) == (10, events, is_rewind)


def test_a_plan_sums_up() -> None:
    """Skipped and repeated events do not cancel out; unknown ones count as neither."""
    moves = (PlannedMove(_at(9), _at(3), "host"), PlannedMove(_at(9), _at(14)), PlannedMove(_at(9)))
    plan = MovePlan(moves)
    assert (plan.skipped, plan.repeated) == (6, 5)
    assert (plan.owned, plan.rewinds, plan.unknown) == ([moves[0]], [moves[1]], [moves[2]])


def test_where_processing_goes_on() -> None:
    """Only what lies in the log, or is its next event, can be gone on with."""
    for position, expected in (
        (EventPosition.earliest(), 5),
        (EventPosition.latest(), 8),
        (EventPosition.from_sequence_number(5), 5),
        (EventPosition.from_sequence_number(8), 8),
        (EventPosition.from_offset("6"), None),
    ):
        assert resume_point_of(position, "0", begin=5, until=8) == expected
    for number in (4, 9):
        with pytest.raises(PositionOutOfRangeError, match=f"event {number}: its log begins at 5"):
            resume_point_of(EventPosition.from_sequence_number(number), "0", begin=5, until=8)


@pytest.mark.parametrize(("offset", "distance"), [("7", 4), ("9" * 19, 10**19 - 4), ("9" * 5_000, None)])
def test_an_offset_of_any_length_is_compared(offset: str, distance: int | None) -> None:
    """Others may write to a store as well: what is no place in a log is not known to be before one."""
    there = ProcessorCheckpoint("0", None, offset)
    assert there.distance_from(ProcessorCheckpoint("0", None, "3")) == distance
