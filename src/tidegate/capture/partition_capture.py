"""The capture of one partition: decide the next file, write it, continue after it.

    open window ──first of size and time──► planned (saved) ──► written ──► next (saved) ──► open window …

Decisions depend on the partition's log alone (see ``window``), and are saved before they are carried out (see
``state``). Every failure is reported and retried with growing pauses; meanwhile the events stay in the log.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from tidegate.broker import Partition, RecordBatch
from tidegate.capture.avro_file import AvroEncoder, Encoding, StoredEvents
from tidegate.capture.destination import CaptureDestinationError, Destination, Spool
from tidegate.capture.file_journal import FileJournal
from tidegate.capture.state import PartitionState, PlannedFile, StateStore
from tidegate.capture.turns import EncodingShare
from tidegate.capture.window import ClosedWindow, Window, WindowLimits
from tidegate.model.capture import CapturedFile, CaptureProgress, WindowEnd
from tidegate.model.clock import Clock
from tidegate.model.errors import ClosedError, LogCorruptError, LogDivergedError, TidegateError
from tidegate.model.history import find_divergence, history_of
from tidegate.transport.threads import Threads
from tidegate.wire.capture import SYNC_MARKER_BYTES, guessable_marker

T = TypeVar("T")

_READ_BYTES = 256 * 1024
"""Our choice: a read from the page cache blocks the event loop for well under a millisecond."""
_PACE_S = 0.5
"""Our choice: files are not urgent, and reading many batches at once costs less."""
_WAIT_S_MAX = 5.0
"""Most seconds between two checks of the clock: how late a changed clock is noticed."""
_NAME_TRIES_MAX = 1000
_RETRY_S_MIN, _RETRY_S_MAX = 1.0, 60.0

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class CaptureCounts:
    """Counters since the service started, and the last failure."""

    captured_files: int = 0
    captured_events: int = 0
    captured_bytes: int = 0
    """Bytes of events, as stored."""
    missing_events: int = 0
    """Events that retention or a repair removed before they were captured."""
    is_failing: bool = False
    """True while the last attempt failed."""
    last_error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureContext:
    """What the captures of a hub's partitions share."""

    destination: asyncio.Future[Destination]
    """Resolves once it is open."""
    destination_name: str
    """As configured; recorded with each file."""
    file_name: Callable[[str, int], str]
    """A partition id and the file's time (seconds since 1970-01-01 UTC) → the name below the destination."""
    limits: WindowLimits
    """Tests use smaller windows than a user may set."""
    clock: Clock
    threads: Threads
    """For calls that may hang with the destination."""
    encoding: EncodingShare
    """The hub's share of the thread for computation."""
    file_turns: asyncio.Semaphore
    """Limits how many files are written at a time."""
    journal: FileJournal
    """Lists each finished file."""
    directory: Path
    """The service's, for files in progress: errors that are shown do not name it."""
    retry_s_min: float = _RETRY_S_MIN
    """The first pause after a failure."""
    pace_s: float = _PACE_S
    """Seconds between two reads of a partition that is being appended to."""


