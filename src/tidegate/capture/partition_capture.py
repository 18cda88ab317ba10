"""The capture of one partition: decide the next file, write it, go on behind it.

    open window ──first of size and time──► planned (saved) ──► written ──► next (saved) ──► open window …

What is decided comes from the partition's log alone (see ``window``), and is saved before it is done (see
``state``). Whatever fails is told and tried again with growing pauses; meanwhile the events stay in the log.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

from tidegate.broker import Partition, RecordBatch
from tidegate.capture.avro_file import AvroEncoder, encode_in_pieces
from tidegate.capture.destination import CaptureDestinationError, Destination, Spool
from tidegate.capture.file_journal import FileNotes
from tidegate.capture.state import PartitionState, PlannedFile, StateStore
from tidegate.capture.window import ClosedWindow, Window, WindowLimits
from tidegate.model.capture import CaptureProgress
from tidegate.model.clock import Clock
from tidegate.model.errors import ClosedError, LogCorruptError, TidegateError
from tidegate.transport.threads import Threads

T = TypeVar("T")

_READ_BYTES = 256 * 1024
"""Our choice: a read takes the event loop well under a millisecond, out of the page cache."""
_PACE_S = 0.5
"""Our choice: a file has time, and looking at many batches at once is cheaper."""
_WAIT_S_MAX = 5.0
"""Seconds between two looks at the clock where nothing happens: how late a clock that was set is noticed."""
_NAME_TRIES_MAX = 1000
_RETRY_S_MIN, _RETRY_S_MAX = 1.0, 60.0

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class CaptureCounts:
    """What was captured since the service started, and what is behind."""

    captured_files: int = 0
    captured_events: int = 0
    captured_bytes: int = 0
    """Bytes of events, as stored."""
    missing_events: int = 0
    """Events that retention (or a repair of the log) took before they were captured."""
    is_failing: bool = False
    """True while what was tried last failed."""
    last_error: str = ""


class PartitionCapture:
    """Captures one partition until its task is cancelled or the partition closes."""

    def __init__(
        self,
        partition: Partition,
        *,
        destination: asyncio.Future[Destination],
        state_store: StateStore,
        limits: WindowLimits,
        file_name: Callable[[str, int], str],
        token: str,
        clock: Clock,
        threads: Threads,
        encoding_threads: Threads,
        file_turns: asyncio.Semaphore,
        notes: FileNotes,
        retry_s_min: float = _RETRY_S_MIN,
        pace_s: float = _PACE_S,
    ) -> None:
        """destination: once it is open. limits: smaller windows than a user may set are for tests.

        file_name: from a partition id and the seconds of its time (since 1970-01-01 UTC) to a name below the
        destination. token: what this partition's unfinished files begin with, and those of no other.
        threads: for what may hang with the destination; encoding_threads: for what only computes.
        file_turns: bounds how many files are written at a time. notes: told of each finished file.
        retry_s_min: the first pause after a failure. pace_s: seconds between two looks at a partition that is
        being appended to.
        """
        self.partition = partition
        self.counts = CaptureCounts()
        self._place = f"{partition.event_hub}/{partition.partition_id}"
        self._opened = destination
        self._destination: Destination
        self._state_store = state_store
        self._limits = limits
        self._file_name = file_name
        self._token = token
        self._clock = clock
        self._threads = threads
        self._encoding_threads = encoding_threads
        self._file_turns = file_turns
        self._notes = notes
        self._retry_s_min: Final = retry_s_min
        self._pace_s: Final = pace_s
        self._state = PartitionState()
        self._is_again = False
        """Whether the planned file may have been written, and noted, by an earlier run."""
        self._window: Window | None = None

    @property
    def backlog_events(self) -> int:
        """Events in the log that are in no finished file; all of them until the state is read."""
        start = max(self._state.next_sequence_number, self.partition.begin_sequence_number)
        return max(self.partition.next_sequence_number - start, 0)

    @property
    def backlog_bytes(self) -> int:
        """Their bytes, as far as they were looked at: the rest follows once the file before is written."""
        planned = self._state.planned
        return (planned.event_bytes if planned else 0) + (self._window.event_bytes if self._window else 0)

    def progress(self) -> CaptureProgress:
        """How far it is now."""
        state, partition_id = self._state, self.partition.partition_id
        is_one_written = state.last_name_s is not None and state.planned is None
        return CaptureProgress(
            partition_id=partition_id,
            next_sequence_number=state.next_sequence_number,
            backlog_events=self.backlog_events,
            last_file=self._file_name(partition_id, state.last_name_s or 0) if is_one_written else None,
            planned_file=None if state.planned is None else state.planned.name,
            last_error=self.counts.last_error if self.counts.is_failing else "",
        )

    async def run(self) -> None:
        """Capture; returns when the partition closes. Cancellation: what was decided is done next time."""
        try:
            self._state = await self._retry(self._load)
            self._is_again = self._state.planned is not None
            # A partition that ends does not end the waiting of the others.
            self._destination = await asyncio.shield(self._opened)
            await self._retry(self._discard_spools)
            while True:
                if self._state.planned is None:
                    window = await self._wait_window()
                    await self._plan(window)
                await self._retry(self._write_in_turn)
                await self._advance()
                self._is_again = False
        except ClosedError:
            return

    # -- the steps

    async def _load(self) -> PartitionState:
        state = await self._threads.run_whole(self._state_store.load)
        return state if state is not None else PartitionState()

    async def _discard_spools(self) -> None:
        await self._threads.run(lambda: self._destination.discard(f"{self._token}-"))

    async def _wait_window(self) -> ClosedWindow:
        """Follow the log until the open window closes."""
        state = self._state
        window = self._window = Window(
            self._limits, start_sequence_number=state.next_sequence_number, start_ms=state.window_start_ms
        )
        missing = 0
        while window.closed is None:
            batches = await self._retry_read(window.until_sequence_number)
            for batch in batches:
                window.add_batch(batch.base_sequence_number, batch.lengths, batch.enqueued_time_ms)
            if not batches:
                window.skip_to(self.partition.begin_sequence_number)
                window.pass_time(self._now_ms())
            if window.missing_events > missing:
                self._tell_missing(window.missing_events - missing)
                missing = window.missing_events
            if window.closed is None:
                await (self._wait_appended(window) if not batches else asyncio.sleep(0))
        return window.closed

    async def _plan(self, window: ClosedWindow) -> None:
        """Decide the file's name, and save the decision."""

        async def name_file() -> tuple[str, int]:
            return await self._threads.run(lambda: self._free_name(window.start_ms // 1000))

        name, name_s = await self._retry(name_file)
        planned = PlannedFile(
            name,
            window.start_sequence_number,
            window.until_sequence_number,
            window.event_bytes,
            window.next_start_ms,
            is_full=window.event_bytes >= self._limits.size_bytes,
        )
        await self._save(replace(self._state, last_name_s=name_s, planned=planned))
        self._window = None

    def _free_name(self, time_s: int) -> tuple[str, int]:
        """The first name from ``time_s`` on that this partition has not given, and nobody else either."""
        if self._state.last_name_s is not None:
            time_s = max(time_s, self._state.last_name_s + 1)
        for candidate_s in range(time_s, time_s + _NAME_TRIES_MAX):
            name = self._file_name(self.partition.partition_id, candidate_s)
            if not self._destination.exists(name):
                return name, candidate_s
        raise CaptureDestinationError(
            f"{_NAME_TRIES_MAX} file names are taken in {self._destination!r}, starting with "
            f"{self._file_name(self.partition.partition_id, time_s)}.",
            next_step="If another service captures a hub of the same name there, use a separate "
            "folder for one of them.",
        )

    async def _write_in_turn(self) -> None:
        # A pause after a failure is outside: a damaged partition takes no turn from the others.
        async with self._file_turns:
            await self._write()

    async def _write(self) -> None:
        """Write the planned file and give it its name."""
        planned = self._state.planned
        assert planned is not None
        # Never a token again: a call that was given up with its task may still be sending its own spool.
        token = f"{self._token}-{secrets.token_hex(6)}"
        encoder = AvroEncoder(planned.name)
        spool = await self._threads.run(lambda: Spool(self._destination.spool(token)), release=Spool.discard)
        try:
            missing = await self._copy(planned, encoder, spool)
            if missing and await self._threads.run(lambda: self._destination.exists(planned.name)):
                # The file of an earlier attempt: it has what the log has lost since, and is to stay.
                self._threads.leave(spool.discard)
                await self._note_file(planned, None, None)
                return
            rest = encoder.finish()
            await self._threads.run(lambda: spool.finish(rest))
            await self._threads.run(lambda: self._destination.publish(spool.path, planned.name))
        except BaseException:
            # The task may have been cancelled, and the spool may hang: nobody waits for this.
            self._threads.leave(spool.discard)
            raise
        await self._note_file(planned, encoder.event_count, spool.size_bytes)
        if missing:
            self._tell_missing(missing)
        if encoder.undecodable_count:
            _logger.warning(
                "%s has %d events that are not AMQP messages; they are written as stored.",
                planned.name,
                encoder.undecodable_count,
            )
        self.counts.captured_files += 1
        self.counts.captured_events += encoder.event_count
        self.counts.captured_bytes += planned.event_bytes
        _logger.info(
            "captured %d events of %s to %s",
            encoder.event_count,
            self._place,
            planned.name,
            extra={
                "event_hub": self.partition.event_hub,
                "partition_id": self.partition.partition_id,
                "events": encoder.event_count,
                "file": planned.name,
            },
        )

    async def _copy(self, planned: PlannedFile, encoder: AvroEncoder, spool: Spool) -> int:
        """Copy the planned events that the log holds; returns how many it does not hold."""
        position, end, missing = planned.start_sequence_number, planned.until_sequence_number, 0
        while position < end:
            batches = self._read(position)
            if not batches:
                return missing + end - position
            for batch in batches:
                base = batch.base_sequence_number
                start, until = min(max(base, position), end), min(batch.until_sequence_number, end)
                missing += start - position
                position = start
                if start < until:
                    lengths = batch.lengths[start - base : until - base]
                    payload = batch.payload[sum(batch.lengths[: start - base]) :]
                    encode = partial(
                        encode_in_pieces, encoder, start, batch.enqueued_time_ms, payload, lengths
                    )
                    data = await self._encoding_threads.run(encode)
                    await self._threads.run(partial(spool.write, data))
                    position = until
        return missing

    async def _note_file(self, planned: PlannedFile, event_count: int | None, file_bytes: int | None) -> None:
        """Have a finished file listed. Nothing depends on it."""
        is_full = planned.is_full
        if is_full is None:
            is_full = planned.event_bytes >= self._limits.size_bytes
        note = partial(
            self._notes.add,
            planned,
            partition_id=self.partition.partition_id,
            window_start_ms=(self._state.last_name_s or 0) * 1000,
            is_full=is_full,
            event_count=event_count,
            file_bytes=file_bytes,
            written_at_ms=self._now_ms(),
            is_again=self._is_again,
        )
        await self._threads.run_whole(note)

    async def _advance(self) -> None:
        """Go on behind the file that was written."""
        planned = self._state.planned
        assert planned is not None
        await self._save(
            replace(
                self._state,
                next_sequence_number=planned.until_sequence_number,
                window_start_ms=planned.next_start_ms,
                planned=None,
            )
        )

    # -- helpers

    async def _save(self, state: PartitionState) -> None:
        async def save() -> None:
            await self._threads.run_whole(lambda: self._state_store.save(state))

        await self._retry(save)
        self._state = state

    async def _wait_appended(self, window: Window) -> None:
        """Wait for more events, or until the window's time may be over."""
        wait_s = _WAIT_S_MAX
        if window.start_ms is not None:
            remaining_s = (window.start_ms + self._limits.time_ms - self._now_ms()) / 1000
            wait_s = min(max(remaining_s, 0.001), _WAIT_S_MAX)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self.partition.wait_appended(window.until_sequence_number)
                await asyncio.sleep(self._pace_s)

    async def _retry_read(self, position: int) -> list[RecordBatch]:
        async def read() -> list[RecordBatch]:
            return self._read(position)

        return await self._retry(read)

    def _read(self, position: int) -> list[RecordBatch]:
        if self.partition.is_closed:
            raise ClosedError("The partition is closed.")
        return self.partition.read_nowait(position, bytes_max=_READ_BYTES)

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """What ``call`` returns, once it does; failures are told when they begin and when they end."""
        pause_s = self._retry_s_min
        while True:
            try:
                result = await call()
            except ClosedError:
                raise
            except (TidegateError, OSError) as error:
                self._tell_failure(error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _RETRY_S_MAX)
            else:
                if self.counts.is_failing:
                    self.counts.is_failing = False
                    _logger.warning("Capture of %s has resumed.", self._place)
                return result

    def _tell_failure(self, error: TidegateError | OSError) -> None:
        is_news = not self.counts.is_failing or self.counts.last_error != str(error)
        self.counts.is_failing, self.counts.last_error = True, str(error)
        if is_news:
            level = logging.ERROR if isinstance(error, LogCorruptError) else logging.WARNING
            _logger.log(
                level,
                "Capture of %s is blocked, %d events behind: %s",
                self._place,
                self.backlog_events,
                error,
            )

    def _tell_missing(self, count: int) -> None:
        self.counts.missing_events += count
        _logger.error(
            "Capture of %s has lost %d events: the log no longer had them. Capture was "
            "blocked for longer than retention, or a repair removed them.",
            self._place,
            count,
        )

    def _now_ms(self) -> int:
        return int(self._clock.now_utc().timestamp() * 1000)

    def __repr__(self) -> str:
        state = f"next={self._state.next_sequence_number} behind={self.backlog_events}"
        return f"<PartitionCapture {self._place} {state}>"
