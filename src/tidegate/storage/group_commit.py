"""Group commit: one thread at a time writes for all partitions.

Theory of operation. The event loop puts requests of partitions into a queue and never waits: appends, and
questions for the state of a producer, which have their place among the partition's appends and need no sync.
The leading thread takes what is queued (an equal share of each partition if it is too much for one round),
does one gathered write per partition, makes that durable (small rounds with one sync of the journal, others
with one of each file), and passes all results to the loop in one call. Meanwhile the next round collects in
the queue: the slower the disk, the larger the rounds, so throughput does not fall with the time of a sync.
Between rounds the thread notes how far partitions went (``PartitionWriter.save_mark``), and saves the
manifests of those that are idle.

A command (retention, a deletion, a backup) is a round by itself, after everything that was queued before it.
So it divides the rounds of all partitions: nothing that clients cause as often as they like may be one.

A step is one write, sync or command of a partition. The loop looks every few milliseconds whether one takes
too long. Then the partition is away: another thread leads, and continues the rest of the round. The thread
that was left finishes the partition's part of the round by itself, brings the partition back, and ends. What
is queued for the partition meanwhile waits for that; the others do not. The step of the journal concerns
everybody: all requests and commands wait for it; reads and creations do not.

    loop thread        futures, waiters, listeners, files open for reading, queued bytes, who leads
    leading thread     queue, backlog, rounds; PartitionWriter and files open for writing, unless away
    left threads       the PartitionWriter whose step they are in
    handed over        LogView (replaced as a whole), results by call_soon_threadsafe
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final

from tidegate.storage.journal.journal import Journal
from tidegate.storage.partition_writer import PartitionWriter, Request

ROUND_MAX = 500
"""Requests per round. Our choice: the event loop answers a round in one go, which takes about a millisecond,
and everything else waits meanwhile."""

_SAVE_EVERY_S = 0.02
"""From one save for an idle partition to the next: they must not delay rounds (our choice)."""

_SAVE_SHARE: Final = 0.1
"""Of the thread's time, for such saves (our choice). Each is a sync; with an event a second in each of many
partitions, there are as many saves as rounds."""

_MARKS_MAX: Final = 8
"""Marks between two rounds (our choice: 0.2 ms). Many partitions are due at the same time, and the next round
would wait for all of them."""

_LEAVE_AFTER_S: Final = 0.02
"""A step that takes longer than this leaves the round (our choice: far longer than a sync of a disk that is
well, and well below what a user notices)."""

_TELL_AFTER_S: Final = 1.0
"""Steps that take longer are logged."""

_LOOK_EVERY_S: Final = 0.01
"""From one look for such a step to the next, while appends wait."""

_LEFT_MAX: Final = 16
"""Threads that may be left at a time. Our choice: with that many files stuck, the whole disk is."""

_logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Command:
    """Any other work for the writing thread, in order with the requests of its partitions."""

    run: Callable[[], object]
    writers: Sequence[PartitionWriter]
    future: asyncio.Future[object]
    result: object = None
    error: Exception | None = None


_Item = tuple[PartitionWriter, Request]
_Part = tuple[PartitionWriter, list[Request]]


@dataclass(slots=True)
class _Return:
    """A left thread is done with these partitions."""

    writers: Sequence[PartitionWriter]


_Queued = _Item | Command | _Return | None
"""None: nothing follows."""

Delivery = tuple[list[_Part], list[Command]]
"""The result of one round: requests by writer, and commands."""


@dataclass(slots=True)
class _Step:
    """A call that may take long, and what is left of the round for its partitions."""

    writers: Sequence[PartitionWriter]
    run: Callable[[], object]
    requests: list[Request] = field(default_factory=list)
    following: Sequence[Callable[[], object]] = ()
    command: Command | None = None
    is_for_all: bool = False
    """It is waited for, however long it takes."""
    started_s: float = 0.0


class _Round:
    """What was taken from the queue: requests of partitions, or a command, or nothing."""

    def __init__(
        self,
        parts: dict[PartitionWriter, list[Request]],
        command: Command | None,
        journal: Journal | None,
        away: Container[PartitionWriter],
    ) -> None:
        """away: the partitions that are, at any time."""
        self.parts = parts
        self.command = command
        self._journal = journal
        self._away = away
        self._journaled: set[PartitionWriter] = set()
        self.steps = self._iter_steps()
        """Those that were not begun."""

    def delivery(self, away: Container[PartitionWriter] = ()) -> Delivery:
        """Its results, but for those of partitions that are away."""
        commands = [] if self.command is None else [self.command]
        return [part for part in self.parts.items() if part[0] not in away], commands

    def _iter_steps(self) -> Iterator[_Step]:
        # All writes come first: a sync then often does the work of the next one as well.
        for writer, requests in self.parts.items():
            yield _Step((writer,), partial(writer.write, requests), requests, (writer.sync, writer.finish))
        if self._journal is not None and self.parts:
            yield _Step((), partial(self._commit, self._journal), is_for_all=True)
        for writer, requests in self.parts.items():
            if writer not in self._journaled:
                yield _Step((writer,), writer.sync, requests, (writer.finish,))
        for writer, requests in self.parts.items():
            yield _Step((writer,), writer.finish, requests)
        if self.command is not None:
            yield _Step(self.command.writers, partial(_run_command, self.command), command=self.command)

    def _commit(self, journal: Journal) -> None:
        writers = [writer for writer in self.parts if writer not in self._away]
        parts = [(writer, part) for writer in writers if (part := writer.journal_part()) is not None]
        if parts and journal.commit(parts):
            self._journaled.update(writer for writer, _ in parts)


class GroupCommit:
    """The queue, and the thread that empties it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        deliver: Callable[[Delivery], None],
        *,
        journal: Journal | None,
        mark_after_s: float,
        idle_save_s: float,
    ) -> None:
        """deliver: called on ``loop`` once per round."""
        self._loop = loop
        self._journal = journal
        self._deliver = deliver
        self._queue: SimpleQueue[_Queued] = SimpleQueue()
        self._returned: deque[_Item | Command] = deque()
        """What waited for partitions that have come back; it goes before the queue."""
        self._backlog: dict[PartitionWriter, deque[Request]] = {}
        self._command: Command | None = None
        """Taken from the queue, but not in a round yet: requests, and the command that comes after them."""
        self._away: dict[PartitionWriter, list[_Item | Command]] = {}
        """Partitions that a left thread works on, and what waits for them."""
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
        """The one that leads."""
        self._ended: asyncio.Future[None] = loop.create_future()
        self._lock = threading.Lock()
        """Held to end a step, and to leave one: it is either ended or left."""
        self._step: _Step | None = None
        self._round: _Round | None = None
        self._left_count = 0
        self._unanswered = 0
        self._look_timer: asyncio.TimerHandle | None = None

    # -- on the loop

    def start(self) -> None:
        self._lead_by_new_thread(None)

    def put(self, writer: PartitionWriter, request: Request) -> None:
        self._queue.put((writer, request))
        self._unanswered += 1
        if self._look_timer is None:
            self._look_later()

    def put_command(
        self, run: Callable[[], object], writers: Sequence[PartitionWriter]
    ) -> asyncio.Future[object]:
        """Queue a command for these partitions; the future has its result."""
        command = Command(run, writers, self._loop.create_future())
        self._queue.put(command)
        self._unanswered += 1
        if self._look_timer is None:
            self._look_later()
        return command.future

    async def stop(self) -> None:
        """Return once everything queued is done and the threads have ended. Harmless twice.

        Cancellation: the threads still end.
        """
        if self._thread is not None:
            if not self._ended.done():
                self._queue.put(None)
            await asyncio.shield(self._ended)
            self._thread.join()
            self._thread = None
            if self._look_timer is not None:
                self._look_timer.cancel()
        else:
            self.commit_queued()

    def commit_queued(self) -> None:
        """Do everything queued on this thread; for tests that run the log without a writer thread."""
        assert self._thread is None
        while not self._queue.empty() or self._has_taken:
            round_ = self._take()
            for step in round_.steps:
                _guard(step, step.run)
            self._answer(round_.delivery())

    def _look_later(self) -> None:
        if self._thread is not None:
            self._look_timer = self._loop.call_later(_LOOK_EVERY_S, self._look)

    def _answer(self, delivery: Delivery) -> None:
        self._unanswered -= sum(len(requests) for _, requests in delivery[0]) + len(delivery[1])
        self._deliver(delivery)

    def _set_ended(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def _look(self) -> None:
        """Leave a step that takes too long; look again later if anything waits for an answer."""
        self._look_timer = None
        if self._unanswered == 0:
            return
        with self._lock:
            step = self._step
            is_stuck = step is not None and time.monotonic() - step.started_s >= _LEAVE_AFTER_S
            if step is not None and is_stuck and not step.is_for_all and self._left_count < _LEFT_MAX:
                self._leave(step)
        self._look_later()

    def _leave(self, step: _Step) -> None:
        try:
            self._lead_by_new_thread(self._round)
        except RuntimeError:  # no more threads: everybody waits for this step
            return
        self._step = None
        self._left_count += 1
        for writer in step.writers:
            self._away[writer] = [(writer, request) for request in self._backlog.pop(writer, ())]
        if self._round is not None and step.command is not None:
            self._round.command = None

    def _lead_by_new_thread(self, round_: _Round | None) -> None:
        """round_: is continued first. Raises RuntimeError if no thread can be started."""
        thread = threading.Thread(target=self._lead, args=(round_,), name="tidegate-log-writer", daemon=True)
        thread.start()
        self._thread = thread

    # -- on the leading thread, until it is left

    def _lead(self, round_: _Round | None) -> None:
        with self._lock:  # until this thread leads
            pass
        while round_ is not None or not self._is_over:
            if round_ is None:
                round_ = self._round = self._take()
            if not self._go_on(round_):
                return
            round_ = self._round = None
            if not self._save_due():
                return
        self._call_on_loop(self._set_ended)

    def _go_on(self, round_: _Round) -> bool:
        """Do the rest of a round, and deliver it; False: it was left."""
        for step in round_.steps:
            away = next((writer for writer in step.writers if writer in self._away), None)
            if away is None:
                if not self._do(step):
                    return False
            elif step.command is not None:
                self._away[away].append(step.command)
                round_.command = None
        delivery = round_.delivery(self._away)
        for writer, _ in delivery[0]:
            self._note_written(writer)
        if delivery[0] or delivery[1]:
            self._call_on_loop(partial(self._answer, delivery))
        return True

    def _note_written(self, writer: PartitionWriter) -> None:
        now = time.monotonic()
        self._written.pop(writer, None)
        self._written[writer] = now
        self._unmarked.setdefault(writer, now)

    def _do(self, step: _Step) -> bool:
        """Do a step. False: another thread leads since; then also what follows of it, its delivery and the
        return of its partitions are done."""
        step.started_s = time.monotonic()
        self._step = step
        _guard(step, step.run)
        with self._lock:
            if self._step is step:
                self._step = None
                return True
        for run in step.following:
            _guard(step, run)
        parts = [(step.writers[0], step.requests)] if step.requests else []
        commands = [] if step.command is None else [step.command]
        self._call_on_loop(partial(self._answer, (parts, commands)))
        took_s = time.monotonic() - step.started_s
        if took_s >= _TELL_AFTER_S:
            what = step.writers[0] if len(step.writers) == 1 else f"{len(step.writers)} partitions"
            _logger.warning("The disk took %.1f s for %s; the others did not wait for it.", took_s, what)
        with self._lock:
            self._left_count -= 1
        self._queue.put(_Return(step.writers))
        return False

    def _call_on_loop(self, call: Callable[[], None]) -> None:
        # The loop is only closed if a program ended without close(): nothing is left to notify.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    @property
    def _is_over(self) -> bool:
        return self._is_stopping and not self._has_taken and not self._away and self._queue.empty()

    def _due_wait_s(self) -> float | None:
        """Until the next mark or save is due; None: none is."""
        due = []
        if self._unmarked:
            due.append(next(iter(self._unmarked.values())) + self._mark_after_s)
        if self._written:
            due.append(max(self._save_at, next(iter(self._written.values())) + self._idle_save_s))
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _save_due(self) -> bool:
        """Save the marks that are due, and the manifest of the longest idle partition. False: it was left."""
        now = time.monotonic()
        marks = 0
        while self._unmarked:
            writer, since = next(iter(self._unmarked.items()))
            late_s = now - since - self._mark_after_s
            if late_s < 0 or (marks >= _MARKS_MAX and late_s < self._mark_after_s / 2):
                break
            del self._unmarked[writer]
            marks += 1
            if writer not in self._away and not self._do(_Step((writer,), writer.save_mark)):
                return False
        if not self._written or self._save_at > now:
            return True
        writer, written_at = next(iter(self._written.items()))
        if written_at + self._idle_save_s > now:
            return True
        del self._written[writer]
        if writer in self._away or not writer.needs_save:
            return True
        self._save_at = now + _SAVE_EVERY_S
        if not self._do(_Step((writer,), writer.save_manifest)):
            return False
        ended = time.monotonic()
        self._save_at = max(self._save_at, ended + (ended - now) * (1 / _SAVE_SHARE - 1))
        return True

    @property
    def _has_taken(self) -> bool:
        return bool(self._backlog) or bool(self._returned) or self._command is not None

    def _take(self) -> _Round:
        """Wait for work, and take about ROUND_MAX of it, shared equally between partitions."""
        # Empty the queue into the backlog, up to the next command.
        while self._command is None and (self._returned or not self._backlog or not self._queue.empty()):
            try:
                item = (
                    self._returned.popleft()
                    if self._returned
                    else self._queue.get(timeout=self._due_wait_s())
                )
            except Empty:
                break
            if isinstance(item, tuple) and not self._away:  # nearly always
                self._add_to_backlog(item)
            elif item is None:
                self._is_stopping = True
                break
            elif isinstance(item, _Return):
                self._take_back(item.writers)
                if not self._has_taken:
                    break
            else:
                self._sort_in(item)
        # Take equal shares, so that a busy partition does not delay the others.
        parts: dict[PartitionWriter, list[Request]] = {}
        left = ROUND_MAX
        while self._backlog and left > 0:
            share = max(1, left // len(self._backlog))
            for writer, requests in list(self._backlog.items()):
                count = min(share, len(requests))
                part = [requests.popleft() for _ in range(count)]
                parts[writer] = parts[writer] + part if writer in parts else part
                left -= count
                if not requests:
                    del self._backlog[writer]
        command = None
        if not parts:
            command, self._command = self._command, None
        return _Round(parts, command, self._journal, self._away)

    def _sort_in(self, item: _Item | Command) -> None:
        writers = item.writers if isinstance(item, Command) else item[:1]
        away = next((writer for writer in writers if writer in self._away), None)
        if away is not None:
            self._away[away].append(item)
        elif isinstance(item, Command):
            self._command = item
        else:
            self._add_to_backlog(item)

    def _add_to_backlog(self, item: _Item) -> None:
        writer, request = item
        requests = self._backlog.get(writer)
        if requests is None:
            requests = self._backlog[writer] = deque()
        requests.append(request)

    def _take_back(self, writers: Sequence[PartitionWriter]) -> None:
        """Accept partitions that were away again, and first what waited for them."""
        for writer in writers:
            self._returned.extend(self._away.pop(writer))
            self._note_written(writer)


def _run_command(command: Command) -> None:
    try:
        command.result = command.run()
    except Exception as error:  # any error belongs to the command's waiter
        command.error = error


def _guard(step: _Step, run: Callable[[], object]) -> None:
    """Run a part of a step; an internal error ends its partition's appends, but not the thread."""
    try:
        run()
    except Exception as error:
        _logger.exception("The writer of a partition failed.")
        for writer in step.writers:
            writer.abort(step.requests, error)
