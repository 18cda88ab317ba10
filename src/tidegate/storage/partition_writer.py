"""The writing half of a partition's log. Only the writer thread calls it (recovery creates it before that).

Theory of operation. A round is ``write`` (all queued requests, one gathered write), ``sync``, ``finish``:

    tail        what is written, or about to be: next sequence number, time, position
    view        what is durable: readers see this, acknowledgements follow it

What ``journal_part`` returns is durable once the journal has it. ``sync`` is then left out, and the segment
is synced later: by ``sync_journaled``, with the next ``sync``, or before another segment begins.

If a write fails for lack of space, it is cut off the file, the tail is reset, and its requests fail with
LogFullError; the next round finds the log unchanged. The same holds, with ServerBusyError, if the process is
short of descriptors or memory. Any other failed write, and any failed sync, ends this partition's appends
until a restart has verified the file: after a failed sync the system may have dropped the data it could not
write and report the next sync as a success, so nothing after it may be acknowledged (our choice: refusing
until restart is the one answer that is right on every file system). Other partitions continue.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.model.errors import LogFailedError, LogFullError, ServerBusyError, TidegateError
from tidegate.model.history import History
from tidegate.storage.files import Files, WritableFile, replace_whole, write_all
from tidegate.storage.journal.records import JournalPart
from tidegate.storage.manifest import Manifest
from tidegate.storage.manifest_writer import ManifestWriter, note_end
from tidegate.storage.options import LogOptions
from tidegate.storage.producers import ProducerState, ProducerTable
from tidegate.storage.record import (
    HEADER_BYTES,
    AppendResult,
    ProducerBatch,
    body_crc,
    body_crc_of,
    checksum_of,
    encode_batch,
)
from tidegate.storage.segments.segment import (
    SEGMENT_HEADER_BYTES,
    LogView,
    Segment,
    SegmentHeader,
    encode_segment_header,
    segment_path,
)
from tidegate.storage.segments.sparse_index import SparseIndex
from tidegate.storage.write_errors import Reserve, is_full_error, is_shortage_error, shortage_error

if TYPE_CHECKING:
    import asyncio

_logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class AppendRequest:
    """A queued append, and its outcome."""

    payload: bytes
    lengths: bytes
    """The encoded lengths table."""
    event_count: int
    enqueued_time_ms: int
    producer: ProducerBatch | None
    future: asyncio.Future[AppendResult]
    """Resolved on the event loop only; the writer thread only checks whether it was cancelled."""
    result: AppendResult | None = None
    error: TidegateError | None = None
    """Both None: cancelled before it was written, and wholly absent."""

    def body_crc(self) -> int:
        """The checksum of the batch in the log."""
        return body_crc(self.payload, self.lengths)


@dataclass(slots=True, eq=False)
class StateRequest:
    """A queued question for the state of an idempotent producer, and its outcome.

    It is one of the requests of a round like an append: the answer is of the round's end, and durable.
    """

    producer_id: int
    future: asyncio.Future[ProducerState | None]
    """As of ``AppendRequest``."""
    result: ProducerState | None = None
    error: TidegateError | None = None


Request = AppendRequest | StateRequest


@dataclass(slots=True)
class _Written:
    """A batch of the current round: written or about to be, not durable yet."""

    request: AppendRequest
    result: AppendResult
    position: int
    length: int
    chain_before: int
    chain: int
    """The checksum of the batch."""
    state_before: ProducerState | None


class PartitionWriter:
    """Appends to one partition; see the module's theory of operation."""

    def __init__(
        self,
        directory: Path,
        *,
        files: Files,
        options: LogOptions,
        reserve: Reserve,
        view: LogView,
        manifest: ManifestWriter,
        producers: ProducerTable,
        unsaved_bytes: int = 0,
    ) -> None:
        """view, manifest: as recovered, all of it durable. unsaved_bytes: how much of the view the saved
        manifest does not cover.
        """
        self._directory = directory
        self._files = files
        self._options = options
        self._reserve = reserve
        self._producers = producers
        self.view = view
        self.failure: TidegateError | None = None
        """Why it refuses appends; None if it accepts them."""
        self._refusal: TidegateError | None = None
        """The last reason for refusing batches that may be sent again."""
        self._file: WritableFile | None = None
        self._manifest = manifest
        self._is_active = manifest.is_last_active
        """Whether the last segment takes batches; otherwise the next append begins another."""
        self._chain = view.chain
        self._position = view.end_position
        self._next_sequence_number = view.next_sequence_number
        self._last_time_ms = view.last_enqueued_time_ms
        self._unsaved_bytes = unsaved_bytes
        """Bytes made durable since the manifest was last saved."""
        self._is_cut = False
        """Whether bytes were cut off the file since its last sync."""
        self._buffers: list[bytes] = []
        self._buffered: list[_Written] = []
        self._unsynced: list[_Written] = []
        self._unsynced_buffers: list[bytes] = []
        """The bytes of ``_unsynced``."""
        self.journaled = 0
        """The number of the last round of which the journal has a record; see ``Journal``."""
        self._synced = 0
        """The last such round that is durable in the segment."""
        self._sync_lock = threading.Lock()
        """Held to sync a segment, and to say that it failed: no sync takes the error of another."""
        self._duplicates: list[tuple[AppendRequest, AppendResult]] = []
        self._questions: list[StateRequest] = []

    # -- a round

    def write(self, requests: list[Request]) -> None:
        """Write the requests in order; afterwards each has an error, or waits for ``sync`` and ``finish``."""
        self._questions = [request for request in requests if isinstance(request, StateRequest)]
        if not self._reserve.is_whole():
            full = self.failure or self._full_error()
            for request in requests:
                request.error = full
            return
        for number, request in enumerate(requests):
            if isinstance(request, StateRequest) or request.future.cancelled():
                continue
            if self.failure is not None:
                request.error = self.failure
                continue
            try:
                if not self._manifest.is_begun:
                    self._begin_history()
                self._stage(request)
            except (LogFullError, LogFailedError, ServerBusyError) as error:
                # Later requests of the round fail with it: none may overtake an earlier one.
                for later in requests[number:]:
                    later.error = error
                return
            except TidegateError as error:
                request.error = error
        self._flush()

    def journal_part(self) -> JournalPart | None:
        """What was written and is not durable yet, for the journal; None: there is nothing, or ``sync`` is
        needed."""
        if not self._unsynced or self._is_cut or self.failure is not None:
            return None
        header, last = self.view.segments[-1].header, self._unsynced[-1]
        return JournalPart(
            header.log_id,
            header.base_sequence_number,
            header.salt,
            self._unsynced[0].position,
            last.result.until_sequence_number,
            last.chain,
            self._unsynced_buffers,
        )

    def sync(self, *, is_journaled_too: bool = False) -> None:
        """Make written batches durable. A failure ends this partition's appends.

        is_journaled_too: also if only the journal has made something durable since the last sync.
        """
        is_behind = is_journaled_too and self._synced < self.journaled
        if not self._unsynced and not self._is_cut and not is_behind:
            return
        with self._sync_lock:
            failure = self.failure
            if failure is None:
                assert self._file is not None
                try:
                    self._file.sync()
                    self._is_cut, self._synced = False, self.journaled
                    return
                except OSError as error:
                    failure = self._fail(error, "sync")
        self._cut_off(self.view.end_position)
        for written in self._unsynced:
            written.request.error = failure
        self._unsynced, self._unsynced_buffers = [], []

    def sync_journaled(self, count: int) -> bool:
        """Make what the journal had up to a round durable in the segment; see ``journal.Source``."""
        with self._sync_lock:
            if self._synced >= count:
                return True
            if self.failure is not None:
                return False
            # A descriptor of its own: the other may be closed, and each gets the error of a failed sync.
            file = self._files.open_writable(self.view.segments[-1].path)
            try:
                file.sync()
            except OSError as error:
                self._fail(error, "sync")
                return False
            finally:
                file.close()
            self._synced = count
            return True

    def forget_journaled(self) -> None:
        """The log was deleted: nothing of it needs to become durable."""
        with self._sync_lock:
            self._synced = self.journaled

    def finish(self) -> None:
        """Show readers what is durable now, and give each request its result."""
        self._publish()
        for request, result in self._duplicates:
            # The first copy may be part of this very round.
            if result.until_sequence_number <= self.view.next_sequence_number:
                request.result = result
            else:
                request.error = self.failure or self._refusal or self._full_error()
        self._duplicates = []
        for question in self._questions:
            # Only now: until here, a batch in the table could fail.
            question.result = self._producers.get(question.producer_id)
            question.error = self.failure
        self._questions = []
        if self._unsaved_bytes >= self._options.save_interval_bytes and self.failure is None:
            self.save_manifest()

    def abort(self, requests: list[Request], error: Exception) -> None:
        """Refuse appends after an internal error; requests without a result get an error."""
        self._duplicates, self._questions, self._buffers, self._buffered = [], [], [], []
        self._unsynced, self._unsynced_buffers = [], []
        failure = self.failure or self._fail(error, "step of the writer")
        self._cut_off(self.view.end_position)
        for request in requests:
            if request.result is None and request.error is None:
                request.error = failure

    def _stage(self, request: AppendRequest) -> None:
        """Add a request to the buffers. Raises a TidegateError that concerns this request."""
        if request.producer is not None:
            stored = self._producers.check(request.producer, request.event_count, request.body_crc)
            if stored is not None:
                self._duplicates.append((request, stored))
                return
        # Begin a new segment if the batch does not fit into the active one.
        length = HEADER_BYTES + len(request.lengths) + len(request.payload)
        is_first = self._position == SEGMENT_HEADER_BYTES
        if not self._is_active or (
            not is_first and self._position + length > self._options.segment_bytes_max
        ):
            self._roll()
        start = self._next_sequence_number
        until = start + request.event_count
        time_ms = request.enqueued_time_ms  # never before that of the previous batch
        if self._last_time_ms is not None and time_ms < self._last_time_ms:
            time_ms = self._last_time_ms
        header = encode_batch(
            request.payload,
            request.lengths,
            request.event_count,
            seed=self.view.segments[-1].seed,
            chain=self._chain,
            base_sequence_number=start,
            enqueued_time_ms=time_ms,
            durable_position=self.view.end_position,
            producer=request.producer,
        )
        before: ProducerState | None = None
        if request.producer is not None:
            before = self._producers.record(
                request.producer, request.event_count, start, time_ms, body_crc_of(header)
            )
        result = AppendResult(start, until, time_ms)
        chain = checksum_of(header)
        self._buffers += (header, request.payload)
        self._buffered.append(_Written(request, result, self._position, length, self._chain, chain, before))
        self._chain = chain
        self._position += length
        self._next_sequence_number = until
        self._last_time_ms = time_ms

    def _flush(self) -> TidegateError | None:
        """Write the buffers. If that fails, resets the tail, fails the requests and returns the error."""
        if not self._buffered:
            return None
        buffers, self._buffers = self._buffers, []
        buffered, self._buffered = self._buffered, []
        try:
            write_all(self._open_file(), buffers, buffered[0].position)
        except OSError as error:
            self._take_back(buffered)
            is_whole = self._cut_off(self._position)
            failure = (self._passing_error(error) if is_whole else None) or self._fail(error, "write")
            for written in buffered:
                written.request.error = failure
            return failure
        self._unsynced += buffered
        self._unsynced_buffers += buffers
        return None

    def _take_back(self, buffered: list[_Written]) -> None:
        for written in reversed(buffered):
            producer = written.request.producer
            if producer is not None:
                self._producers.restore(producer.producer_id, written.state_before)
        self._position = buffered[0].position
        self._chain = buffered[0].chain_before
        self._next_sequence_number = buffered[0].result.start_sequence_number
        last = self._unsynced[-1].result.enqueued_time_ms if self._unsynced else None
        self._last_time_ms = self.view.last_enqueued_time_ms if last is None else last

    def _publish(self) -> None:
        if not self._unsynced:
            return
        segment = self.view.segments[-1]
        assert segment.index is not None
        for written in self._unsynced:
            result = written.result
            segment.index.add_batch(
                result.start_sequence_number,
                result.until_sequence_number,
                result.enqueued_time_ms,
                written.position,
                written.length,
            )
            self._unsaved_bytes += written.length
            written.request.result = result
        self._producers.trim()
        last = self._unsynced[-1]
        self._unsynced, self._unsynced_buffers = [], []
        self.view = LogView(
            self.view.segments,
            last.position + last.length,
            last.result.until_sequence_number,
            last.result.enqueued_time_ms,
            last.chain,
        )

    @property
    def producers_known_since(self) -> int:
        """See ``PartitionLog``."""
        return self._producers.known_since

    # -- segments

    def _roll(self) -> None:
        """Begin a new segment, or leave the log unchanged: LogFullError, ServerBusyError, LogFailedError."""
        # All segments but the last are complete and synced: recovery relies on it.
        error = self._flush()
        self.sync(is_journaled_too=True)
        self._publish()
        if error is not None or self.failure is not None:
            raise self.failure or error or self._full_error()
        base = self._next_sequence_number
        path = segment_path(self._directory, base)
        salt = int.from_bytes(os.urandom(4), "little")
        segment = Segment(path, SegmentHeader(self._manifest.log_id, base, salt, self._chain))
        segment.is_sealed = False
        segment.index = SparseIndex(
            self._options.index_interval_bytes, start_position=SEGMENT_HEADER_BYTES, base_sequence_number=base
        )
        view = self.view
        try:
            file = segment.written = self._create_segment(path, segment.header)
        except OSError as failure:
            raise self._not_begun(path, failure) from failure
        if self._is_active:
            note_end(view.segments[-1], view)
            view.segments[-1].is_sealed = True
        self.view = LogView(
            (*view.segments, segment), SEGMENT_HEADER_BYTES, base, self._last_time_ms, self._chain
        )
        self._is_active = True
        try:
            # Before the first batch: a segment that the manifest lists cannot be missing without notice.
            self._save()
        except OSError as failure:
            # A start may find what was written of the manifest: the segment before stays sealed.
            self.view, self._is_active = view, False
            file.close()
            raise self._not_begun(path, failure) from failure
        if self._file is not None:
            self._file.close()
        if view.segments:
            self._save_index(view.segments[-1])
        self._file, self._position, self._is_cut = file, SEGMENT_HEADER_BYTES, False

    def _not_begun(self, path: Path, error: OSError) -> TidegateError:
        with contextlib.suppress(OSError):
            self._files.remove(path)
        return self._passing_error(error) or self._fail(error, "new segment")

    def _create_segment(self, path: Path, header: SegmentHeader) -> WritableFile:
        file = self._files.create(path)
        try:
            write_all(file, [encode_segment_header(header)], 0)
            file.sync()
            self._files.sync_directory(self._directory)
        except OSError:
            file.close()
            raise
        return file

    def _save_index(self, segment: Segment) -> None:
        if segment.index is None:
            return
        encoded = segment.index.encode(segment.seed)
        try:
            replace_whole(self._files, segment.index_path, encoded, is_durable=False)
        except OSError as error:
            _logger.warning(
                "The index of %s was not written (%s); it is rebuilt when needed.", segment, error
            )

    def remove_segments(self, until_base: int, *, is_rolled: bool) -> list[Segment]:
        """Remove the sealed segments that begin before ``until_base``; returns them, for readers to forget.

        is_rolled: begin a new segment first, so that the active one can be removed, now or later.
        Raises LogFullError, ServerBusyError, LogFailedError.
        """
        return self._reserve.lend(partial(self._remove_segments, until_base, is_rolled=is_rolled))

    def _remove_segments(self, until_base: int, *, is_rolled: bool) -> list[Segment]:
        if self.failure is not None:
            raise self.failure
        if is_rolled and self.view.end_position > SEGMENT_HEADER_BYTES:
            self._roll()
        removed = [
            segment for segment in self.view.segments[:-1] if segment.base_sequence_number < until_base
        ]
        if not removed:
            return []
        view = self.view
        self.view = replace(view, segments=view.segments[len(removed) :])
        # In both copies first: that they are removed must not be forgotten with one of them.
        try:
            begin = self.view.segments[0].base_sequence_number
            self._save(is_both=True, removed_until=begin)
        except OSError as error:
            self.view = view
            raise self._passing_error(error) or self._full_error() from error
        kept = {segment.path for segment in self.view.segments}
        for segment in removed:
            if segment.path not in kept:
                self._files.remove(segment.path)
            self._files.remove(segment.index_path)
        return removed

    # -- the manifest

    @property
    def histories(self) -> tuple[History, ...]:
        """See ``Bounds``; the same until the log is closed."""
        return self._manifest.histories

    def _begin_history(self) -> None:
        """Raises LogFullError, ServerBusyError, LogFailedError."""
        try:
            self._manifest.begin_history(self.view, self._producers)
        except OSError as error:
            raise self._passing_error(error) or self._fail(error, "save of the manifest") from error

    def _save(self, *, is_both: bool = False, **changes: Any) -> None:
        self._manifest.save(self.view, self._producers, is_active=self._is_active, is_both=is_both, **changes)
        self._unsaved_bytes = 0

    @property
    def needs_save(self) -> bool:
        """Whether events were stored since the manifest was last saved."""
        return self.failure is None and self._unsaved_bytes > 0

    def save_manifest(self) -> None:
        """Save the durable state; a failure is logged (a start then reads more of the log)."""
        try:
            self._save()
        except OSError as error:
            self._unsaved_bytes = 1
            _logger.warning("The manifest in %s was not saved: %s.", self._directory, error)

    def save_mark(self) -> None:
        """Note how far the log went; see ``ManifestWriter.mark``."""
        if self.failure is None:
            self._manifest.mark(self.view)

    def snapshot(self) -> Manifest:
        """The manifest of a copy of the durable part of the log."""
        return self._manifest.snapshot(self.view, self._producers, is_active=self._is_active)

    def close(self) -> None:
        """Make all of it durable without the journal, save the manifest a last time, so that the next start
        reads nothing, and release the file."""
        if self.failure is None:
            self.sync(is_journaled_too=True)
        if self.failure is None and not self._manifest.is_closed:
            try:
                self._save(is_both=True, is_closed=True)
            except OSError as error:
                _logger.warning("The manifest in %s was not saved: %s.", self._directory, error)
        if self._file is not None:
            self._file.close()
            self._file = None

    def __repr__(self) -> str:
        return f"<PartitionWriter {self._directory}>"

    # -- failures

    def _open_file(self) -> WritableFile:
        if self._file is None:
            active = self.view.segments[-1]
            self._file = active.written = self._files.open_writable(active.path)
        return self._file

    def _cut_off(self, size: int) -> bool:
        """Truncate the file to ``size``; False if that fails."""
        if self._file is None:
            return True
        try:
            self._is_cut = True
            self._manifest.note_cut(self._next_sequence_number)
            self._file.truncate(size)
        except OSError as error:
            _logger.error("Could not truncate at byte %d of %s: %s.", size, self._directory, error)
            return False
        return True

    def _fail(self, error: Exception, what: str) -> LogFailedError:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        self.failure = LogFailedError(
            f"The log {self._directory} accepts no more events: a {what} failed ({reason}).",
            next_step="Check the disk and restart the service, which verifies the log. Acknowledged "
            "events are safe.",
        )
        _logger.error("%s", self.failure)
        return self.failure

    def _passing_error(self, error: OSError) -> TidegateError | None:
        """The error for a producer whose batch cannot be stored now; None if ``error`` is permanent."""
        if is_full_error(error):
            self._refusal = self._full_error()
        elif is_shortage_error(error):
            self._refusal = shortage_error(error, "append to a log")
        else:
            return None
        return self._refusal

    def _full_error(self) -> LogFullError:
        return LogFullError(
            f"The disk of {self._directory} is full: nothing of the batch was stored.",
            next_step="Free disk space or reduce retention; the log then accepts events again.",
            retry_after_s=4.0,
        )
