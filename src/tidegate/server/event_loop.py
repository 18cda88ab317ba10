"""Which event loop the service runs on, and how it shares the interpreter with threads."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Final

_SWITCH_INTERVAL_S: Final = 0.0005
"""How long a thread waits for the interpreter while another computes. Measured: an append is handed to the
writer's thread and back in some steps, each of which waited 5 ms (Python's own interval) while the loop was
busy; a quiet user's send p99 beside a flood of flows went from 476 to 58 ms."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new loop: uvloop where it is installed (not on Windows), else asyncio's own.

    For ``asyncio.Runner(loop_factory=new_event_loop)``.
    """
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


_THREADS: Final = 2
"""Threads that compute for pages of the console (``asyncio.to_thread``); others wait, and what is for no page
has its own (``Threads``). Python has up to 32, and the loop waits for each of them in turn."""


def share_interpreter() -> None:
    """Let the threads that write to disk have the interpreter soon although the event loop is busy, and few
    others compete for it. Called on the loop."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "tidegate-pages"))
