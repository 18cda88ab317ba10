"""Numbers that lie near to each other are read together."""

from __future__ import annotations

import asyncio
import os

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

    assert run_blocking(answer()) == os.getpid()
    with pytest.raises(KeyError, match="mine"):
        run_blocking(fail())
    with pytest.raises(OperationTimeoutError):
        run_blocking(hang(), timeout_s=0.01)
    run_blocking(asyncio.sleep(0))
    assert cancelled == [1]
