"""How long wrong keys wait: growing, bounded, and per address and policy."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.broker import attempts
from tidegate.broker.attempts import (
    ADDRESSES_MAX,
    DELAY_S_MAX,
    POLICIES_MAX,
    WAITING_MAX,
    WINDOW_S,
    FailedAttempts,
)

FREE_FAILURES = 5
ADDRESSES = st.sampled_from(["192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1", "2001:db8::2", "", "unix"])
STEPS = st.lists(st.tuples(ADDRESSES, st.text(max_size=3), st.floats(0.0, WINDOW_S)), max_size=200)


@pytest.fixture(autouse=True)
def _usual_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a service has, whatever other tests of the run have set."""
    monkeypatch.setattr(attempts, "FREE_FAILURES", 5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
@pytest.mark.slow
def test_delays_grow_and_are_bounded(steps: list[tuple[str, str, float]]) -> None:
    """Of failures without a pause between them no delay is shorter than the last, and none above the most."""
    table, now = FailedAttempts(), 0.0
    last: dict[tuple[str, str], tuple[float, float]] = {}
    for address, policy, pause_s in steps:
        now += pause_s
        delay_s = table.note(address, policy, now=now)
        assert 0.0 <= delay_s <= DELAY_S_MAX
        before_at, before_s = last.get((address, policy), (now, 0.0))
        if now - before_at <= WINDOW_S:
            assert delay_s >= before_s
        last[address, policy] = now, delay_s
    assert len(table) <= 5 * POLICIES_MAX


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 3 * ADDRESSES_MAX), max_size=50), st.integers(0, 2 * POLICIES_MAX))
@pytest.mark.slow
def test_what_is_remembered_is_bounded(numbers: list[int], policies: int) -> None:
    """Neither addresses nor names of policies fill the memory; the newest failure is always remembered."""
    table = FailedAttempts()
    for number in (*range(ADDRESSES_MAX - 10, ADDRESSES_MAX + 10), *numbers):
        for policy in range(policies + 1):
            table.note(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", str(policy), now=0.0)
    assert len(table) <= ADDRESSES_MAX * POLICIES_MAX


def test_the_oldest_address_makes_room() -> None:
    """Not the one that is guessing now."""
    table = FailedAttempts()
    for _ in range(FREE_FAILURES):
        table.note("192.0.2.1", "p", now=0.0)
    for number in range(ADDRESSES_MAX - 1):
        table.note(f"10.0.{number >> 8}.{number & 255}", "p", now=0.0)
    assert table.note("192.0.2.1", "p", now=0.0) > 0.0
    table.note("10.255.0.1", "p", now=0.0)
    assert len(table) == ADDRESSES_MAX
    assert table.note("192.0.2.1", "p", now=0.0) > 0.0


def test_the_first_failures_are_free_and_time_forgets() -> None:
    """0.1 s after five, doubled by each, ten at most; after a quiet while it begins again."""
    table = FailedAttempts()
    delays = [table.note("a", "p", now=0.0) for _ in range(14)]
    assert delays == [0.0] * 5 + [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert table.note("a", "p", now=WINDOW_S + 0.1) == 0.0
    for _ in range(5_000):
        table.note("a", "p", now=WINDOW_S + 0.1)  # nor does a float overflow


def test_an_address_is_refused_only_while_its_answers_are_outstanding() -> None:
    """And only at that policy; connecting anew does not shorten a delay that was given."""
    table = FailedAttempts()
    for _ in range(FREE_FAILURES + 7):
        table.note("2001:db8::1", "p", now=0.0)
    for _ in range(WAITING_MAX - 1):
        assert table.refused_for_s("2001:db8::2", "p", now=20.0) == 0.0
        assert table.note("2001:db8::3", "p", now=20.0) == DELAY_S_MAX
    assert table.note("2001:db8::3", "p", now=21.0) == DELAY_S_MAX
    assert table.refused_for_s("2001:db8::4", "p", now=22.0) == 8.0
    assert table.refused_for_s("2001:db8::4", "q", now=22.0) == 0.0
    assert table.refused_for_s("2001:db8:0:1::4", "p", now=22.0) == 0.0
    assert table.refused_for_s("2001:db8::4", "p", now=30.0) == 0.0


def test_names_of_policies_do_not_hide_a_guess() -> None:
    """Whoever makes names up shares one count from some number on, and cannot push a counted one out."""
    table = FailedAttempts()
    for number in range(100):
        table.note("a", f"made up {number}", now=0.0)
    assert table.note("a", "another", now=0.0) == attempts.DELAY_S_MAX
    assert len(table) == POLICIES_MAX


def test_names_that_failed_long_ago_leave_others_their_own_count() -> None:
    """However many names were tried at an address, a while later a policy is refused only for its own."""
    table = FailedAttempts()
    for number in range(POLICIES_MAX):
        table.note("a", f"made up {number}", now=0.0)
    later = WINDOW_S + 1.0
    for _ in range(FREE_FAILURES + 7 + WAITING_MAX):
        table.note("a", "old key", now=later)
    assert table.refused_for_s("a", "old key", now=later) > 0.0
    assert table.refused_for_s("a", "right key", now=later) == 0.0
