"""How the service's event loop shares the interpreter with threads."""

from __future__ import annotations

import asyncio
import shutil
import sys
import threading
from pathlib import Path
from typing import NoReturn

import pytest
from tests.support.busy_threads import busy_threads

from tidegate.server import app
from tidegate.server.event_loop import share_interpreter
from tidegate.server.settings import ServerSettings
from tidegate.transport.memory import MemoryBudget


async def test_few_threads_compute_beside_the_loop() -> None:
    """Each that computes has the loop wait for its turn: sixteen pages of costly events made a quiet user's
    sends wait five times as long."""
    released, interval_s = threading.Event(), sys.getswitchinterval()

    def compute() -> int:
        released.wait()
        return threading.get_ident()

    try:
        share_interpreter()
        pages = asyncio.gather(*(asyncio.to_thread(compute) for _ in range(20)))
        await asyncio.sleep(0)
        released.set()
        assert len({*await pages}) <= 2
    finally:
        sys.setswitchinterval(interval_s)


class _DoneError(Exception):
    """What is expected was done."""


async def test_disk_and_memory_are_looked_after_beside_busy_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty forms of one hub, each of which computed for a second, made both wait behind them."""

    def done(*_: object) -> NoReturn:
        raise _DoneError

    monkeypatch.setattr(shutil, "disk_usage", done)
    monkeypatch.setattr(app, "give_back_freed_memory", done)
    monkeypatch.setattr(app, "MEMORY_LOOK_INTERVAL_S", 0)
    monkeypatch.setattr(app, "MEMORY_FALL_BYTES", 0)
    with busy_threads():
        with pytest.raises(_DoneError):
            await app.TidegateServer(ServerSettings(data_dir=tmp_path))._watch_disk()
        with pytest.raises(_DoneError):
            await app._give_memory_back(MemoryBudget(1))
