"""Bodies of HTTP requests, and what is made of them, as memory that is held for peers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from tidegate.model.errors import ServerBusyError
from tidegate.transport.memory import MemoryBudget

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
"""ASGI's."""


class CountedBody:
    """``receive`` of a request, with the bytes of its body counted. Create it with ``counted``."""

    def __init__(self, receive: Receive, budget: MemoryBudget, address: Hashable) -> None:
        self._receive = receive
        self._budget = budget
        self._held = 0
        self._is_ended = False
        self._waiting: asyncio.Timeout | None = None
        self.account = budget.open_account(lambda: self._held, address=address, end=self._end)

    async def __call__(self) -> MutableMapping[str, Any]:
        """The next message. Raises ServerBusyError if memory is exhausted and this request holds most."""
        self._require_kept()
        try:
            async with asyncio.timeout(None) as self._waiting:
                message = await self._receive()
        except TimeoutError:
            self._require_kept()
            raise
        finally:
            self._waiting = None
        self.add(len(message.get("body", b"")))
        return message

    def add(self, size: int) -> None:
        """Count bytes that are made of the body. Raises as above."""
        self._require_kept()
        self._held += size
        self.account.update()

    def _end(self) -> None:
        self._is_ended = True
        if self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())

    def _require_kept(self) -> None:
        if self._is_ended:
            self._budget.require_room()
            raise ServerBusyError(
                "The request was given up to free memory.", next_step="Send it again later."
            )


@contextmanager
def counted(receive: Receive, budget: MemoryBudget, *, address: Hashable) -> Iterator[CountedBody]:
    """``receive`` of a request, whose body counts until the block ends. address: as of
    ``MemoryBudget.open_account``."""
    body = CountedBody(receive, budget, address)
    try:
        yield body
    finally:
        body.account.close()
