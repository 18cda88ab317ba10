"""Task owners: nothing runs on unseen, the first failure is told."""

from __future__ import annotations

import asyncio

import pytest

from tidegate.transport.tasks import TaskOwner


async def test_close_cancels_and_waits() -> None:
    """Protects shutdown: after close no task of the owner runs, whatever its clean-up takes."""
    ended: list[str] = []
    started = asyncio.Event()

    async def work() -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("work")

    async with TaskOwner("test") as owner:
        owner.start(work(), name="work")
        await started.wait()
        assert owner.task_count == 1
    assert ended == ["work"]
    assert owner.task_count == 0
    assert owner.first_failure is None
    with pytest.raises(RuntimeError, match="closed"):
        owner.start(asyncio.sleep(0), name="late")


async def test_the_first_failure_is_told_once() -> None:
    """Protects against tasks that die in silence."""
    told: list[Exception] = []
    owner = TaskOwner("test", on_failure=told.append)

    async def fail(text: str) -> None:
        raise ValueError(text)

    first = owner.start(fail("first"), name="first")
    second = owner.start(fail("second"), name="second")
    await asyncio.wait([first, second])
    await owner.close()
    assert [str(error) for error in told] == ["first"]
    assert owner.first_failure is told[0]


async def test_a_task_may_close_its_own_owner() -> None:
    """Protects against a task that waits for its own end."""
    owner = TaskOwner("test")
    await asyncio.wait_for(owner.start(owner.close(), name="closer"), 30)
    assert owner.first_failure is None
