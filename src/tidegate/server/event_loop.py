"""Which event loop the service runs on."""

from __future__ import annotations

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new loop: uvloop where it is installed (not on Windows), else asyncio's own.

    For ``asyncio.Runner(loop_factory=new_event_loop)``.
    """
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
