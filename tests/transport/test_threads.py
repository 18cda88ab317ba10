"""Blocking calls in threads: no more at a time than was said, whoever gives up waiting."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from tidegate.transport.tasks import TaskOwner
from tidegate.transport.threads import Threads

DEADLINE_S = 60


async def test_a_call_that_nobody_waits_for_keeps_its_turn() -> None:
    """What only one thread may touch is never touched by two: a second call waits for the first one's end,
    also where whoever asked for that has been cancelled, and it fails.
    """
    threads = Threads(1, name="test")
    is_begun, let_go = threading.Event(), threading.Event()
    at_work: list[str] = []

    def first() -> None:
        at_work.append("first")
        is_begun.set()
        assert let_go.wait(DEADLINE_S)
        at_work.append("first has ended")
        raise ValueError("Nobody hears of it.")

    async with asyncio.timeout(DEADLINE_S), TaskOwner("test") as tasks:
        given_up = tasks.start(threads.run(first), name="first")
        assert await asyncio.to_thread(is_begun.wait, DEADLINE_S)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        second = tasks.start(threads.run(lambda: at_work.append("second")), name="second")
        for _ in range(20):
            await asyncio.sleep(0)
        assert not second.done()
        let_go.set()
        await second
    assert at_work == ["first", "first has ended", "second"]


async def test_turns_come_back_from_whatever_ends_a_call() -> None:
    """A result, an error, a wait for a turn that is given up: the next call always has its turn."""
    threads = Threads(1, name="test")
    async with asyncio.timeout(DEADLINE_S), TaskOwner("test") as tasks:
        assert await threads.run(lambda: 1) == 1
        with pytest.raises(ValueError, match="invalid literal"):
            await threads.run(lambda: int("x"))
        with pytest.raises(ValueError, match="invalid literal"):
            await threads.run_whole(lambda: int("x"))
        let_go = threading.Event()
        holding = tasks.start(threads.run_whole(lambda: let_go.wait(DEADLINE_S)), name="holding")
        await asyncio.sleep(0)
        waiting = tasks.start(threads.run(lambda: 2), name="waiting")
        await asyncio.sleep(0)
        waiting.cancel()
        let_go.set()
        assert await holding
        assert await threads.run_whole(lambda: 3) == 3


@pytest.mark.parametrize("is_ended_first", [False, True])
async def test_what_a_cancelled_call_opened_is_released(is_ended_first: bool) -> None:
    """Protects against files that stay open: the task that wanted one ended while the thread opened it."""
    threads = Threads(1, name="test")
    is_begun, let_go, is_released = threading.Event(), threading.Event(), threading.Event()
    released: list[str] = []

    def open_file() -> str:
        is_begun.set()
        assert let_go.wait(DEADLINE_S)
        return "a file"

    def release(file: str) -> None:
        released.append(file)
        is_released.set()

    async with asyncio.timeout(DEADLINE_S), TaskOwner("test") as tasks:
        opening = tasks.start(threads.run(open_file, release=release), name="open")
        assert await asyncio.to_thread(is_begun.wait, DEADLINE_S)
        if is_ended_first:
            let_go.set()
            time.sleep(0.05)  # noqa: ASYNC251  # the loop has not heard of the end yet
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        let_go.set()
        assert await asyncio.to_thread(is_released.wait, DEADLINE_S)
    assert released == ["a file"]
