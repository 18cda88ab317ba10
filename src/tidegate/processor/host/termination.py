"""SIGTERM ends the block in which hosts run, as Ctrl-C does, so that they are unregistered in order."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

_Blocks = dict["asyncio.Task[object]", "_Block"]
_blocks: WeakKeyDictionary[asyncio.AbstractEventLoop, _Blocks] = WeakKeyDictionary()
"""The open blocks of each event loop, by the task that is in them."""


class _Block:
    """An open block."""

    def __init__(self, task: asyncio.Task[object]) -> None:
        self.is_ended = False
        self._task = task

    def end(self) -> None:
        """Cancel its task, once: a second cancellation would interrupt the orderly end."""
        if not self.is_ended:
            self.is_ended = True
            self._task.cancel()


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """A block that SIGTERM ends: its task is cancelled, and continues after the block.

    Several tasks may have one; all end. Within another one of the same task it does nothing, nor on other
    threads than the main one, nor if the program handles SIGTERM itself.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    blocks = _blocks.setdefault(loop, {})
    is_first = not blocks
    if task in blocks or (is_first and not _install(loop)):
        yield
        return
    block = blocks[task] = _Block(task)
    try:
        yield
    except asyncio.CancelledError:
        if not block.is_ended or task.uncancel() > 0:
            raise  # the program has cancelled it as well
    else:
        if block.is_ended:
            task.uncancel()
    finally:
        del blocks[task]
        if not blocks:
            loop.remove_signal_handler(signal.SIGTERM)


def _install(loop: asyncio.AbstractEventLoop) -> bool:
    """Handle SIGTERM on this loop; False if that is not possible, or the program does so itself."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return False
    try:
        loop.add_signal_handler(signal.SIGTERM, _end_all, loop)
    except NotImplementedError:  # a loop without signals
        return False
    return True


def _end_all(loop: asyncio.AbstractEventLoop) -> None:
    for block in list(_blocks.get(loop, {}).values()):
        block.end()
