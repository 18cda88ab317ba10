"""What a reader needs and is not in memory: other threads read it, so that no disk stops the event loop.

A look that would have to wait for the disk raises ``NotInMemory``; the caller hands that to ``ColdReads``,
and looks again once it is there. Those that miss the same place share its load, and a load that nothing
waits for any more is left out. A stuck file keeps the readers of its partition waiting, and one thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path
from typing import Any

from tidegate.storage.calls_in_turn import CallsInTurn
from tidegate.storage.files import Files, ReadableFile

RECENT_BYTES = 4 * 1024 * 1024
"""Our choice: so much of a log's end counts as cached where the system does not know."""

_LOAD_BYTES = 1024 * 1024
"""Our choice: so much is read at a time, for the next looks as well."""

_Done = Callable[[Exception | None], None]


class NotInMemory(Exception):  # noqa: N818 - not an error
    """A look must wait for the disk."""

    def __init__(self, place: Hashable, load: Callable[[], Any], install: Callable[[Any], None]) -> None:
        """place: equal ones share a load. load: gets it, on any thread; may raise. install: takes its result,
        on the event loop's thread; that of each look is called with the same result.
        """
        super().__init__()
        self.place = place
        self.load = load
        self.install = install


class Warmed:
    """A range of a file that its reader has just read on another thread."""

    def __init__(self) -> None:
        self._path = Path()
        self._start = self._until = 0

    def covers(self, path: Path, position: int, count: int) -> bool:
        return self._start <= position and position + count <= self._until and path == self._path

    def add(self, path: Path, position: int, count: int) -> None:
        """Extend the range; a range elsewhere replaces it."""
        if path != self._path or not self._start <= position <= self._until:
            self._path, self._start, self._until = path, position, position
        self._until = max(self._until, position + count)


class CachedFile:
    """A file of which only what is in the page cache is read; for the rest, ``read_at`` raises
    ``NotInMemory``."""

    def __init__(
        self,
        files: Files,
        path: Path,
        file: ReadableFile,
        warmed: Warmed,
        *,
        recent_from: int | None,
        buffer: memoryview,
    ) -> None:
        """recent_from: from this byte on, it was written a moment ago. buffer: used for results."""
        self._files = files
        self._path = path
        self._file = file
        self._warmed = warmed
        self._recent_from = recent_from
        self._buffer = buffer

    def read_at(self, count: int, position: int) -> bytes | memoryview:
        """See ``ReadableFile``; the result is good until the next call for a file of the same buffer."""
        into = self._buffer if count <= len(self._buffer) else memoryview(bytearray(count))
        read = self._file.read_cached(into[:count], position)
        if read is not None:
            return into[:read]
        is_recent = self._recent_from is not None and position >= self._recent_from
        if (is_recent and not self._file.is_cache_known) or self._warmed.covers(self._path, position, count):
            return self._file.read_at(count, position)
        raise self._missing(count, position)

    def _missing(self, count: int, position: int) -> NotInMemory:
        files, path, warmed = self._files, self._path, self._warmed

        def load() -> int:
            file = files.open_readable(path)  # of its own: the other one may be closed meanwhile
            try:
                return len(file.read_at(max(count, _LOAD_BYTES), position))
            finally:
                file.close()

        # At the end of the file there are fewer bytes than wanted, and the look finds that.
        return NotInMemory(
            (path, position, count), load, lambda read: warmed.add(path, position, max(count, read))
        )


class InlineExecutor(Executor):
    """Runs everything at once on the caller's thread; for tests that run the log without threads."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # any error belongs to the waiter
            future.set_exception(error)
        return future


class HubsInTurn:
    """Threads of an executor that the loads of event hubs take in turn, however many loads one has."""

    def __init__(self, executor: Executor, threads_max: int) -> None:
        """threads_max: loads that run at the same time; the executor's other threads are left to others."""
        self._executor = executor
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[tuple[Callable[[], Any], Future[Any]]]] = {}
        """The waiting loads of each hub, oldest first; the first hub is next."""
        self._idle = threads_max

    def submit(self, hub_id: str, load: Callable[[], Any]) -> Future[Any]:
        """Run a load of a hub on one of the threads, when it is the hub's turn. For any thread."""
        future: Future[Any] = Future()
        with self._lock:
            self._waiting.setdefault(hub_id, deque()).append((load, future))
            if not self._idle:
                return future
            self._idle -= 1
        self._executor.submit(self._work)
        return future

    def _work(self) -> None:
        while (turn := self._next()) is not None:
            load, future = turn
            try:
                future.set_result(load())
            except BaseException as error:  # belongs to the waiter, and the thread to the next one
                future.set_exception(error)

    def _next(self) -> tuple[Callable[[], Any], Future[Any]] | None:
        with self._lock:
            hub_id = next(iter(self._waiting), None)
            if hub_id is None:
                self._idle += 1
                return None
            loads = self._waiting.pop(hub_id)
            turn = loads.popleft()
            if loads:
                self._waiting[hub_id] = loads  # the last one now
            return turn


class ColdReads:
    """The loads of one partition, one after another."""

    def __init__(
        self, hubs: HubsInTurn, hub_id: str, loop: asyncio.AbstractEventLoop, calls: CallsInTurn
    ) -> None:
        self._hubs = hubs
        self._hub_id = hub_id
        self._loop = loop
        self._calls = calls
        self._waiting: OrderedDict[Hashable, dict[_Done, NotInMemory]] = OrderedDict()
        """Who waits for each place; the first is being loaded, and may have lost all who waited."""
        self._loading: NotInMemory | None = None

    def load(self, missing: NotInMemory, done: _Done) -> None:
        """Load what is missing, then call ``done`` on the loop with the error, or None."""
        self._waiting.setdefault(missing.place, {})[done] = missing
        if self._loading is None:
            self._start()

    def forget(self, missing: NotInMemory, done: _Done) -> None:
        """``done`` waits no more; harmless after its call. What nothing else waits for is not loaded."""
        place = missing.place
        waiters = self._waiting.get(place)
        if waiters is None or waiters.pop(done, None) is None or waiters:
            return
        if self._loading is None or self._loading.place != place:
            del self._waiting[place]

    def _start(self) -> None:
        self._loading = next(iter(next(iter(self._waiting.values())).values()))
        self._hubs.submit(self._hub_id, self._loading.load).add_done_callback(self._pass_on)

    def _pass_on(self, loaded: Future[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits
            self._loop.call_soon_threadsafe(self._finish, loaded)

    def _finish(self, loaded: Future[Any]) -> None:
        assert self._loading is not None
        first, self._loading = self._loading, None
        waiters = self._waiting.pop(first.place)
        error = loaded.exception()
        if error is None:
            first.install(loaded.result())  # also if its look was given up: the result may be an open file
            for missing in waiters.values():
                if missing is not first:
                    missing.install(loaded.result())
        if self._waiting:
            self._start()
        reported = error if isinstance(error, Exception) else None
        self._calls.add(self._hub_id, [partial(done, reported) for done in waiters])
