"""Answers that many ask for: worked out once, and not without bound."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from tests.support.clocks import SetClock

from tidegate.console.frame import shared_answers
from tidegate.console.frame.shared_answers import SharedAnswers
from tidegate.model.errors import ServerBusyError
from tidegate.transport.clock import SystemClock
from tidegate.transport.tasks import TaskOwner


async def test_only_so_many_are_worked_out_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for what is under way shares it; one question more is refused before it is begun."""
    monkeypatch.setattr(shared_answers, "_ANSWERS_MAX", 2)
    answers: SharedAnswers[int, int] = SharedAnswers(SystemClock(), kept_s=60)
    let_go = asyncio.Event()
    begun: list[int] = []

    async def work(number: int) -> int:
        begun.append(number)
        await let_go.wait()
        return number

    for number in (1, 2):
        assert await answers.ask(number, lambda number=number: work(number), at_most_s=0) is None  # type: ignore[misc]
    assert await answers.ask(1, lambda: work(1), at_most_s=0) is None
    with pytest.raises(ServerBusyError, match="2 questions"):
        await answers.ask(3, lambda: work(3), at_most_s=0)
    let_go.set()
    async with asyncio.timeout(30):
        assert await answers.ask(2, lambda: work(2), at_most_s=None) == 2
        assert await answers.ask(3, lambda: work(3), at_most_s=None) == 3
    assert begun == [1, 2, 3]
    await answers.close()


async def test_what_lacks_a_part_is_not_kept() -> None:
    """A database that was away for ten seconds would be missed for a hundred."""
    answers: SharedAnswers[str, int] = SharedAnswers(
        SystemClock(), kept_s=60, is_whole=lambda found: found > 1
    )
    numbers = iter(range(9))

    async def work() -> int:
        return next(numbers)

    assert [await answers.ask("all", work, at_most_s=None) for _ in range(4)] == [0, 1, 2, 2]
    await answers.close()


async def test_what_only_those_who_wait_need_ends_with_the_last_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Live pages that are opened and left while a database hangs keep those of others waiting for nothing."""
    monkeypatch.setattr(shared_answers, "_ANSWERS_MAX", 2)
    answers: SharedAnswers[int, int] = SharedAnswers(SystemClock(), kept_s=60, is_for_waiting=True)
    let_go = asyncio.Event()
    under_way: set[int] = set()

    async def work(number: int) -> int:
        under_way.add(number)
        try:
            await let_go.wait()
        finally:
            under_way.remove(number)
        return number

    def ask(number: int) -> asyncio.Task[int | None]:
        return tasks.start(answers.ask(number, lambda: work(number), at_most_s=None), name="viewer")

    async with TaskOwner("viewers") as tasks, asyncio.timeout(30):
        leaving = [ask(number) for number in (1, 2, 3, 3)]
        staying = ask(3)
        await _all_has_begun()
        assert under_way == {1, 2, 3}
        for viewer in leaving:
            viewer.cancel()
        await _all_has_begun()
        assert under_way == {3}
        again = ask(1)
        let_go.set()
        assert (await staying, await again) == (3, 1)
    await answers.close()


@pytest.mark.slow
async def test_what_is_out_of_date_is_dropped_before_it_is_asked_for_again() -> None:
    """Protects memory: live pages that are closed again leave no text; what may still be used stays."""
    clock, kept_s = SetClock(), 1 / 64
    answers: SharedAnswers[str, _Text] = SharedAnswers(clock, kept_s=kept_s, is_work_counted=False)

    async def ask(name: str) -> weakref.ref[_Text]:
        async def draw() -> _Text:
            return _Text(name)

        found = await answers.ask(name, draw, at_most_s=None)
        assert found is not None
        return weakref.ref(found)

    async with asyncio.timeout(30):
        first = await ask("first")
        clock.advance(kept_s)
        second = await ask("second")
        while first() is not None:
            await asyncio.sleep(kept_s)
            gc.collect()
        assert second() is not None
        clock.advance(kept_s)
        while second() is not None:
            await asyncio.sleep(kept_s)
            gc.collect()
    await answers.close()


async def _all_has_begun() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class _Text(str):
    """Can be watched."""
