"""Coroutines that are run to their first wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from tidegate.transport.at_once import at_once


async def test_a_result_that_is_there_needs_no_task() -> None:
    """Returned as it is; an error is raised at once."""

    async def answer(error: Exception | None = None) -> int:
        if error is not None:
            raise error
        return 7

    assert at_once(answer()) == 7
    with pytest.raises(ValueError, match="no"):
        at_once(answer(ValueError("no")))


async def test_the_rest_is_done_by_who_awaits_it() -> None:
    """Through several waits, a sleep without a time among them; errors and results arrive."""
    gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def slow() -> int:
        first = await gate
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        if first < 0:
            raise ValueError("no")
        return first + 1

    rest = at_once(slow())
    assert isinstance(rest, Awaitable)
    gate.set_result(1)
    assert await rest == 2
    gate = asyncio.get_running_loop().create_future()
    rest = at_once(slow())
    assert isinstance(rest, Awaitable)
    asyncio.get_running_loop().call_later(0.001, gate.set_result, -1)
    with pytest.raises(ValueError, match="no"):
        await rest


async def test_a_cancelled_task_cancels_the_rest() -> None:
    """What it waits for gets the cancellation, and it may clean up."""
    ended: list[str] = []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")

    rest = at_once(hang())
    assert rest is not None

    async def wait() -> None:
        await rest

    task = asyncio.create_task(wait())  # noqa: TID251 - a test's own
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["cleaned up"]
