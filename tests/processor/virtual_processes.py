"""Processes on one virtual clock: each an event loop of its own that can be paused, resumed and killed.

Nothing waits in real time, and with one seed everything happens in the same order.
"""

from __future__ import annotations

import asyncio
import math
import random
import selectors
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class World:
    """The clock that all processes share (a ``Clock``), and who lets them run in turn."""

    def __init__(self, seed: int) -> None:
        print(f"seed {seed}")
        self.random = random.Random(seed)
        self.now = 0.0
        self.wall_ahead_s = 0.0
        """How far the wall clock is ahead of the true time."""
        self._processes: list[Process] = []

    def now_utc(self) -> datetime:
        return datetime(2026, 11, 20, 12, tzinfo=UTC) + timedelta(seconds=self.now + self.wall_ahead_s)

    def monotonic(self) -> float:
        return self.now

    def make_process(self) -> Process:
        process = Process(self)
        self._processes.append(process)
        return process

    def run_for(self, seconds: float) -> None:
        """Let all processes run for so long."""
        until = self.now + seconds
        while True:
            idle_s = self._run_ready()
            if self.now + idle_s >= until:
                self.now = until
                return
            self.now += idle_s

    def wait_until(self, condition: Callable[[], bool], *, timeout_s: float) -> float:
        """Let all processes run until ``condition`` holds; returns after how many seconds that was."""
        start = self.now
        while True:
            idle_s = self._run_ready()
            if condition():
                return self.now - start
            assert self.now + idle_s - start <= timeout_s, f"not within {timeout_s} s"
            self.now += idle_s

    def result(self, process: Process, coroutine: Coroutine[Any, Any, T], *, timeout_s: float = 300.0) -> T:
        """What a coroutine in ``process`` returns, while all run."""
        task = process.start(coroutine)
        self.wait_until(task.done, timeout_s=timeout_s)
        return task.result()

    def _run_ready(self) -> float:
        """Let each process run until it waits; returns how long until the first wants to go on."""
        running = [process for process in self._processes if process.is_running]
        self.random.shuffle(running)
        return min((process.run_ready() for process in running), default=math.inf)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.close()


class Process:
    """One event loop. Paused or killed, nothing in it runs, just as with SIGSTOP and SIGKILL."""

    def __init__(self, world: World) -> None:
        self._is_paused = False
        self._is_killed = False
        self._selector = _IdleSelector()
        self._loop = _VirtualLoop(world, self._selector)
        self._selector.on_idle = self._loop.stop

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self._loop.create_task(coroutine)

    @property
    def is_running(self) -> bool:
        return not self._is_paused and not self._is_killed

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        """One that was killed stays dead."""
        self._is_paused = False

    def kill(self) -> None:
        self._is_killed = True

    def run_ready(self) -> float:
        """Run until nothing is ready; returns after how many seconds there will be."""
        self._loop.run_forever()
        return self._selector.idle_s

    def close(self) -> None:
        while tasks := asyncio.all_tasks(self._loop):
            for task in tasks:
                task.cancel()
            self.run_ready()
        self._loop.close()


class _IdleSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type, unused-ignore]
    """Instead of waiting it notes how long it should have waited, and stops the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.idle_s = 0.0
        self.on_idle: Callable[[], None]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self.idle_s = math.inf if timeout is None else timeout
            self.on_idle()
        found: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        return found


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, world: World, selector: _IdleSelector) -> None:
        self._world = world
        super().__init__(selector)

    def time(self) -> float:
        return self._world.now
