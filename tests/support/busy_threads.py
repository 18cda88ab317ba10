"""The threads of the console's pages, all busy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn


class _BusyThreads(ThreadPoolExecutor):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> NoReturn:
        raise AssertionError(f"{fn} waits for a thread of the pages")


@contextmanager
def busy_threads() -> Iterator[None]:
    """Whatever would wait for the loop's default executor fails within the block."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(_BusyThreads())
    try:
        yield
    finally:
        loop.set_default_executor(ThreadPoolExecutor())
