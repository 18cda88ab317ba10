"""Runs a command's coroutine, and stops it in order at SIGINT or SIGTERM.

The first signal cancels the coroutine, whose ``finally`` and ``async with`` blocks then run; a second one
ends the process at once, in case the orderly end hangs.
"""

from __future__ import annotations

import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

import click

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_interruptible(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run ``coroutine`` and return its result.

    A signal cancels it; if the cancellation propagates, the process exits with 128 + the signal's number. A
    coroutine that ordinarily ends by being interrupted (a tail, a service) catches the cancellation and
    returns.
    """
    # Imported here, so that the modules of commands can import this one and start fast.
    import asyncio

    from tidegate.server.event_loop import new_event_loop

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_guarded(coroutine))


async def _guarded(coroutine: Coroutine[Any, Any, T]) -> T:
    import asyncio

    from tidegate.files import IS_WINDOWS

    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    received: list[int] = []

    def stop(signal_number: int) -> None:
        received.append(signal_number)
        # A second signal meets the default handler again.
        loop.remove_signal_handler(signal_number)
        task.cancel()

    # On Windows, the loop handles no signals: Runner cancels at Ctrl-C, and SIGTERM is not sent.
    signals = () if IS_WINDOWS else _SIGNALS
    for signal_number in signals:
        loop.add_signal_handler(signal_number, stop, signal_number)
    try:
        return await coroutine
    except asyncio.CancelledError:
        if received:
            raise click.exceptions.Exit(128 + received[0]) from None
        raise
    finally:
        for signal_number in signals:
            loop.remove_signal_handler(signal_number)
