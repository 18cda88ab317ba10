"""Numbers that lie near to each other are read together."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import warnings
from functools import partial
from types import FrameType

import pytest

from tidegate.client.blocking.background import run_blocking
from tidegate.client.blocking.consumer import group_neighbours
from tidegate.model.errors import OperationTimeoutError


def test_neighbours_are_grouped() -> None:
    """Distinct, ascending, and a gap larger than the bound starts a new group."""
    assert group_neighbours([9, 1, 2, 2, 5, 20], gap_max=4) == [[1, 2, 5, 9], [20]]
    assert group_neighbours([], gap_max=4) == []


def test_a_coroutine_runs_on_the_background_loop() -> None:
    """Results and errors come back, and a time-out cancels what runs."""
    cancelled: list[int] = []

    async def answer() -> int:
        return os.getpid()

    async def fail() -> None:
        raise KeyError("mine")

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    assert run_blocking(answer) == os.getpid()
    with pytest.raises(KeyError, match="mine"):
        run_blocking(fail)
    with pytest.raises(OperationTimeoutError):
        run_blocking(hang, timeout_s=0.01)
    run_blocking(partial(asyncio.sleep, 0))
    assert cancelled == [1]


@pytest.mark.slow
def test_ctrl_c_at_any_moment_leaves_no_coroutine_that_never_ran() -> None:
    """Python would warn of it on standard error, behind the output of a program that ended in order."""

    async def answer() -> int:
        return 1

    def interrupt(number: int, frame: FrameType | None) -> None:
        # Only within the call: what surrounds it here must not end.
        while frame is not None:
            if frame.f_code is run_blocking.__code__:
                raise KeyboardInterrupt
            frame = frame.f_back

    before = signal.signal(signal.SIGUSR1, interrupt)
    is_over = threading.Event()

    def send() -> None:
        while not is_over.wait(0.0003):
            os.kill(os.getpid(), signal.SIGUSR1)

    sender = threading.Thread(target=send)
    try:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            sender.start()
            interrupts = 0
            while interrupts < 600:
                try:
                    run_blocking(answer)
                except KeyboardInterrupt:
                    interrupts += 1
            is_over.set()
            gc.collect()
    finally:
        is_over.set()
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    assert [str(each.message) for each in found] == []
