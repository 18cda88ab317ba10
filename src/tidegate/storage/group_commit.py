"""Group commit: one writer thread for all partitions.

Theory of operation. The event loop puts appends into a queue and never waits. The thread takes everything
that is queued, writes it with one gathered write per partition, syncs each file that was written once, and
hands all results to the loop in one call. While it waits for the disk the next round collects in the queue:
the slower the disk, the larger the rounds, so throughput does not fall with the time of a sync.

    loop thread        futures, waiters, listeners, files open for reading, queued bytes
    writer thread      PartitionWriter, files open for writing
    handed over        LogView (replaced as a whole), results by call_soon_threadsafe
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

from tidegate.storage.partition_writer import AppendRequest, PartitionWriter

ROUND_MAX = 500
"""Appends and commands that are done together. Our choice: the event loop answers a round's in one go, which
takes about a millisecond, and others wait meanwhile."""

_logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Command:
    """Something else that must happen in order with the appends, on the writer thread."""

    run: Callable[[], object]
    future: asyncio.Future[object]
    result: object = None
    error: Exception | None = None


_Queued = tuple[PartitionWriter, AppendRequest] | Command
Delivery = tuple[list[tuple[PartitionWriter, list[AppendRequest]]], list[Command]]
"""What one round achieved: requests by writer, and commands."""


class GroupCommit:
    """The queue, and the thread that empties it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[Delivery], None]) -> None:
        """deliver: called on ``loop`` once per round."""
        self._loop = loop
        self._deliver = deliver
        self._queue: SimpleQueue[_Queued | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ended: asyncio.Future[None] = loop.create_future()

    def start(self) -> None:
        """Start the writer thread."""
        self._thread = threading.Thread(target=self._run, name="tidegate-log-writer", daemon=True)
        self._thread.start()

    def put(self, writer: PartitionWriter, request: AppendRequest) -> None:
        """Queue an append."""
        self._queue.put((writer, request))

    def put_command(self, run: Callable[[], object]) -> asyncio.Future[object]:
        """Queue a command; the future has its result."""
        command = Command(run, self._loop.create_future())
        self._queue.put(command)
        return command.future

    async def stop(self) -> None:
        """Return once everything that was queued is done and the thread has ended. Harmless twice.

        Cancellation: the thread ends all the same.
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
        """Do everything that is queued, here and now; for tests that drive the log without a thread."""
        assert self._thread is None
        while not self._queue.empty():
            taken, _ = self._take()
            self._deliver(_commit(taken))

    def _run(self) -> None:
        is_stopping = False
        while not is_stopping:
            taken, is_stopping = self._take()
            delivery = _commit(taken)
            # The loop is closed only where a program ended without close(): nobody is left to be told.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._deliver, delivery)
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._set_ended)

    def _set_ended(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def _take(self) -> tuple[list[_Queued], bool]:
        """Wait for something to do and take what there is, ROUND_MAX at most; True where the thread should
        end after it."""
        taken: list[_Queued] = []
        is_stopping = False
        while True:
            item = self._queue.get()
            if item is None:
                is_stopping = True
            else:
                taken.append(item)
            if self._queue.empty() or (len(taken) >= ROUND_MAX and not is_stopping):
                return taken, is_stopping


def _commit(taken: list[_Queued]) -> Delivery:
    """One round: appends between two commands are written together."""
    done: list[tuple[PartitionWriter, list[AppendRequest]]] = []
    commands: list[Command] = []
    by_writer: dict[PartitionWriter, list[AppendRequest]] = {}
    for item in taken:
        if isinstance(item, Command):
            done += _commit_appends(by_writer)
            by_writer = {}
            try:
                item.result = item.run()
            except Exception as error:  # Whoever waits for the command is told, whatever it is.
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
    """Do a step; a mistake of ours ends this partition's appends, and not the thread that all need."""
    try:
        step()
    except Exception as error:
        _logger.exception("The writer of a partition failed.")
        writer.abort(requests, error)
