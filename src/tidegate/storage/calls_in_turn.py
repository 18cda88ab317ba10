"""Calls on the event loop that one event causes for many: some in each pass, and hubs in turn."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

Call = Callable[[], None]

_CALLS_AT_ONCE: Final = 100
"""In a pass of the event loop. Our choice: a millisecond, as a call takes 3 to 15 microseconds."""

_CALLS_IN_TURN: Final = 20
"""Of one hub, while calls of others wait."""


class CallsInTurn:
    """Makes the calls that are added, from the next pass of the event loop on."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[str, OrderedDict[Call, None]] = {}
        """The calls of each hub, oldest first; the first hub is next."""
        self._is_due = False

    def add(self, hub_id: str, calls: Iterable[Call]) -> None:
        """Add calls, which must not raise. One that still waits is not added again."""
        self._waiting.setdefault(hub_id, OrderedDict()).update(dict.fromkeys(calls))
        self._continue()

    def _continue(self) -> None:
        if self._waiting and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._work)

    def _work(self) -> None:
        due: list[Call] = []
        while self._waiting and len(due) < _CALLS_AT_ONCE:
            hub_id = next(iter(self._waiting))
            waiting = self._waiting.pop(hub_id)
            due += [waiting.popitem(last=False)[0] for _ in range(min(_CALLS_IN_TURN, len(waiting)))]
            if waiting:
                self._waiting[hub_id] = waiting  # the last one now
        self._is_due = False
        self._continue()
        for call in due:
            call()
