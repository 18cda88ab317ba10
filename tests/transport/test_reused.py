"""What everyone may ask for takes a tenth of the time, however many ask."""

from __future__ import annotations

import pytest

from tidegate.transport.reused import Reused


def test_a_result_is_used_for_ten_times_its_work() -> None:
    """Then it is computed again; one that took no time is out of date at once."""
    now, calls = 100.0, 0

    def work() -> int:
        nonlocal now, calls
        calls += 1
        now += 0.5 * (calls < 3)
        return calls

    reused: Reused[int] = Reused(monotonic=lambda: now)
    assert [reused.get(work), reused.get(work)] == [1, 1]
    now += 4.9
    assert reused.get(work) == 1
    now += 0.2
    assert [reused.get(work), reused.get(work)] == [2, 2]
    now += 5.1
    assert [reused.get(work), reused.get(work)] == [3, 4]


def test_a_failure_is_not_kept() -> None:
    """The next who asks may have more luck."""

    def fail() -> int:
        raise ValueError("not now")

    reused: Reused[int] = Reused()
    with pytest.raises(ValueError, match="not now"):
        reused.get(fail)
    assert reused.get(lambda: 5) == 5
