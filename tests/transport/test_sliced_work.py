"""Long work leaves the event loop to others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tidegate.transport import sliced_work
from tidegate.transport.sliced_work import SlicedWork
from tidegate.transport.tasks import TaskOwner


async def test_others_have_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between slices the loop runs, whoever works; two pieces of work have a slice each in turn."""
    monkeypatch.setattr(sliced_work, "SLICE_S", 0.0)
    work, order, turns = SlicedWork(), list[str](), 0

    def items(name: str) -> Iterator[int]:
        for number in range(50):
            order.append(name)
            yield number

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    tasks = TaskOwner("test")
    tasks.start(count(), name="count")
    first, second = await asyncio.gather(work.collect(items("a")), work.collect(items("b")))
    await tasks.close()
    assert first == second == list(range(50))
    assert order == ["a", "b"] * 50
    assert turns >= 100


async def test_addresses_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the one piece of work of a peer from the many of another."""
    monkeypatch.setattr(sliced_work, "SLICE_S", 0.0)
    work, order = SlicedWork(), list[str]()

    def items(name: str) -> Iterator[int]:
        for number in range(20):
            order.append(name)
            yield number

    many = [work.collect(items("many"), address=1) for _ in range(10)]
    await asyncio.gather(*many, work.collect(items("one"), address=2))
    assert order[:40].count("one") >= 19


async def test_a_failure_frees_the_way() -> None:
    """What raises in the middle is told to who asked, and others go on."""
    work = SlicedWork()

    def failing() -> Iterator[int]:
        yield 1
        raise ValueError("garbled")

    with pytest.raises(ValueError, match="garbled"):
        await work.collect(failing())
    assert await work.collect(iter([1, 2])) == [1, 2]


async def test_short_work_does_not_wait_for_long_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who signs in does not wait until another's form of megabytes is read."""
    monkeypatch.setattr(sliced_work, "SLICE_S", 0.0)
    work = SlicedWork()
    async with TaskOwner("test") as tasks:
        long = tasks.start(work.collect(iter(range(1000))), name="long")
        await asyncio.sleep(0)
        assert await work.collect(iter([1])) == [1]
        assert not long.done()
        assert await long == list(range(1000))
