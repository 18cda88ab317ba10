"""Long work leaves the event loop to others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tidegate.transport.sliced_work import SlicedWork, Visits
from tidegate.transport.tasks import TaskOwner
from tidegate.transport.turns import Turns


class _SteppingClock:
    """Passes a little more than a slice each time that somebody looks."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        """Seconds."""
        self.now_s += 0.00101
        return self.now_s


def _sliced_work() -> SlicedWork:
    """Work in which each item takes a slice."""
    call_soon = asyncio.get_running_loop().call_soon
    return SlicedWork(Turns(monotonic=_SteppingClock().monotonic, call_soon=call_soon))


async def test_others_have_their_turns() -> None:
    """Between slices the loop runs, and other addresses' work has a slice each in turn."""
    work, order, turns = _sliced_work(), list[str](), 0

    def items(name: str) -> Iterator[int | None]:
        for number in range(50):
            order.append(name)
            yield None if number % 2 else number

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    tasks = TaskOwner("test")
    tasks.start(count(), name="count")
    first, second = await asyncio.gather(
        work.collect(items("a"), address=1), work.collect(items("b"), address=2)
    )
    await tasks.close()
    assert first == second == list(range(0, 50, 2))
    assert all(abs(order[:end].count("a") - order[:end].count("b")) <= 2 for end in range(len(order)))
    assert turns >= 100


async def test_visits_take_turns_with_the_loop_and_leave_nobody_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many are visited some at a time, and again after another start; those that wait come first."""
    monkeypatch.setattr("tidegate.transport.sliced_work._VISITED_AT_ONCE", 2)
    visited: list[int] = []
    visits = Visits(lambda: range(5), visited.append)
    visits.start()
    assert visited == [3, 4]
    visits.start()  # once more, also for those that were visited
    assert visited == [3, 4]
    for _ in range(6):
        await asyncio.sleep(0)
    assert visited == [3, 4, 1, 2, 0, 3, 4, 1, 2, 0]


async def test_an_address_with_much_work_waits_for_another() -> None:
    """Twenty pieces of work of one address have together as much as the only one of another."""
    work, done = _sliced_work(), dict[str, int]()
    pieces = {f"many-{number}": 1 for number in range(20)} | {"one": 2}
    steps = 0

    async def collect(name: str) -> None:
        def items() -> Iterator[int]:
            nonlocal steps
            for number in range(50):
                steps += 1
                yield number

        await work.collect(items(), address=pieces[name])
        done[name] = steps

    await asyncio.gather(*map(collect, pieces))
    assert done["one"] <= 50 + 50 + 21
    assert min(done[name] for name in pieces if name != "one") > 500


async def test_a_failure_frees_the_way() -> None:
    """What raises in the middle is told to who asked, and others go on."""
    work = _sliced_work()

    def failing() -> Iterator[int]:
        yield 1
        raise ValueError("garbled")

    with pytest.raises(ValueError, match="garbled"):
        await work.collect(failing())
    assert await work.collect(iter([1, 2])) == [1, 2]


async def test_cancelled_work_is_not_continued() -> None:
    """Who gives up leaves nothing behind that takes turns."""
    work, steps = _sliced_work(), list[int]()

    def items() -> Iterator[int]:
        for number in range(1000):
            steps.append(number)
            yield number

    async with TaskOwner("test") as tasks:
        task = tasks.start(work.collect(items()), name="given up")
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        before = len(steps)
        assert await work.collect(iter([1, 2, 3])) == [1, 2, 3]
        assert len(steps) == before


@pytest.mark.parametrize("has_failed", [False, True])
async def test_work_that_would_end_when_it_is_cancelled(has_failed: bool) -> None:
    """Its last step is due before the task that asked sees the cancellation: it is not done."""
    work, steps, errors = _sliced_work(), list[int](), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))

    def items() -> Iterator[int]:
        yield 1
        steps.append(2)
        if has_failed:
            raise ValueError("garbled")

    async with TaskOwner("test") as tasks:
        task = tasks.start(work.collect(items()), name="given up")
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()
    assert not steps
    assert not errors


async def test_one_holds_a_large_result_at_a_time() -> None:
    """Of those with one key; others do not wait for them, and one that gives up leaves no trace."""
    work, begun = _sliced_work(), list[str]()

    async def collect(name: str, key: str) -> None:
        async with work.alone(key):
            begun.append(name)
            await work.collect(iter(range(20)))

    async with TaskOwner("test") as tasks:
        first = tasks.start(collect("first", "a"), name="first")
        second = tasks.start(collect("second", "a"), name="second")
        other = tasks.start(collect("other", "b"), name="other")
        await asyncio.sleep(0)
        second.cancel()
        assert begun == ["first", "other"]
        await asyncio.wait([first, second, other])
    await collect("third", "a")
    assert begun == ["first", "other", "third"]


async def test_short_work_does_not_wait_for_long_work() -> None:
    """Somebody who signs in does not wait until another's form of megabytes is read."""
    work = _sliced_work()
    async with TaskOwner("test") as tasks:
        long = tasks.start(work.collect(iter(range(1000))), name="long")
        await asyncio.sleep(0)
        assert await work.collect(iter([1])) == [1]
        assert not long.done()
        assert await long == list(range(1000))
