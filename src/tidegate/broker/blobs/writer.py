"""Writes changes of blobs to the control log: those that come during a write, together in the next one.

So a hundred processors that checkpoint at once cost two syncs, not two hundred, and a change of the catalog
waits for one write at most.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Final

from tidegate.model.errors import TidegateError, UnauthorizedError
from tidegate.storage.engine import ControlChange, ControlLog, copy_error

TOGETHER_MAX: Final = 256
TOGETHER_BYTES_MAX: Final = 1024 * 1024
"""Changes of one write and their bytes (our choice: a write of some milliseconds)."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    key: str
    value: bytes | None
    on_written: Callable[[], None]
    done: asyncio.Future[None]
    context: Context


class ChangeWriter:
    """The only writer of its keys. Changes are made in the order of the calls."""

    def __init__(self, control: ControlLog, versions: Mapping[str, int]) -> None:
        """versions: of the keys that have a value."""
        self._control = control
        self._versions = dict(versions)
        self.check_actor: Callable[[], None] = lambda: None
        """Raises UnauthorizedError if the current actor has lost its rights; see ``write``."""
        self._waiting: deque[_Waiting] = deque()
        self._unwanted: deque[str] = deque()
        self._writing: asyncio.Task[None] | None = None

    async def write(self, key: str, value: bytes | None, on_written: Callable[[], None]) -> None:
        """Set a value, or (None) remove the key; durable on return. on_written: called then, before others.

        A key may have one change at a time. Raises as ``ControlLog.change``; UnauthorizedError if the actor's
        rights ended while it waited. Cancellation: the change is waited for first.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(key, value, on_written, done, copy_context()))
        self._begin()
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError:
            if not done.done():
                await asyncio.wait([done])
            done.exception()  # read it, so that asyncio does not report it as unretrieved
            raise

    def remove_later(self, key: str) -> None:
        """Remove a value that is no longer used, when there is time."""
        self._unwanted.append(key)
        self._begin()

    async def close(self) -> None:
        """Wait for the changes that were called for. What is to be removed later stays for the next start."""
        self._unwanted.clear()
        if self._writing is not None:
            await asyncio.wait([self._writing])

    def _begin(self) -> None:
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_all(), name="checkpoints")

    async def _write_all(self) -> None:
        try:
            while self._waiting or self._unwanted:
                await self._write_some()
        finally:
            self._writing = None

    async def _write_some(self) -> None:
        batch: list[_Waiting] = []
        size = 0
        while self._waiting and len(batch) < TOGETHER_MAX and size < TOGETHER_BYTES_MAX:
            next_one = self._waiting.popleft()
            try:
                next_one.context.run(self.check_actor)
            except UnauthorizedError as error:
                next_one.done.set_exception(error)
                continue
            batch.append(next_one)
            size += len(next_one.value or b"")
        changes = [self._change(each.key, each.value) for each in batch]
        changes += self._removals({each.key for each in batch}, TOGETHER_MAX - len(batch))
        # Removing what is not there is no change.
        changes = [each for each in changes if each.value is not None or each.expected_version]
        try:
            version = await self._control.change_all(changes) if changes else 0
        except Exception as error:  # each caller gets it
            self._unwanted.clear()  # the next start removes them
            for each in batch:
                each.done.set_exception(copy_error(error) if isinstance(error, TidegateError) else error)
            return
        for change in changes:
            if change.value is None:
                del self._versions[change.key]
            else:
                self._versions[change.key] = version
        for each in batch:
            try:
                each.on_written()
            except Exception as error:  # its own caller's: the others of the batch belong to other accounts
                each.done.set_exception(error)
            else:
                each.done.set_result(None)

    def _removals(self, taken: set[str], count: int) -> list[ControlChange]:
        found: dict[str, ControlChange] = {}
        later: list[str] = []
        for _ in range(min(count, len(self._unwanted))):
            key = self._unwanted.popleft()
            if key in taken:
                later.append(key)
            else:
                found[key] = self._change(key, None)
        self._unwanted += later
        return list(found.values())

    def _change(self, key: str, value: bytes | None) -> ControlChange:
        return ControlChange(key, value, self._versions.get(key, 0))
