"""The log of one partition, as the broker uses it.

Everything is called on the event loop's thread. What is readable is durable; what is acknowledged is
readable.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Protocol

from tidegate.model.errors import ClosedError, LogFailedError, ServerBusyError, TidegateError
from tidegate.storage.group_commit import GroupCommit
from tidegate.storage.log_view import LogView
from tidegate.storage.partition_writer import AppendRequest, PartitionWriter
from tidegate.storage.producers import ProducerState
from tidegate.storage.record import AppendResult, ProducerBatch, RecordBatch, encode_lengths
from tidegate.storage.segment import Segment, corrupt_error, iter_headers
from tidegate.storage.segment_reader import SegmentCache, read_batches
from tidegate.storage.sparse_index import NO_TIME
from tidegate.storage.write_errors import is_shortage_error, shortage_error

_CURSORS_MAX = 256
"""Our choice: places remembered for sequential readers, which then continue without a look-up."""

_BASE = attrgetter("base_sequence_number")
_logger = logging.getLogger(__name__)


class Admission(Protocol):
    """The limit on queued appends, over all logs."""

    def admit(self, payload_bytes: int) -> None:
        """Count bytes about to be queued. Raises ServerBusyError, ClosedError."""
        ...


class PartitionLog:
    """A durable, append-only log of record batches. Get one from ``LogManager.log``."""

    def __init__(
        self,
        directory: Path,
        writer: PartitionWriter,
        *,
        commit: GroupCommit,
        cache: SegmentCache,
        admission: Admission,
        gaps: frozenset[tuple[int, int]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.directory = directory
        self.writer = writer
        """The half that belongs to the writer thread."""
        self.is_closed = False
        """True once the hub is deleted or the service stops: no more events will come."""
        self._commit = commit
        self._cache = cache
        self._admission = admission
        self._gaps = sorted(gaps)
        self._loop = loop
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._listeners: dict[object, Callable[[], None]] = {}
        self._cursors: dict[int, tuple[Segment, int]] = {}
        self._appended_events = 0
        self._appended_bytes = 0

    @property
    def is_failed(self) -> bool:
        """Whether it refuses all appends until a restart."""
        return self.writer.failure is not None

    # -- appending

    def append_nowait(
        self,
        payload: bytes | memoryview,
        lengths: Sequence[int],
        *,
        enqueued_time_ms: int,
        producer: ProducerBatch | None = None,
    ) -> asyncio.Future[AppendResult]:
        """Queue a batch; the future resolves to its location in the log once it is durable.

        payload: the events end to end; lengths: bytes of each, at least one. Batches are stored in the order
        of the calls. enqueued_time_ms: raised to that of the previous batch if the clock went back. Raises
        InvalidArgumentError, ServerBusyError and ClosedError here; through the future LogFullError,
        LogFailedError, OutOfOrderSequenceError and ProducerEpochStolenError. Cancellation of the future: the
        batch is wholly in the log or wholly absent; others are unaffected.
        """
        table = encode_lengths(len(payload), lengths)
        if producer is not None:
            producer.validate()
        if self.is_closed:
            raise closed_error()
        self._admission.admit(len(payload))
        data = payload if isinstance(payload, bytes) else bytes(payload)
        future: asyncio.Future[AppendResult] = self._loop.create_future()
        self._commit.put(
            self.writer, AppendRequest(data, table, len(lengths), enqueued_time_ms, producer, future)
        )
        return future

    async def append(
        self,
        payload: bytes | memoryview,
        lengths: Sequence[int],
        *,
        enqueued_time_ms: int,
        producer: ProducerBatch | None = None,
    ) -> AppendResult:
        """Append a batch and return once it is durable; see ``append_nowait``."""
        return await self.append_nowait(
            payload, lengths, enqueued_time_ms=enqueued_time_ms, producer=producer
        )

    async def producer_state(self, producer_id: int) -> ProducerState | None:
        """The state of an idempotent producer after all appends queued so far; None if unknown.

        Raises ClosedError. Cancellation: leaves no trace.
        """
        if self.is_closed:
            raise closed_error()
        state = await self._commit.put_command(partial(self.writer.producer_state, producer_id))
        assert state is None or isinstance(state, ProducerState)
        return state

    # -- bounds

    @property
    def view(self) -> LogView:
        """The durable part of the log now."""
        return self.writer.view

    @property
    def begin_sequence_number(self) -> int:
        """The first event held; if there is none, the next one to come."""
        return self.writer.view.begin_sequence_number

    @property
    def next_sequence_number(self) -> int:
        """One past the last readable event."""
        return self.writer.view.next_sequence_number

    @property
    def last_enqueued_time_ms(self) -> int | None:
        """Milliseconds since 1970-01-01 UTC; None if no event was ever enqueued."""
        return self.writer.view.last_enqueued_time_ms

    @property
    def appended(self) -> tuple[int, int]:
        """Events and bytes stored since the start."""
        return self._appended_events, self._appended_bytes

    def stored_bytes(self) -> int:
        """Bytes of the log on disk; may access the file system, and may be called from any thread."""
        return self.writer.view.stored_bytes()

    # -- reading

    def read_nowait(self, start_sequence_number: int, *, bytes_max: int) -> list[RecordBatch]:
        """The batches from ``start_sequence_number`` on, about ``bytes_max`` bytes of them.

        At least one batch; none only at the end of the log. The first may begin before the start. If
        retention removed the start, reading begins at the oldest event. A read ends with its segment, so it
        may be short. Raises LogCorruptError (damaged events are never served), LogFailedError (the disk),
        ServerBusyError (no file can be opened now).
        """
        while True:
            view = self.writer.view
            start = self._skip_gaps(max(start_sequence_number, view.begin_sequence_number))
            if start >= view.next_sequence_number:
                return []
            try:
                return self._read_view(view, start, bytes_max)
            except FileNotFoundError as error:
                # Retention may delete a segment after the view was read and before the file is opened.
                if self.writer.view.segments[:1] == view.segments[:1]:
                    raise corrupt_error(Path(str(error.filename)), 0, "the file is missing") from error
            except OSError as error:
                raise self._unreadable(error) from error

    def sequence_number_at_time(self, time_ms: int) -> int:
        """The first event enqueued at ``time_ms`` (milliseconds since 1970-01-01 UTC) or later.

        ``next_sequence_number`` if there is none. Raises LogCorruptError, LogFailedError, ServerBusyError.
        """
        while True:
            view = self.writer.view
            try:
                return self._find_time(view, time_ms)
            except FileNotFoundError as error:
                if self.writer.view.segments[:1] == view.segments[:1]:
                    raise corrupt_error(Path(str(error.filename)), 0, "the file is missing") from error
            except OSError as error:
                raise self._unreadable(error) from error

    async def wait_appended(self, sequence_number: int) -> None:
        """Wait until ``sequence_number`` can be read. Raises ClosedError. Cancellation: leaves no trace."""
        sequence_number = self._skip_gaps(sequence_number)
        if self.next_sequence_number > sequence_number:
            return
        if self.is_closed:
            raise closed_error()
        waiter = (sequence_number, self._loop.create_future())
        self._waiters.append(waiter)
        try:
            await waiter[1]
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def add_append_listener(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` on the loop when more can be read, and at close; returns what removes it."""
        key = object()
        self._listeners[key] = listener
        return partial(self._remove_listener, key)

    # -- retention

    async def apply_retention(self, *, before_ms: int, bytes_max: int | None) -> int:
        """Remove whole segments, oldest first; returns how many.

        A segment is removed if all its events were enqueued before ``before_ms``, or if the rest still holds
        ``bytes_max`` bytes (None: no limit by size). The last segment is removed by time only.
        Raises LogFullError, ServerBusyError, LogFailedError, LogCorruptError, ClosedError, OSError.
        """
        if self.is_closed:
            raise closed_error()
        view = self.writer.view
        if not view.segments:
            return 0
        count = self._count_removable(view, before_ms, bytes_max)
        last_time_ms = self._cache.index(view.segments[-1]).last_time_ms
        is_last_expired = count == len(view.segments) - 1 and NO_TIME < last_time_ms < before_ms
        if count == 0 and not is_last_expired:
            return 0
        until_base = (
            view.next_sequence_number if is_last_expired else view.segments[count].base_sequence_number
        )

        def remove() -> object:
            # On the writer thread, which may have appended meanwhile: then the last segment stays.
            is_unchanged = self.writer.view.next_sequence_number == view.next_sequence_number
            return self.writer.remove_segments(
                until_base if is_unchanged or not is_last_expired else view.segments[-1].base_sequence_number,
                is_last_expired=is_last_expired and is_unchanged,
            )

        removed = await self._commit.put_command(remove)
        assert isinstance(removed, list)
        for segment in removed:
            self._cache.forget(segment)
        return len(removed)

    # -- called by the manager, on the loop

    def deliver(self, requests: list[AppendRequest]) -> None:
        """Answer the requests of a round, then wake the waiters for events."""
        for request in requests:
            result, future = request.result, request.future
            if result is not None and not result.is_duplicate:
                self._appended_events += request.event_count
                self._appended_bytes += len(request.payload)
            if future.done():
                continue
            if result is not None:
                future.set_result(result)
            else:
                assert request.error is not None
                future.set_exception(copy_error(request.error))
        self._wake()

    def close(self) -> None:
        """Refuse further appends, and end all waits for events."""
        if self.is_closed:
            return
        self.is_closed = True
        waiters, self._waiters = self._waiters, []
        for _, future in waiters:
            if not future.done():
                future.set_exception(closed_error())
        self._call_listeners()

    def forget_files(self) -> None:
        """Close the files open for reading."""
        self._cursors.clear()
        for segment in self.writer.view.segments:
            self._cache.forget(segment)

    # -- helpers

    def _count_removable(self, view: LogView, before_ms: int, bytes_max: int | None) -> int:
        """The number of sealed segments for retention to remove."""
        sealed = view.segments[:-1]
        surplus_bytes = 0
        if bytes_max is not None:
            surplus_bytes = sum(map(self._cache.sealed_bytes, sealed)) + view.end_position - bytes_max
        for count, segment in enumerate(sealed):
            surplus_bytes -= self._cache.sealed_bytes(segment) if bytes_max is not None else 1
            if surplus_bytes < 0 and self._cache.index(segment).last_time_ms >= before_ms:
                return count
        return len(sealed)

    def _unreadable(self, error: OSError) -> LogFailedError | ServerBusyError:
        if is_shortage_error(error):
            return shortage_error(error, "read a log")
        return LogFailedError(
            f"The log {self.directory} cannot be read: {error.strerror or error}.",
            next_step="Check the disk.",
        )

    def _remove_listener(self, key: object) -> None:
        self._listeners.pop(key, None)

    def _wake(self) -> None:
        until = self.next_sequence_number
        if self._waiters:
            ready = [waiter for waiter in self._waiters if waiter[0] < until]
            self._waiters = [waiter for waiter in self._waiters if waiter[0] >= until]
            for _, future in ready:
                if not future.done():
                    future.set_result(None)
        self._call_listeners()

    def _call_listeners(self) -> None:
        for listener in list(self._listeners.values()):
            try:
                listener()
            except Exception:  # one listener's error must not cost the others their call
                _logger.exception("A listener of the log %s failed.", self.directory)

    def _read_view(self, view: LogView, start: int, bytes_max: int) -> list[RecordBatch]:
        segment, position = self._locate(view, start)
        is_last = segment is view.segments[-1]
        end = view.end_position if is_last else self._cache.index(segment).end_position
        file, salt = self._cache.file(segment)
        batches, position = read_batches(
            segment,
            file,
            salt,
            position=position,
            end=end,
            start_sequence_number=start,
            bytes_max=bytes_max,
        )
        if not batches:
            raise corrupt_error(segment.path, position, f"the event {start} is missing")
        self._remember(batches[-1].until_sequence_number, segment, position)
        return batches

    def _skip_gaps(self, sequence_number: int) -> int:
        """The number itself, or the first one after a gap that a repair left."""
        for start, until in self._gaps:
            if start <= sequence_number < until:
                return until
        return sequence_number

    def _locate(self, view: LogView, start: int) -> tuple[Segment, int]:
        cursor = self._cursors.get(start)
        if cursor is not None:
            segment, position = cursor
            is_here = segment.base_sequence_number >= view.begin_sequence_number
            if is_here and (
                segment is view.segments[-1] or position < self._cache.index(segment).end_position
            ):
                return cursor
        segment = view.segments[max(bisect_right(view.segments, start, key=_BASE) - 1, 0)]
        index = self._cache.index(segment)
        position = index.end_position if index.is_empty else index.find_sequence_number(start)
        return segment, position

    def _remember(self, sequence_number: int, segment: Segment, position: int) -> None:
        self._cursors.pop(sequence_number, None)
        self._cursors[sequence_number] = (segment, position)
        if len(self._cursors) > _CURSORS_MAX:
            del self._cursors[next(iter(self._cursors))]

    def _find_time(self, view: LogView, time_ms: int) -> int:
        if view.last_enqueued_time_ms is None or time_ms > view.last_enqueued_time_ms:
            return view.next_sequence_number
        low, high = 0, len(view.segments)
        if self._cache.index(view.segments[-1]).is_empty:
            high -= 1  # new, or left empty by a repair: it has no time, and comes after all that have one
        while low < high:
            middle = (low + high) // 2
            if self._cache.index(view.segments[middle]).last_time_ms < time_ms:
                low = middle + 1
            else:
                high = middle
        if low == len(view.segments) or self._cache.index(view.segments[low]).is_empty:
            return view.next_sequence_number
        segment = view.segments[low]
        index = self._cache.index(segment)
        end = view.end_position if low == len(view.segments) - 1 else index.end_position
        file, salt = self._cache.file(segment)
        for position, header in iter_headers(file, salt, index.find_time(time_ms), end):
            if header is None:
                raise corrupt_error(segment.path, position, "no intact batch begins there")
            if header.enqueued_time_ms >= time_ms:
                self._remember(header.base_sequence_number, segment, position)  # the reader starts there
                return header.base_sequence_number
        return view.next_sequence_number

    def __repr__(self) -> str:
        return f"<PartitionLog {self.begin_sequence_number}..{self.next_sequence_number} {self.directory}>"


def closed_error() -> ClosedError:
    return ClosedError("The partition is closed: its event hub was deleted or the service is stopping.")


def copy_error(error: TidegateError) -> TidegateError:
    """A copy for one of several waiters: a shared error would collect the traceback of each."""
    copy = type(error)(error.message, next_step=error.next_step, retry_after_s=error.retry_after_s)
    copy.__cause__ = error.__cause__
    return copy
