"""The time that retention goes by: a clock that is wrong for a moment removes nothing."""

from __future__ import annotations

import logging
from array import array
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.clocks import SetClock

from tidegate.broker.retention_clock import CONFIRM_S, JUMP_MS, RetentionClock
from tidegate.server.opening import open_broker

_DAY_S = 86_400.0


class _JumpingClock(SetClock):
    """The wall clock may be set wrong; the monotonic one is not affected."""

    ahead_s = 0.0

    def now_utc(self) -> datetime:
        return self.now + timedelta(seconds=self.ahead_s)


@given(st.lists(st.tuples(st.floats(1.0, 300.0), st.floats(-1e7, 1e7) | st.just(0.0)), max_size=60))
@pytest.mark.slow
def test_time_is_never_ahead_of_a_clock_that_was_ahead_for_a_moment(
    looks: list[tuple[float, float]],
) -> None:
    """Never after the wall clock; never further ahead of the true time than the least by which the wall clock
    was ahead at every look of the last ``CONFIRM_S`` seconds."""
    clock = RetentionClock(0, 0.0)
    now_s = 0.0
    history: list[tuple[float, float]] = [(0.0, 0.0)]
    for wait_s, ahead_s in looks:
        now_s += wait_s
        history.append((now_s, ahead_s))
        wall_ms = int((now_s + ahead_s) * 1000)
        time_ms = clock.time_ms(wall_ms, now_s)
        assert time_ms <= wall_ms
        true_ms = int(now_s * 1000)
        first = max(at_s for at_s, _ in history if at_s <= now_s - CONFIRM_S) if now_s >= CONFIRM_S else 0.0
        recent = [ahead for at_s, ahead in history if at_s >= first]
        slack_ms = (len(looks) + 1) * (JUMP_MS + 1)  # small steps are believed, each of them
        if min(recent) <= 0:
            assert time_ms <= true_ms + slack_ms


def test_a_jump_that_stands_is_believed() -> None:
    """After a suspension, or a clock that began in 1970, retention goes on by itself."""
    clock = RetentionClock(0, 0.0)
    day_ms = int(_DAY_S * 1000)
    assert clock.time_ms(day_ms, 60.0) == 60_000
    assert clock.time_ms(day_ms + 60_000, 120.0) == 120_000
    at_s = 60.0 + CONFIRM_S
    # By as much as it was ahead at every look: 60 s less than a day at the first.
    assert clock.time_ms(day_ms + int(at_s * 1000), at_s) == day_ms - 60_000 + int(at_s * 1000)
    assert clock.time_ms(day_ms + int(at_s * 1000) + 1000, at_s + 1) == day_ms + int(at_s * 1000) + 1000


def test_a_clock_that_goes_back_is_believed_at_once() -> None:
    """It only keeps events for longer."""
    clock = RetentionClock(1_000_000, 0.0)
    assert clock.time_ms(0, 1.0) == 0
    assert clock.time_ms(1000, 2.0) == 1000


async def test_a_clock_that_is_ahead_at_one_look_removes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """D9: everything was removed. Also when the service starts while it is wrong; both are logged."""
    clock = _JumpingClock()
    broker = await open_broker(tmp_path, clock=clock)
    hub = await broker.create_event_hub("hub", partition_count=1, retention_hours=24)
    await hub.partitions[0].append(b"event", array("I", (5,)))
    assert await broker.apply_retention() == 0
    clock.ahead_s = 8 * _DAY_S
    clock.advance(60)
    assert await broker.apply_retention() == 0
    assert "ahead of what was expected" in caplog.text
    await broker.close()
    caplog.clear()
    caplog.set_level(logging.INFO, "tidegate.broker.retention_clock")
    broker = await open_broker(tmp_path, clock=clock)
    partition = broker.event_hub("hub").partitions[0]
    clock.advance(60)
    assert await broker.apply_retention() == 0
    # A service that was stopped for long, or idle, looks the same: no reason for a warning.
    (said,) = (each for each in caplog.records if "ahead of the newest event" in each.getMessage())
    assert said.levelno == logging.INFO
    clock.ahead_s = 0.0
    clock.advance(60)
    assert await broker.apply_retention() == 0
    assert partition.next_sequence_number - partition.begin_sequence_number == 1
    for _ in range(25):
        clock.advance(hours=1)
        await broker.apply_retention()
    assert partition.next_sequence_number - partition.begin_sequence_number == 0
    await broker.close()
