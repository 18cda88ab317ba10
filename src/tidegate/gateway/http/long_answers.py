"""Answers of many rows, sent in pieces: to join and encode 12 MB of names took 0.12 s in one step."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tidegate.transport.memory import MemoryBudget
from tidegate.transport.peers import site_at

PIECE_BYTES: Final = 64 * 1024
"""Sent in one step of the event loop, and a row more at most (our choice: less than a millisecond)."""


class LongAnswer(Response):
    """Rows that were made in slices. Those that are not sent yet count in the memory for clients, and the
    answer is cut off if that is exhausted and it holds most."""

    def __init__(
        self,
        rows: Sequence[bytes],
        budget: MemoryBudget,
        *,
        head: bytes = b"",
        between: bytes = b"",
        tail: bytes = b"",
        status_code: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str,
    ) -> None:
        """head, between, tail: what is before, between and behind the rows."""
        self._rows = deque(rows)
        self._head, self._between, self._tail = head, between, tail
        self._left_bytes = len(head) + sum(map(len, rows)) + len(between) * max(0, len(rows) - 1) + len(tail)
        self._budget = budget
        length = {"Content-Length": str(self._left_bytes)}
        super().__init__(None, status_code, {**(headers or {}), **length}, media_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it. ``send`` waits until a slow reader takes more."""
        task = asyncio.current_task()
        assert task is not None
        client = scope.get("client")
        account = self._budget.open_account(
            lambda: self._left_bytes,
            address=None if client is None else site_at(client[0]),
            end=partial(_cancel, task),
        )
        try:
            account.update()
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            for piece in self._pieces():
                self._left_bytes -= len(piece)
                account.update()
                await send({"type": "http.response.body", "body": piece, "more_body": self._left_bytes > 0})
                await asyncio.sleep(0)  # a reader that is fast enough never lets ``send`` wait
        finally:
            account.close()

    def _pieces(self) -> Iterator[bytes]:
        start = self._head
        while True:
            rows, size = list[bytes](), 0
            while self._rows and size < PIECE_BYTES:
                rows.append(self._rows.popleft())
                size += len(rows[-1])
            piece = start + self._between.join(rows)
            if not self._rows:
                yield piece + self._tail
                return
            yield piece
            start = self._between


def _cancel(task: asyncio.Task[object]) -> None:
    task.cancel()
