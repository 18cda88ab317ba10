"""Group commit: one writer thread for all partitions.

Theory of operation. The event loop puts appends into a queue and never waits. The thread takes what is queued
(an equal share of each partition if it is too much for one round), does one gathered write per partition,
syncs each written file once, and passes all results to the loop in one call. Meanwhile the next round
collects in the queue: the slower the disk, the larger the rounds, so throughput does not fall with the time
of a sync. Between rounds the thread notes how far partitions went (``PartitionWriter.save_mark``), and saves
the manifests of those that are idle.

    loop thread        futures, waiters, listeners, files open for reading, queued bytes
    writer thread      PartitionWriter, files open for writing
    handed over        LogView (replaced as a whole), results by call_soon_threadsafe
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue

from tidegate.storage.partition_writer import AppendRequest, PartitionWriter

ROUND_MAX = 500
"""Appends and commands per round. Our choice: the event loop answers a round in one go, which takes about a
millisecond, and everything else waits meanwhile."""

_SAVE_EVERY_S = 0.02
"""From one save for an idle partition to the next: they must not delay rounds (our choice)."""

_logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Command:
    """Any other work for the writer thread, in order with the appends."""

    run: Callable[[], object]
    future: asyncio.Future[object]
    result: object = None
    error: Exception | None = None


_Queued = tuple[PartitionWriter, AppendRequest] | Command
Delivery = tuple[list[tuple[PartitionWriter, list[AppendRequest]]], list[Command]]
"""The result of one round: requests by writer, and commands."""


class GroupCommit:
    """The queue, and the writer thread that empties it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        deliver: Callable[[Delivery], None],
        *,
        mark_after_s: float,
        idle_save_s: float,
    ) -> None:
        """deliver: called on ``loop`` once per round."""
        self._loop = loop
        self._deliver = deliver
        self._queue: SimpleQueue[_Queued | None] = SimpleQueue()
        self._backlog: dict[PartitionWriter, deque[AppendRequest]] = {}
        self._command: Command | None = None
        """Taken from the queue, but not in a round yet: appends, and the command that comes after them."""
        self._mark_after_s = mark_after_s
        self._unmarked: dict[PartitionWriter, float] = {}
        """When each was first written since its last mark, the longest ago first."""
        self._idle_save_s = idle_save_s
        self._written: dict[PartitionWriter, float] = {}
        """When each was last written, the longest ago first; only those whose manifest is to be saved."""
        self._save_at = 0.0
        """The earliest time of the next save for an idle partition."""
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        self._ended: asyncio.Future[None] = loop.create_future()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="tidegate-log-writer", daemon=True)
        self._thread.start()

    def put(self, writer: PartitionWriter, request: AppendRequest) -> None:
        self._queue.put((writer, request))

    def put_command(self, run: Callable[[], object]) -> asyncio.Future[object]:
        """Queue a command; the future has its result."""
        command = Command(run, self._loop.create_future())
        self._queue.put(command)
        return command.future

    async def stop(self) -> None:
        """Return once everything queued is done and the thread has ended. Harmless twice.

        Cancellation: the thread still ends.
        """
        if self._thread is not None:
            if not self._ended.done():
                self._queue.put(None)
            await asyncio.shield(self._ended)
            self._thread.join()
            self._thread = None
        else:
            self.commit_queued()

    def commit_queued(self) -> None:
        """Do everything queued on this thread; for tests that run the log without a writer thread."""
        assert self._thread is None
        while not self._queue.empty() or self._has_taken:
            self._deliver(_commit(self._take()))

    def _run(self) -> None:
        while not self._is_stopping or self._has_taken or not self._queue.empty():
            delivery = _commit(self._take())
            self._note_written(delivery)
            # The loop is only closed if a program ended without close(): nothing is left to notify.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._deliver, delivery)
            self._save_due()
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._set_ended)

    def _set_ended(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def _note_written(self, delivery: Delivery) -> None:
        now = time.monotonic()
        for writer, _ in delivery[0]:
            self._written.pop(writer, None)
            self._written[writer] = now
            self._unmarked.setdefault(writer, now)

    def _due_wait_s(self) -> float | None:
        """Until the next mark or save is due; None: none is."""
        due = []
        if self._unmarked:
            due.append(next(iter(self._unmarked.values())) + self._mark_after_s)
        if self._written:
            due.append(max(self._save_at, next(iter(self._written.values())) + self._idle_save_s))
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _save_due(self) -> None:
        """Save the marks that are due, and the manifest of the partition that has been idle longest."""
        now = time.monotonic()
        while self._unmarked and next(iter(self._unmarked.values())) + self._mark_after_s <= now:
            writer = next(iter(self._unmarked))
            del self._unmarked[writer]
            writer.save_mark()
        if not self._written or self._save_at > now:
            return
        writer, written_at = next(iter(self._written.items()))
        if written_at + self._idle_save_s <= now:
            del self._written[writer]
            if writer.needs_save:
                writer.save_manifest()
                self._save_at = time.monotonic() + _SAVE_EVERY_S

    @property
    def _has_taken(self) -> bool:
        return bool(self._backlog) or self._command is not None

    def _take(self) -> list[_Queued]:
        """Wait for work, and take about ROUND_MAX of it, shared equally between partitions."""
        # Empty the queue into the backlog, up to the next command.
        while self._command is None and not (self._has_taken and self._queue.empty()):
            try:
                item = self._queue.get(timeout=self._due_wait_s())
            except Empty:
                self._save_due()
                continue
            if item is None:
                self._is_stopping = True
                break
            if isinstance(item, Command):
                self._command = item
            else:
                self._backlog.setdefault(item[0], deque()).append(item[1])
        # Take equal shares, so that a busy partition does not delay the others.
        taken: list[_Queued] = []
        while self._backlog and len(taken) < ROUND_MAX:
            share = max(1, (ROUND_MAX - len(taken)) // len(self._backlog))
            for writer, requests in list(self._backlog.items()):
                taken += [(writer, requests.popleft()) for _ in range(min(share, len(requests)))]
                if not requests:
                    del self._backlog[writer]
        if self._command is not None and not self._backlog:
            taken.append(self._command)
            self._command = None
        return taken


def _commit(taken: list[_Queued]) -> Delivery:
    """Do one round: appends between two commands are written together."""
    done: list[tuple[PartitionWriter, list[AppendRequest]]] = []
    commands: list[Command] = []
    by_writer: dict[PartitionWriter, list[AppendRequest]] = {}
    for item in taken:
        if isinstance(item, Command):
            done += _commit_appends(by_writer)
            by_writer = {}
            try:
                item.result = item.run()
            except Exception as error:  # any error belongs to the command's waiter
                item.error = error
            commands.append(item)
        else:
            by_writer.setdefault(item[0], []).append(item[1])
    done += _commit_appends(by_writer)
    return done, commands


def _commit_appends(
    by_writer: dict[PartitionWriter, list[AppendRequest]],
) -> list[tuple[PartitionWriter, list[AppendRequest]]]:
    for writer, requests in by_writer.items():
        _guard(writer, requests, partial(writer.write, requests))
    for writer, requests in by_writer.items():
        _guard(writer, requests, writer.sync)
    for writer, requests in by_writer.items():
        _guard(writer, requests, writer.finish)
    return list(by_writer.items())


def _guard(writer: PartitionWriter, requests: list[AppendRequest], step: Callable[[], None]) -> None:
    """Do a step; an internal error ends this partition's appends, but not the shared thread."""
    try:
        step()
    except Exception as error:
        _logger.exception("The writer of a partition failed.")
        writer.abort(requests, error)
