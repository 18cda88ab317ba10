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
    told: list[BaseException] = []
    owner = TaskOwner("test", on_failure=told.append)

    async def fail(text: str) -> None:
        raise ValueError(text)

    first = owner.start(fail("first"), name="first")
    second = owner.start(fail("second"), name="second")
    await asyncio.wait([first, second])
    await owner.close()
    assert [str(error) for error in told] == ["first"]
    assert owner.first_failure is told[0]


async def test_any_error_is_a_failure() -> None:
    """Also one that does not derive from Exception, as pyo3's PanicException; a cancellation is not."""
    told: list[BaseException] = []
    owner = TaskOwner("test", on_failure=told.append)

    class PanicError(BaseException):
        pass

    async def fail(error: BaseException) -> None:
        raise error

    tasks = [owner.start(fail(error), name="x") for error in (asyncio.CancelledError(), PanicError())]
    await asyncio.wait(tasks)
    assert [type(error) for error in told] == [PanicError]


def test_an_error_that_ends_the_program_is_not_reported() -> None:
    """Ctrl-C and sys.exit need no words about a task in which they happened to come."""
    told: list[BaseException] = []

    async def run(error: BaseException) -> None:
        async def fail() -> None:
            raise error

        async with TaskOwner("test", on_failure=told.append) as owner:
            await asyncio.wait([owner.start(fail(), name="x")])

    for error in (KeyboardInterrupt(), SystemExit(1)):
        with pytest.raises(type(error)):
            asyncio.run(run(error))
    assert told == []


async def test_a_task_may_close_its_own_owner() -> None:
    """Protects against a task that waits for its own end."""
    owner = TaskOwner("test")
    await asyncio.wait_for(owner.start(owner.close(), name="closer"), 30)
    assert owner.first_failure is None