class PartitionCapture:
    """Captures one partition until its task is cancelled or the partition closes."""

    def __init__(
        self, partition: Partition, shared: CaptureContext, *, state_store: StateStore, token: str
    ) -> None:
        """token: prefix of this partition's unfinished files, and of no other's."""
        self.partition = partition
        self.counts = CaptureCounts()
        self._shared = shared
        self._threads = shared.threads
        self._limits = shared.limits
        self._place = f"{partition.event_hub}/{partition.partition_id}"
        self._destination: Destination
        self._state_store = state_store
        self._token = token
        self._state = PartitionState()
        self._is_again = False
        """Whether an earlier run may have written and listed the planned file."""
        self._window: Window | None = None
        self._failure = ""

    @property
    def backlog_events(self) -> int:
        """Events in the log that are in no finished file; until the state is read, all of them. 0 if the log
        could not be opened."""
        if self.partition.open_error is not None:
            return 0
        start = max(self._state.next_sequence_number, self.partition.begin_sequence_number)
        return max(self.partition.next_sequence_number - start, 0)

    @property
    def backlog_bytes(self) -> int:
        """Their bytes, as far as read: the rest is counted once the previous file is written."""
        planned = self._state.planned
        return (planned.event_bytes if planned else 0) + (self._window.event_bytes if self._window else 0)

    def progress(self) -> CaptureProgress:
        state, partition_id = self._state, self.partition.partition_id
        last_s = state.last_name_s if state.planned is None else None
        return CaptureProgress(
            partition_id=partition_id,
            next_sequence_number=state.next_sequence_number,
            backlog_events=self.backlog_events,
            last_file=None if last_s is None else self._shared.file_name(partition_id, last_s),
            planned_file=None if state.planned is None else state.planned.name,
            last_error=self.counts.last_error if self.counts.is_failing else "",
        )

    async def run(self) -> None:
        """Capture until the partition closes. Cancellation: decided files are written by the next run."""
        try:
            self._state = await self._retry(self._load)
            self._is_again = self._state.planned is not None
            # A partition that closes does not cancel the others' wait.
            self._destination = await asyncio.shield(self._shared.destination)
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
        state = await self._state_store.load() or PartitionState()
        if self.partition.open_error is None:  # else nothing can be read either
            self._check_history(state.next_sequence_number, state.history_id)
            if state.planned is not None:
                self._check_history(state.planned.until_sequence_number, state.planned.history_id)
        return state

    def _check_history(self, resume_point: int, history_id: str | None) -> None:
        """Raises LogDivergedError if the log was restored, and the state was not: see ``model.history``."""
        histories = self.partition.known_ends().histories
        found = find_divergence(resume_point, history_id, histories, where=f"Capture of {self._place}")
        if found is not None:
            raise LogDivergedError(
                found.message,
                next_step="Stop the service, and restore the partition together with control.log and "
                "control.copy from one backup: Capture then continues from its moment.",
            )

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
            batches = await self._retry(partial(self._read, window.until_sequence_number))
            for batch in batches:
                window.add_batch(batch.base_sequence_number, batch.lengths, batch.enqueued_time_ms)
            if not batches:
                window.skip_to(self.partition.begin_sequence_number)
                window.pass_time(self._now_ms())
            if window.missing_events > missing:
                self._report_missing(window.missing_events - missing)
                missing = window.missing_events
            if window.closed is None:
                await (self._wait_appended(window) if not batches else asyncio.sleep(0))
        return window.closed

    async def _plan(self, window: ClosedWindow) -> None:
        """Choose the file's name, and save the decision."""
        find = partial(self._free_name, window.start_ms // 1000)
        name, name_s = await self._retry(lambda: self._threads.run(find))
        planned = PlannedFile(
            name,
            window.start_sequence_number,
            window.until_sequence_number,
            window.event_bytes,
            window.next_start_ms,
            is_full=window.is_full,
            history_id=history_of(window.until_sequence_number - 1, self.partition.known_ends().histories),
            sync_marker=secrets.token_bytes(SYNC_MARKER_BYTES),
        )
        await self._save(replace(self._state, last_name_s=name_s, planned=planned))
        self._window = None

    def _free_name(self, time_s: int) -> tuple[str, int]:
        """The first name from ``time_s`` on that is not in use, by this partition or anything else."""
        if self._state.last_name_s is not None:
            time_s = max(time_s, self._state.last_name_s + 1)
        for candidate_s in range(time_s, time_s + _NAME_TRIES_MAX):
            name = self._shared.file_name(self.partition.partition_id, candidate_s)
            if not self._destination.exists(name):
                return name, candidate_s
        raise CaptureDestinationError(
            f"{_NAME_TRIES_MAX} file names are taken in {self._destination!r}, starting with "
            f"{self._shared.file_name(self.partition.partition_id, time_s)}.",
            next_step="If another service captures a hub of the same name there, use a separate "
            "folder for one of them.",
        )

    async def _write_in_turn(self) -> None:
        # Retry pauses are outside the turn, so that a failing partition does not block the others.
        async with self._shared.file_turns:
            await self._write()

    async def _write(self) -> None:
        """Write the planned file and give it its name."""
        planned = self._state.planned
        assert planned is not None
        # A new token each time: an abandoned call may still be sending its own spool file.
        token = f"{self._token}-{secrets.token_hex(6)}"
        encoder = AvroEncoder(planned.sync_marker or guessable_marker(planned.name))
        spool = await self._threads.run(lambda: Spool(self._destination.spool(token)), release=Spool.discard)
        try:
            missing = await self._copy(planned, encoder, spool)
            if missing and await self._threads.run(lambda: self._destination.exists(planned.name)):
                # Keep an earlier attempt's file: it has events that the log has lost since.
                self._threads.leave(spool.discard)
                await self._note_file(planned, None, None)
                return
            rest = encoder.finish()
            await self._threads.run(lambda: spool.finish(rest))
            await self._threads.run(lambda: self._destination.publish(spool.path, planned.name))
        except BaseException:
            # Not awaited: the task may have been cancelled, and the spool may hang.
            self._threads.leave(spool.discard)
            raise
        await self._note_file(planned, encoder.event_count, spool.size_bytes)
        if missing:
            self._report_missing(missing)
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
        """Copy the planned events that the log holds; returns the number of missing ones."""
        position, end, missing = planned.start_sequence_number, planned.until_sequence_number, 0
        while position < end:
            batches = await self._read(position)
            if not batches:
                return missing + end - position
            events: list[StoredEvents] = []
            for batch in batches:
                base = batch.base_sequence_number
                start, until = min(max(base, position), end), min(batch.until_sequence_number, end)
                missing += start - position
                position = start
                if start < until:
                    lengths = batch.lengths[start - base : until - base]
                    payload = batch.payload[sum(batch.lengths[: start - base]) :]
                    events.append(StoredEvents(start, batch.enqueued_time_ms, payload, lengths))
                    position = until
            encoding = Encoding(encoder, events)
            while not encoding.is_done:
                data = await self._shared.encoding.run(encoding.run)
                await self._threads.run(partial(spool.write, data))
        return missing

    async def _note_file(self, planned: PlannedFile, event_count: int | None, file_bytes: int | None) -> None:
        """Add a finished file to the journal; a failure is only logged, since nothing depends on it."""
        file = CapturedFile(
            name=planned.name,
            destination=self._shared.destination_name,
            partition_id=self.partition.partition_id,
            start_sequence_number=planned.start_sequence_number,
            until_sequence_number=planned.until_sequence_number,
            event_count=event_count,
            file_bytes=file_bytes,
            window_start_ms=(self._state.last_name_s or 0) * 1000,
            window_end_ms=planned.next_start_ms,
            written_at_ms=self._now_ms(),
            closed_by=WindowEnd.SIZE if planned.is_full else WindowEnd.TIME,
        )
        try:
            await self._threads.run_whole(partial(self._shared.journal.append, file, is_again=self._is_again))
        except OSError as error:
            _logger.warning("%s was captured, but cannot be added to the list of files: %s", file.name, error)

    async def _advance(self) -> None:
        """Continue after the file that was written."""
        planned = self._state.planned
        assert planned is not None
        await self._save(
            replace(
                self._state,
                next_sequence_number=planned.until_sequence_number,
                window_start_ms=planned.next_start_ms,
                planned=None,
                history_id=planned.history_id,
            )
        )

    # -- helpers

    async def _save(self, state: PartitionState) -> None:
        await self._retry(lambda: self._state_store.save(state))
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
                await asyncio.sleep(self._shared.pace_s)

    async def _read(self, position: int) -> list[RecordBatch]:
        if self.partition.is_closed:
            raise ClosedError("The partition is closed.")
        return await self.partition.read(position, bytes_max=_READ_BYTES)

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call until it succeeds; logs when failures begin and end."""
        pause_s = self._shared.retry_s_min
        while True:
            try:
                result = await call()
            except ClosedError:
                raise
            except (TidegateError, OSError) as error:
                self._report_failure(error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _RETRY_S_MAX)
            else:
                if self.counts.is_failing:
                    self.counts.is_failing = False
                    _logger.warning("Capture of %s has resumed.", self._place)
                return result

    def _report_failure(self, error: TidegateError | OSError) -> None:
        is_news = not self.counts.is_failing or self._failure != str(error)
        self._failure = str(error)
        # Shown to policies of the hub.
        shown = (isinstance(error, TidegateError) and error.remote_text) or self._failure
        self.counts.last_error = shown.replace(str(self._shared.directory), "…")
        self.counts.is_failing = True
        if is_news:
            level = (
                logging.ERROR if isinstance(error, (LogCorruptError, LogDivergedError)) else logging.WARNING
            )
            _logger.log(
                level,
                "Capture of %s is blocked, %d events behind: %s",
                self._place,
                self.backlog_events,
                error,
            )

    def _report_missing(self, count: int) -> None:
        self.counts.missing_events += count
        _logger.error(
            "Capture of %s has lost %d events: the log no longer had them. Capture was "
            "blocked for longer than retention, or a repair removed them.",
            self._place,
            count,
        )

    def _now_ms(self) -> int:
        return int(self._shared.clock.now_utc().timestamp() * 1000)

    def __repr__(self) -> str:
        state = f"next={self._state.next_sequence_number} behind={self.backlog_events}"
        return f"<PartitionCapture {self._place} {state}>"
