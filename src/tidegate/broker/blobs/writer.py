"""Writes changes of blobs to the control log: those that come during a write, together in the next one.

So a hundred processors that checkpoint at once cost two syncs, not two hundred, and a change of the catalog
waits for one write at most.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Final

from tidegate.model.errors import LogFullError, TidegateError, UnauthorizedError
from tidegate.storage.engine import ControlChange, ControlLog, copy_error

TOGETHER_MAX: Final = 256
TOGETHER_BYTES_MAX: Final = 1024 * 1024
"""Changes of one write and their bytes (our choice: a write of some milliseconds)."""

_TAKEN_IN_TOGETHER: Final = 8
"""Written changes that are taken in without a pause for others (our choice: 1.5 ms if each displaces a group
of the thousand that are known)."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    key: str
    value: bytes | None
    on_written: Callable[[], None]
    done: asyncio.Future[None]
    context: Context


@dataclass(frozen=True, slots=True)
class Removal:
    """A value that is no longer used."""

    key: str
    on_removed: Callable[[], None] = lambda: None


class ChangeWriter:
    """The only writer of its keys. Changes are made in the order of the calls."""

    def __init__(self, control: ControlLog, versions: Mapping[str, int]) -> None:
        """versions: of the keys that have a value."""
        self._control = control
        self._versions = dict(versions)
        self.check_actor: Callable[[], None] = lambda: None
        """Raises UnauthorizedError if the current actor has lost its rights; see ``write``."""
        self._waiting: deque[_Waiting] = deque()
        self._unwanted: deque[Iterator[Removal]] = deque()
        self._has_failed = False
        """Whether the last write failed: then the next one has no removals."""
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
            while not done.done():  # however often it is cancelled
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([done])
            done.exception()  # read it, so that asyncio does not report it as unretrieved
            raise

    def remove_later(self, removals: Iterable[Removal]) -> None:
        """Remove values when there is time. removals: taken as they are made, and tried until they are."""
        self._unwanted.append(iter(removals))
        self._begin()

    def try_removals_again(self) -> None:
        """Try once more those that failed: what they free is needed."""
        self._has_failed = False
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
            while self._waiting or (self._unwanted and not self._has_failed):
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
        values = {each.key: each.value for each in batch}
        removals = [] if self._has_failed else self._removals(values, TOGETHER_MAX - len(batch))
        values.update(dict.fromkeys((each.key for each in removals), None))
        changes = [ControlChange(key, value, self._versions.get(key, 0)) for key, value in values.items()]
        # Removing what is not there is no change.
        changes = [each for each in changes if each.value is not None or each.expected_version]
        try:
            # Removals as well: on a full disk, their records would use up what deletes event hubs.
            version = await self._control.change_all(changes, may_borrow=False) if changes else 0
        except Exception as error:  # each caller gets it
            self._has_failed = True
            if removals:
                self._unwanted.appendleft(iter(removals))
                if isinstance(error, LogFullError):
                    self._waiting.extendleft(reversed(batch))  # without removals there may be room
                    return
            for each in batch:
                each.done.set_exception(copy_error(error) if isinstance(error, TidegateError) else error)
            return
        self._has_failed = False
        for change in changes:
            if change.value is None:
                del self._versions[change.key]
            else:
                self._versions[change.key] = version
        for removal in removals:
            removal.on_removed()
        for index, each in enumerate(batch, start=1):
            try:
                each.on_written()
            except Exception as error:  # its own caller's: the others of the batch belong to other accounts
                each.done.set_exception(error)
            else:
                each.done.set_result(None)
            if not index % _TAKEN_IN_TOGETHER:
                await asyncio.sleep(0)

    def _removals(self, taken: Collection[str], count: int) -> list[Removal]:
        """At most ``count`` of those to be made; not of the keys ``taken``, whose turn is later."""
        found: list[Removal] = []
        later: list[Removal] = []
        while self._unwanted and len(found) + len(later) < count:
            removal = next(self._unwanted[0], None)
            if removal is None:
                self._unwanted.popleft()
            else:
                (later if removal.key in taken else found).append(removal)
        if later:
            self._unwanted.append(iter(later))
        return found
