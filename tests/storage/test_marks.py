"""When partitions note how far they went: soon, and without making the appends of others wait for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from tidegate.storage import group_commit
from tidegate.storage.group_commit import GroupCommit
from tidegate.storage.partition_writer import PartitionWriter

_AFTER_S = 0.5
_COUNT = 100


class _Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class _Writer:
    def __init__(self, save: Callable[[], None] | None = None) -> None:
        self.marks = 0
        self.needs_save = save is not None
        self.save_manifest = save

    def save_mark(self) -> None:
        self.marks += 1


async def test_marks_of_many_partitions_do_not_come_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two rounds there are a few. Once they would be late, there are all of them."""
    time = _Time()
    monkeypatch.setattr(group_commit, "time", time)
    commit = GroupCommit(
        asyncio.get_running_loop(),
        lambda delivery: None,
        journal=None,
        mark_after_s=_AFTER_S,
        idle_save_s=1000.0,
    )
    writers = [_Writer() for _ in range(_COUNT)]

    def marked_in_a_pause() -> int:
        before = sum(writer.marks for writer in writers)
        assert commit._save_due()
        return sum(writer.marks for writer in writers) - before

    for writer in writers:
        commit._note_written(cast(PartitionWriter, writer))
    time.now += _AFTER_S - 0.1
    assert marked_in_a_pause() == 0
    time.now += 0.1
    assert 0 < marked_in_a_pause() < 10
    assert 0 < marked_in_a_pause() < 10
    time.now += _AFTER_S / 2
    assert marked_in_a_pause() > 80
    assert {writer.marks for writer in writers} == {1}


@pytest.mark.parametrize(("save_s", "expected"), [(0.0002, 250), (0.05, 10)])
async def test_saves_for_idle_partitions_leave_the_time_to_rounds(
    monkeypatch: pytest.MonkeyPatch, save_s: float, expected: int
) -> None:
    """In 5 s: 50 a second on a disk that syncs at once, and a tenth of the time on a slow one."""
    time = _Time()
    monkeypatch.setattr(group_commit, "time", time)
    commit = GroupCommit(
        asyncio.get_running_loop(), lambda delivery: None, journal=None, mark_after_s=1000.0, idle_save_s=1.0
    )
    saves = 0

    def save() -> None:
        nonlocal saves
        saves += 1
        time.now += save_s

    for _ in range(1000):
        commit._note_written(cast(PartitionWriter, _Writer(save)))
    time.now += 1.0
    until = time.now + 5.0
    while time.now < until:
        assert commit._save_due()
        time.now += 0.001
    assert 0.8 * expected < saves <= expected
