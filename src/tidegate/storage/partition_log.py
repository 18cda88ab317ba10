"""The log of one partition in files.

Everything is called on the event loop's thread. Nothing waits but appends, commands, questions for the state
of a producer, and reads of what is not in memory.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Protocol, TypeVar

from tidegate.model.errors import LogFailedError, ServerBusyError, TidegateError
from tidegate.storage.calls_in_turn import CallsInTurn
from tidegate.storage.engine import Bounds, closed_error, copy_error
from tidegate.storage.group_commit import GroupCommit
from tidegate.storage.partition_writer import AppendRequest, PartitionWriter, Request, StateRequest
from tidegate.storage.producers import ProducerState
from tidegate.storage.record import AppendResult, ProducerBatch, RecordBatch, encode_lengths
from tidegate.storage.segments.cold_reads import RECENT_BYTES, ColdReads, HubsInTurn, NotInMemory, Warmed
from tidegate.storage.segments.segment import LogView, Segment, corrupt_error, iter_headers
from tidegate.storage.segments.segment_reader import SegmentCache, read_batches
from tidegate.storage.segments.sparse_index import NO_TIME
from tidegate.storage.write_errors import is_shortage_error, shortage_error

_PLACES_MAX = 256
"""Our choice: places remembered for the next reader, which then begins without a look-up."""

_QUESTIONS_MAX = 16
"""Questions for the state of a producer that a partition has in the queue (our choice: as many clients attach
in a round, which a pass of the event loop can answer). Others wait on the loop until they are cancelled."""

T = TypeVar("T")
Place = tuple[Segment, int, int | None]
"""A segment, a position in it where a batch begins, and the checksum of the batch before; None: unknown."""

_BASE = attrgetter("base_sequence_number")
_logger = logging.getLogger(__name__)


class Admission(Protocol):
    """The limit on queued appends, over all logs."""

    def admit(self, payload_bytes: int) -> None:
        """Count bytes about to be queued. Raises ServerBusyError, ClosedError."""
        ...


class FilePartitionLog:
    """A ``PartitionLog``. Get one from ``LogManager.log``."""

    def __init__(
        self,
        directory: Path,
        writer: PartitionWriter,
        *,
        commit: GroupCommit,
        cache: SegmentCache,
        hubs: HubsInTurn,
        calls: CallsInTurn,
        admission: Admission,
        gaps: tuple[tuple[int, int], ...],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.directory = directory
        self.writer = writer
        """The half that belongs to the writer thread."""
        self.is_closed = False
        """True once the hub is deleted or the service stops: no more events will come."""
        self._commit = commit
        self._cache = cache
        self._hub_id = directory.parent.name
        self._cold_reads = ColdReads(hubs, self._hub_id, loop, calls)
        self._calls = calls
        self._questions = asyncio.Semaphore(_QUESTIONS_MAX)
        """Released once a question was answered, also if its asker is gone: it is in the queue until then."""
        self._admission = admission
        self._gaps = gaps
        self._loop = loop
        self.readers: dict[FileReader, Callable[[], None]] = {}
        """Open readers, and what wakes each."""
        self.waiting: dict[FileReader, None] = {}
        """Readers to wake when there are more events, since they found none: an append costs nothing for a
        receiver without credit."""
        self._places: dict[int, Place] = {}
        self._appended_events = 0
        self._appended_bytes = 0

    @property
    def failure(self) -> TidegateError | None:
        """See ``PartitionLog``."""
        return self.writer.failure

    # -- appending

    def append_nowait(
        self,
        payload: bytes | memoryview,
        lengths: Sequence[int],
        *,
        enqueued_time_ms: int,
        producer: ProducerBatch | None = None,
    ) -> asyncio.Future[AppendResult]:
        """See ``PartitionLog``."""
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

    async def producer_state(self, producer_id: int) -> ProducerState | None:
        """See ``PartitionLog``."""
        if self.is_closed:
            raise closed_error()
        await self._questions.acquire()
        if self.is_closed:
            self._questions.release()
            raise closed_error()
        future: asyncio.Future[ProducerState | None] = self._loop.create_future()
        self._commit.put(self.writer, StateRequest(producer_id, future))
        return await future

    @property
    def producers_known_since(self) -> int:
        """See ``PartitionLog``."""
        return self.writer.producers_known_since

    # -- bounds

    @property
    def view(self) -> LogView:
        """The durable part of the log now."""
        return self.writer.view

    @property
    def known_bounds(self) -> Bounds:
        """See ``PartitionLog``; exact."""
        view = self.writer.view
        return Bounds(
            view.begin_sequence_number,
            view.next_sequence_number,
            view.last_enqueued_time_ms,
            self.writer.histories,
        )

    async def bounds(self) -> Bounds:
        """See ``PartitionLog``."""
        if self.is_closed:
            raise closed_error()
        return self.known_bounds

    @property
    def appended(self) -> tuple[int, int]:
        """Events and bytes stored since the start."""
        return self._appended_events, self._appended_bytes

    @property
    def stored_bytes(self) -> int:
        """Bytes of the segment files."""
        return self.writer.view.stored_bytes

    # -- reading

    def open_reader(self, start_sequence_number: int, wake: Callable[[], None]) -> FileReader:
        """See ``PartitionLog``."""
        reader = FileReader(self, start_sequence_number, self._places.get(start_sequence_number))
        self.readers[reader] = wake
        return reader

    async def read(self, start_sequence_number: int, *, bytes_max: int) -> list[RecordBatch]:
        """See ``PartitionLog``."""
        place, warmed = self._places.get(start_sequence_number), Warmed()
        batches, place = await self._look(
            lambda view: self.read_view(view, start_sequence_number, place, bytes_max, warmed)
        )
        if batches and place is not None:
            self.remember(batches[-1].until_sequence_number, place)
        return batches

    def read_view(
        self, view: LogView, start_sequence_number: int, place: Place | None, bytes_max: int, warmed: Warmed
    ) -> tuple[list[RecordBatch], Place | None]:
        """About ``bytes_max`` bytes of batches from ``start_sequence_number`` on, and the place after them.

        place: where the first batch begins, if known. A read ends with its segment, and after as many batches
        as the loop has time for, so it may be short.
        Raises LogCorruptError, NotInMemory, OSError.
        """
        start = self._skip_gaps(max(start_sequence_number, view.begin_sequence_number))
        if start >= view.next_sequence_number:
            return [], place
        return self._read(view, start, place if start == start_sequence_number else None, bytes_max, warmed)

    async def sequence_number_at_time(self, time_ms: int) -> int:
        """See ``PartitionLog``."""
        warmed = Warmed()
        return await self._look(lambda view: self._find_time(view, time_ms, warmed))

    async def _look(self, look: Callable[[LogView], T]) -> T:
        """The result of ``look``, which is called again once what it misses is in memory."""
        while True:
            view = self.writer.view
            try:
                try:
                    return look(view)
                except NotInMemory as found:
                    missing = found.with_traceback(None)
                loaded: asyncio.Future[Exception | None] = self._loop.create_future()
                done = partial(_set_unless_done, loaded)
                self.load(missing, done)
                try:
                    error = await loaded
                finally:
                    self.forget_load(missing, done)
                if error is not None:
                    raise error
            except OSError as failure:
                if translated := self.read_error(failure, view):
                    raise translated from failure

    def load(self, missing: NotInMemory, done: Callable[[Exception | None], None]) -> None:
        """Read what is missing on another thread, then call ``done`` on the loop with the error, or None."""
        if self.is_closed:
            self._loop.call_soon(done, closed_error())
        else:
            self._cold_reads.load(missing, done)

    def forget_load(self, missing: NotInMemory, done: Callable[[Exception | None], None]) -> None:
        """The caller of ``load`` waits no more; harmless when it is done."""
        self._cold_reads.forget(missing, done)

    def read_error(self, error: Exception, view: LogView) -> Exception | None:
        """The error for a reader of ``view``, one for each; None: try again, since retention has removed a
        segment after the view was taken, and before its file was opened."""
        if isinstance(error, FileNotFoundError):
            if self.writer.view.segments[:1] != view.segments[:1]:
                return None
            return corrupt_error(Path(str(error.filename)), 0, "the file is missing")
        if isinstance(error, OSError):
            return self._unreadable(error)
        return copy_error(error) if isinstance(error, TidegateError) else error

    def remember(self, sequence_number: int, place: Place) -> None:
        """Let the next reader from this number begin at ``place``."""
        self._places.pop(sequence_number, None)
        self._places[sequence_number] = place
        if len(self._places) > _PLACES_MAX:
            del self._places[next(iter(self._places))]

    # -- retention

    async def apply_retention(self, *, before_ms: int, bytes_max: int | None, seal_before_ms: int = 0) -> int:
        """See ``PartitionLog``: whole segments; the active one by time only."""
        if self.is_closed:
            raise closed_error()
        view = self.writer.view
        if not view.segments:
            return 0
        count = self._count_removable(view, before_ms, bytes_max)
        until_base = view.segments[count].base_sequence_number
        active = view.segments[-1].index  # The writer's: it may know more batches than the view.
        assert active is not None
        is_last_expired = count == len(view.segments) - 1 and NO_TIME < active.last_time_ms < before_ms
        is_rolled = is_last_expired or NO_TIME < active.first_time_ms < seal_before_ms
        if count == 0 and not is_rolled:
            return 0

        def remove() -> object:
            # On the writer thread, which may have appended meanwhile: then the segment is not removed.
            is_unchanged = self.writer.view.next_sequence_number == view.next_sequence_number
            return self.writer.remove_segments(
                view.next_sequence_number if is_last_expired and is_unchanged else until_base,
                is_rolled=is_rolled,
            )

        removed = await self._commit.put_command(remove, [self.writer])
        assert isinstance(removed, list)
        for segment in removed:
            self._cache.forget(segment)
        return len(removed)

    # -- called by the manager, on the loop

    def deliver(self, requests: list[Request]) -> None:
        """Answer the requests of a round, then wake the readers that wait for more events."""
        is_more = False
        for request in requests:
            if isinstance(request, StateRequest):
                self._questions.release()
            elif request.result is not None and not request.result.is_duplicate:
                is_more = True
                self._appended_events += request.event_count
                self._appended_bytes += len(request.payload)
            _answer(request)
        if is_more and self.waiting:
            waiting, self.waiting = self.waiting, {}
            self._wake(waiting)

    def close(self) -> None:
        """Refuse further appends, and wake the readers a last time."""
        if not self.is_closed:
            self.is_closed = True
            self._wake(self.readers)

    def forget_files(self) -> None:
        """Close the files open for reading."""
        self._places.clear()
        for segment in self.writer.view.segments:
            self._cache.forget(segment)

    # -- helpers

    def _count_removable(self, view: LogView, before_ms: int, bytes_max: int | None) -> int:
        """The number of sealed segments for retention to remove."""
        sealed = view.segments[:-1]
        surplus_bytes = 0
        if bytes_max is not None:
            surplus_bytes = view.stored_bytes - bytes_max
        for count, segment in enumerate(sealed):
            surplus_bytes -= segment.stored_bytes if bytes_max is not None else 1
            last_time_ms = NO_TIME if segment.last_time_ms is None else segment.last_time_ms
            if surplus_bytes < 0 and last_time_ms >= before_ms:
                return count
        return len(sealed)

    def _unreadable(self, error: OSError) -> LogFailedError | ServerBusyError:
        if is_shortage_error(error):
            return shortage_error(error, "read a log")
        return LogFailedError(
            f"The log {self.directory} cannot be read: {error.strerror or error}.",
            next_step="Check the disk.",
        )

    def _wake(self, readers: Iterable[FileReader]) -> None:
        # There may be thousands: a few in each pass of the event loop.
        self._calls.add(self._hub_id, [reader.wake for reader in readers])

    def wake(self, reader: FileReader) -> None:
        """Wake a reader, unless it was closed."""
        wake = self.readers.get(reader)
        if wake is None:
            return
        try:
            wake()
        except Exception:  # one reader's error must not cost the others their call
            _logger.exception("A reader of the log %s failed.", self.directory)

    def _read(
        self, view: LogView, start: int, place: Place | None, bytes_max: int, warmed: Warmed
    ) -> tuple[list[RecordBatch], Place]:
        segment, position, chain = self._locate(view, start, place)
        is_last = segment is view.segments[-1]
        end = view.end_position if is_last else segment.end_position
        batches, position, chain = read_batches(
            segment,
            self._cache.file(segment, warmed, recent_from=end - RECENT_BYTES if is_last else None),
            position=position,
            chain=chain,
            end=end,
            end_chain=view.chain if is_last else segment.last_chain,
            start_sequence_number=start,
            bytes_max=bytes_max,
        )
        if not batches:
            raise corrupt_error(segment.path, position, f"the event {start} is missing")
        return batches, (segment, position, chain)

    def _skip_gaps(self, sequence_number: int) -> int:
        """The number itself, or the first one after a gap that a repair left."""
        for start, until in self._gaps:
            if start <= sequence_number < until:
                return until
        return sequence_number

    def _locate(self, view: LogView, start: int, place: Place | None) -> Place:
        if place is not None:
            segment, position, _ = place
            is_here = segment.base_sequence_number >= view.begin_sequence_number
            if is_here and (segment is view.segments[-1] or position < segment.end_position):
                return place
        segment = view.segments[max(bisect_right(view.segments, start, key=_BASE) - 1, 0)]
        index = self._cache.index(segment)
        position = index.end_position if index.is_empty else index.find_sequence_number(start)
        return segment, position, None

    def _find_time(self, view: LogView, time_ms: int, warmed: Warmed) -> int:
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
        is_last = segment is view.segments[-1]
        end = view.end_position if is_last else segment.end_position
        file = self._cache.file(segment, warmed, recent_from=end - RECENT_BYTES if is_last else None)
        for position, header in iter_headers(file, segment, index.find_time(time_ms), end):
            if header is None:
                raise corrupt_error(segment.path, position, "no intact batch begins there")
            if header.enqueued_time_ms >= time_ms:
                self.remember(
                    header.base_sequence_number, (segment, position, None)
                )  # the reader starts there
                return header.base_sequence_number
        return view.next_sequence_number

    def __repr__(self) -> str:
        view = self.writer.view
        return (
            f"<FilePartitionLog {view.begin_sequence_number}..{view.next_sequence_number} {self.directory}>"
        )


class FileReader:
    """A ``LogReader``: everything that is durable is here now, or is being read into memory."""

    def __init__(self, log: FilePartitionLog, start_sequence_number: int, place: Place | None) -> None:
        """place: where the batch of the start begins, if known."""
        self._log = log
        self._next = start_sequence_number
        self._place = place
        self._warmed = Warmed()
        self._loading: tuple[NotInMemory, Callable[[Exception | None], None]] | None = None
        """What is being read into memory for it, and what is called then."""
        self._error: Exception | None = None
        """Of the last load, for the next ``take``."""

    def take(self, bytes_max: int) -> list[RecordBatch]:
        """See ``LogReader``."""
        if self._loading is not None:
            return []
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        log = self._log
        while True:
            view = log.view
            try:
                batches, self._place = log.read_view(view, self._next, self._place, bytes_max, self._warmed)
            except NotInMemory as missing:
                self._loading = missing.with_traceback(None), partial(self._on_loaded, view)
                log.load(*self._loading)
                return []
            except OSError as error:
                if translated := log.read_error(error, view):
                    raise translated from error
            else:
                break
        if batches:
            self._next = batches[-1].until_sequence_number
        elif self in log.readers:
            log.waiting[self] = None
        return batches

    def wake(self) -> None:
        """Call its ``wake``, unless it was closed."""
        self._log.wake(self)

    def _on_loaded(self, view: LogView, error: Exception | None) -> None:
        self._loading = None
        self._error = None if error is None else self._log.read_error(error, view)
        self._log.wake(self)

    def close(self) -> None:
        """See ``LogReader``."""
        if self._loading is not None:
            self._log.forget_load(*self._loading)
            self._loading = None
        self._log.waiting.pop(self, None)
        if self._log.readers.pop(self, None) is not None and self._place is not None:
            self._log.remember(self._next, self._place)


def _answer(request: Request) -> None:
    if request.future.done():
        return
    if request.error is not None:
        request.future.set_exception(copy_error(request.error))
    elif isinstance(request, StateRequest):
        request.future.set_result(request.result)
    else:
        assert request.result is not None
        request.future.set_result(request.result)


def _set_unless_done(future: asyncio.Future[Exception | None], error: Exception | None) -> None:
    if not future.done():
        future.set_result(error)
