"""Turns: hubs share the one thread that encodes, so that none keeps the others from being captured.

A turn ends when its work is done or, once another hub waits, after some milliseconds. The next is of the hub
that has used least time so far; a hub that comes back after a pause starts where the others are (start-time
fair queueing, as in ``transport.turns``).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from tidegate.transport.threads import Threads

T = TypeVar("T")


class EncodingTurns:
    """Schedules the shares of one thread."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._threads = Threads(1, name="tidegate-capture encoding")
        self._waiting: dict[EncodingShare, deque[asyncio.Future[None]]] = {}
        self._is_busy = False
        self._start_s = 0.0
        """What the share of the latest turn had used before; new shares start here."""

    async def run(self, share: EncodingShare, call: Callable[[Callable[[], bool]], T]) -> T:
        """See ``EncodingShare.run``."""
        took_s = 0.0
        is_cancelled = False

        def is_wanted() -> bool:
            return is_cancelled or len(self._waiting) > (share in self._waiting)

        def work() -> T:
            nonlocal took_s
            begun_s = self._monotonic()
            try:
                return call(is_wanted)
            finally:
                took_s = self._monotonic() - begun_s

        def end() -> None:
            share.used_s += took_s
            self._pass_on()

        await self._wait(share)
        try:
            return await self._threads.run(work, when_ended=end)
        except asyncio.CancelledError:
            is_cancelled = True
            raise

    async def _wait(self, share: EncodingShare) -> None:
        share.used_s = max(share.used_s, self._start_s)
        if not self._is_busy:
            self._is_busy, self._start_s = True, share.used_s
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(share, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Give the next turn to the share that has used least."""
        while self._waiting:
            share = min(self._waiting, key=lambda share: share.used_s)
            turns = self._waiting[share]
            turn = turns.popleft()
            if not turns:
                del self._waiting[share]
            if not turn.done():
                self._start_s = share.used_s
                turn.set_result(None)
                return
        self._is_busy = False

    def __repr__(self) -> str:
        return f"<EncodingTurns waiting={len(self._waiting)}>"


class EncodingShare:
    """One hub's share of the encoding thread."""

    def __init__(self, turns: EncodingTurns) -> None:
        self._turns = turns
        self.used_s = 0.0
        """Grows with the time of its turns."""

    async def run(self, call: Callable[[Callable[[], bool]], T]) -> T:
        """Run ``call`` in the thread when it is this hub's turn.

        call: gets a function; once that returns true, it must return soon, and do the rest in another turn.
        Cancellation: the call may continue for a moment.
        """
        return await self._turns.run(self, call)
