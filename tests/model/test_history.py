"""Histories: when a position proves that a log is another one, and when it does not."""

from __future__ import annotations

import pytest

from tidegate.model.errors import PositionOutOfRangeError
from tidegate.model.history import History, find_divergence, history_of

_LOG = (History("b", 50), History("c", 80), History("d", 100))
"""What was before 50 is forgotten; nothing is stored yet in the last one."""


@pytest.mark.parametrize(
    ("number", "history_id"), [(49, None), (50, "b"), (79, "b"), (80, "c"), (99, "c"), (100, "d"), (500, "d")]
)
def test_an_event_is_of_the_history_that_began_last_before_it(number: int, history_id: str | None) -> None:
    """The one that a checkpoint keeps."""
    assert history_of(number, _LOG) == history_id


@pytest.mark.parametrize(
    ("resume_point", "history_id", "is_diverged"),
    [
        (60, "b", False),
        (80, "b", False),
        (81, "b", True),  # 80 is of another history now
        (100, "c", False),
        (101, "c", True),
        (900, "d", False),  # beyond the end, which is another error
        (51, "x", True),
        (50, "x", False),  # an older one, which the log may have had
        (90, None, False),
    ],
)
def test_what_was_read_in_a_history_must_be_in_it_still(
    resume_point: int, history_id: str | None, is_diverged: bool
) -> None:
    """The position of a reader, in a log that began again at 50, 80 and 100."""
    found = find_divergence(resume_point, history_id, _LOG, where="Partition 0 of 'h'")
    assert (found is not None) is is_diverged
    if found is not None:
        assert isinstance(found, PositionOutOfRangeError)
        assert f"sequence number {resume_point - 1} was read in the history {history_id}" in found.message
        assert "tidegate checkpoint set" in found.next_step


def test_a_service_that_reports_no_histories_proves_nothing() -> None:
    """Azure, and earlier versions."""
    assert find_divergence(5, "b", (), where="Partition 0 of 'h'") is None
