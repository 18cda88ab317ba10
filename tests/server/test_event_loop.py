"""How the service's event loop shares the interpreter with threads."""

from __future__ import annotations

import asyncio
import sys
import threading

from tidegate.server.event_loop import share_interpreter


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
