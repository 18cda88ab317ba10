"""How hubs share the console's places."""

from __future__ import annotations

import asyncio

from tidegate.console.frame.shares import SharedPlaces
from tidegate.transport.tasks import TaskOwner


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class _Work:
    """Work that has its place until it is ended."""

    def __init__(self, places: SharedPlaces, *hubs: str) -> None:
        self.begun: list[str] = []
        self._ends = {name: asyncio.Event() for name in hubs}
        owner = TaskOwner("work")
        self.tasks = {name: owner.start(self._do(places, name), name=name) for name in hubs}

    async def _do(self, places: SharedPlaces, name: str) -> None:
        async with places.of(name.rstrip("123")):
            self.begun.append(name)
            await self._ends[name].wait()

    async def end(self, name: str) -> None:
        """Let that work end, and the next begin."""
        self._ends[name].set()
        await self.tasks[name]
        await _settle()


async def test_hubs_take_turns() -> None:
    """However much one hub asks for, it leaves as many places as it has, and the next turn is another's."""
    work = _Work(SharedPlaces(2), "a1", "A2", "a3", "b1", "b2", "c1")
    await _settle()
    assert work.begun == ["a1", "b1"]
    for name in ("a1", "b1", "A2", "b2"):
        await work.end(name)
    assert work.begun == ["a1", "b1", "A2", "b2", "c1", "a3"]
    for name in ("c1", "a3"):
        await work.end(name)


async def test_work_that_is_cancelled_gives_its_place_back() -> None:
    """While it waits, when it has just been given a place, and within."""
    places = SharedPlaces(2)
    async with places.of("a"):
        work = _Work(places, "a1", "a2", "b1")
        await _settle()
        work.tasks["a1"].cancel()
        await _settle()
    work.tasks["a2"].cancel()  # it has just been given the place
    await _settle()
    assert work.begun == ["b1"]
    work.tasks["b1"].cancel()
    await _settle()
    again = _Work(places, "a1", "b1")
    await _settle()
    assert again.begun == ["a1", "b1"]
    for name in ("a1", "b1"):
        await again.end(name)
