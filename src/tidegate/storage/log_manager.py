"""The file engine: all logs of a data directory, its lock, the writer thread, the limit on queued appends.

<data directory>/lock                                  held while a service runs
<data directory>/control.log, control.copy             the control log
<data directory>/journal.0, journal.1                  what is not in the segments yet, durably
<data directory>/reserve                               space for deletions on a full disk
<data directory>/backups/                              see ``backup``
<data directory>/logs/<hub id>/<partition id>/         manifest, segments, indexes
<data directory>/logs/<hub id>/<partition id>.new/     being created
<data directory>/logs/<hub id>.deleted/                being removed
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from tidegate.model.errors import ClosedError, LogFailedError, ServerBusyError, TidegateError
from tidegate.storage.backup import FileBackups, remove_leftovers
from tidegate.storage.calls_in_turn import CallsInTurn
from tidegate.storage.control.log import FileControlLog
from tidegate.storage.engine import PartitionLog
from tidegate.storage.failed_log import FailedLog
from tidegate.storage.files import DirectoryLock, Files, OsFiles
from tidegate.storage.group_commit import Command, Delivery, GroupCommit
from tidegate.storage.journal.journal import Journal
from tidegate.storage.journal.replay import Replay, read_replay, write
from tidegate.storage.line_file import LineFile
from tidegate.storage.options import LogOptions
from tidegate.storage.partition_log import FilePartitionLog
from tidegate.storage.partition_writer import AppendRequest, PartitionWriter, Request
from tidegate.storage.recovery import RecoveredLog, create_log, recover_log
from tidegate.storage.segments.cold_reads import HubsInTurn, InlineExecutor
from tidegate.storage.segments.segment import LOG_ID_BYTES
from tidegate.storage.segments.segment_reader import SegmentCache
from tidegate.storage.write_errors import Reserve, step_error

LOGS_NAME: Final = "logs"
LOCK_NAME: Final = "lock"
RESERVE_NAME: Final = "reserve"
_DELETED_SUFFIX = ".deleted"
_READ_THREADS_MAX: Final = 8
"""Our choice: a stuck file keeps one busy for each partition that is read."""
_THREADS_MAX: Final = _READ_THREADS_MAX + 2
"""Our choice: the creation and deletion of hubs does not wait for reads."""

T = TypeVar("T")
_logger = logging.getLogger(__name__)


class LogManager:
    """A ``LogEngine`` on a data directory: ``await LogManager.open(...)``, then ``await close()``."""

    def __init__(
        self,
        data_directory: Path,
        lock: DirectoryLock,
        control: FileControlLog,
        reserve: Reserve,
        *,
        replay: Replay,
        options: LogOptions,
        files: Files,
        is_threaded: bool,
    ) -> None:
        """Use ``open``. replay: as written. Raises LogFailedError."""
        self._data_directory = data_directory
        self._logs_directory = data_directory / LOGS_NAME
        self._lock = lock
        self._options = options
        self._files = files
        self.control = control
        self._reserve = reserve
        self._loop = asyncio.get_running_loop()
        self._logs: defaultdict[str, dict[str, FilePartitionLog | FailedLog]] = defaultdict(dict)
        """By hub and partition: the deletion of a hub costs the same however many others there are."""
        self._by_writer: dict[PartitionWriter, FilePartitionLog] = {}
        self._queued_bytes = 0
        self._uncongested: list[asyncio.Future[None]] = []
        self._is_closing = False
        self._cache = SegmentCache(
            files,
            segments_max=options.open_segments_max,
            index_interval_bytes=options.index_interval_bytes,
        )
        self._executor: Executor = InlineExecutor()
        if is_threaded:
            self._executor = ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix="tidegate-log-disk")
        self._hubs = HubsInTurn(self._executor, _READ_THREADS_MAX)
        self._calls = CallsInTurn(self._loop)
        self._replay = replay
        self._checkpoints: Executor = (
            ThreadPoolExecutor(1, "tidegate-checkpoint") if is_threaded else InlineExecutor()
        )
        self._journal = self._open_journal()
        self._commit = GroupCommit(
            self._loop,
            self._deliver,
            journal=self._journal,
            mark_after_s=options.mark_after_s,
            idle_save_s=options.idle_save_s,
        )
        if is_threaded:
            self._commit.start()
        self.backups = FileBackups(files, data_directory, control, self._commit, self._writers)

    @classmethod
    async def open(
        cls,
        data_directory: Path,
        *,
        options: LogOptions | None = None,
        files: Files | None = None,
        is_threaded: bool = True,
        is_control_threaded: bool = True,
    ) -> LogManager:
        """Open the data directory (created if missing) for this service alone.

        is_threaded: False only in tests, which then call ``commit_queued``. is_control_threaded: False only
        in tests of what happens in one turn; the control log is then written within the call.
        Raises DirectoryInUseError, LogCorruptError (the control log), LogFullError, ServerBusyError,
        LogFailedError.
        """
        files = files or OsFiles()
        logs_directory = data_directory / LOGS_NAME
        try:
            files.make_directory(logs_directory)
            for created in (data_directory, *data_directory.absolute().parents):
                with contextlib.suppress(PermissionError):  # then it was not created for this
                    files.sync_directory(created)
            lock = files.lock(data_directory / LOCK_NAME)
        except OSError as error:
            raise step_error(error, "prepare the data directory", data_directory) from error
        try:
            try:
                names = files.list_names(logs_directory)
            except OSError as error:
                raise step_error(error, "list the logs", logs_directory) from error
            for name in names:
                if name.endswith(_DELETED_SUFFIX):
                    _remove_deleted(files, logs_directory / name)
            try:
                remove_leftovers(files, data_directory)
            except OSError as error:
                _logger.warning("Could not remove what a backup has left: %s.", error)
            options = options or LogOptions()
            reserve = Reserve(files, data_directory / RESERVE_NAME, options.reserve_bytes)
            control = FileControlLog.open(
                files, data_directory, is_used=bool(names), is_threaded=is_control_threaded, reserve=reserve
            )
            reserve.is_whole()
            try:
                replay = read_replay(files, data_directory, logs_directory, bytes.fromhex(control.log_id))
            except OSError as error:
                raise step_error(error, "read the journal", data_directory) from error
            write(files, replay)
            return cls(
                data_directory,
                lock,
                control,
                reserve,
                replay=replay,
                options=options,
                files=files,
                is_threaded=is_threaded,
            )
        except BaseException:
            lock.release()
            raise

    async def close(self) -> None:
        """Refuse new appends, finish queued ones, save manifests, unlock the directory. Harmless twice."""
        self._is_closing = True
        await self.backups.close()
        for logs in self._logs.values():
            for each in logs.values():
                each.close()
        await self._commit.stop()
        # The writer thread has ended, so its half may be used.
        writers = [log.writer for hub_id in self._logs for _, log in self._opened(hub_id)]
        journal, self._journal = self._journal, None

        def close_files() -> None:
            self._checkpoints.shutdown()
            for writer in writers:
                writer.close()
            if journal is not None:
                journal.close()

        if writers or journal is not None:
            await self._run(close_files)
        self._logs.clear()
        self._by_writer.clear()
        self._cache.close()
        self._executor.shutdown(wait=False)
        await self.control.close()
        self._reserve.close()
        self._lock.release()

    # -- logs

    def open_lines(self, name: str) -> LineFile:
        """See ``LogEngine``."""
        return LineFile(self._files, self._data_directory, name)

    async def create_logs(self, hub_id: str, partition_count: int) -> None:
        """See ``LogEngine``."""
        directory = self._logs_directory / hub_id
        # A failed partition refuses everything until a restart.
        known = self._logs.get(hub_id, {})
        missing = [str(index) for index in range(partition_count) if str(index) not in known]

        def create() -> list[RecoveredLog]:
            self._files.make_directory(directory)
            for index in range(partition_count):
                # Only where there is nothing: a log without its manifest is damaged, and no new one.
                if not self._files.exists(directory / str(index)):
                    create_log(directory / str(index), os.urandom(LOG_ID_BYTES), files=self._files)
            self._files.sync_directory(directory)
            self._files.sync_directory(self._logs_directory)
            return [self._recover(directory / partition_id) for partition_id in missing]

        try:
            recovered = await self._run(create)
        except OSError as error:
            raise step_error(error, "create the logs", directory) from error
        if self._is_closing:
            raise _stopping_error()
        for partition_id, found in zip(missing, recovered, strict=True):
            self._logs[hub_id][partition_id] = self._log_of(directory / partition_id, found)

    def open_log(self, hub_id: str, partition_id: str) -> FilePartitionLog:
        """The log of a partition, recovered on first use. Raises LogCorruptError, LogFullError,
        ServerBusyError, LogFailedError.
        """
        log = self._logs[hub_id].get(partition_id)
        if not isinstance(log, FilePartitionLog):
            directory = self._logs_directory / hub_id / partition_id
            try:
                log = self._log_of(directory, self._recover(directory))
            except OSError as error:
                raise step_error(error, "open the log", directory) from error
            self._logs[hub_id][partition_id] = log
        return log

    def log(self, hub_id: str, partition_id: str) -> PartitionLog:
        """See ``LogEngine``."""
        try:
            return self.open_log(hub_id, partition_id)
        except TidegateError as error:
            failure = error
        except Exception as error:  # any error at all: the other partitions are served
            directory = self._logs_directory / hub_id / partition_id
            _logger.exception("The log %s could not be opened.", directory)
            failure = LogFailedError(
                f"The log {directory} cannot be opened: {type(error).__name__}.",
                next_step="Report this error, with the service's log.",
            )
        failed = self._logs[hub_id][partition_id] = FailedLog(failure)
        return failed

    def close_logs(self, hub_id: str) -> None:
        """See ``LogEngine``."""
        for log in self._logs[hub_id].values():
            log.close()
            if isinstance(log, FilePartitionLog):
                log.forget_files()

    async def delete_logs(self, hub_id: str) -> None:
        """See ``LogEngine``."""
        self.close_logs(hub_id)
        logs = [log for _, log in self._opened(hub_id)]
        del self._logs[hub_id]

        def remove() -> object:
            for log in logs:
                log.writer.close()
            directory = self._logs_directory / hub_id
            if self._files.exists(directory):
                doomed = directory.with_name(hub_id + _DELETED_SUFFIX)
                try:
                    self._files.rename(directory, doomed)
                    self._files.sync_directory(self._logs_directory)
                except OSError as error:
                    _logger.warning("Could not remove the logs %s of a deleted hub: %s.", directory, error)
                else:
                    for log in logs:
                        log.writer.forget_journaled()
                    _remove_deleted(self._files, doomed)
            return None

        def forget(_: object) -> None:
            # Everything queued before the command is answered by now.
            for log in logs:
                self._by_writer.pop(log.writer, None)

        removal = self._commit.put_command(remove, [log.writer for log in logs])
        removal.add_done_callback(forget)
        await asyncio.shield(removal)

    def unknown_hub_ids(self, known: Iterable[str]) -> list[str]:
        """See ``LogEngine``."""
        return sorted(set(self._files.list_names(self._logs_directory)) - set(known))

    # -- load

    def admit(self, payload_bytes: int) -> None:
        if self._is_closing:
            raise _stopping_error()
        if self._queued_bytes + payload_bytes > self._options.queued_bytes_max:
            raise ServerBusyError(
                f"{self._queued_bytes} bytes are already waiting to be written to disk.",
                next_step="Send more slowly.",
                retry_after_s=4.0,
            )
        self._queued_bytes += payload_bytes

    @property
    def is_congested(self) -> bool:
        """Whether more than ``congested_bytes`` are queued."""
        return self._queued_bytes > self._options.congested_bytes

    async def wait_uncongested(self) -> None:
        """Wait until the log is not congested. Cancellation: leaves no trace."""
        while self.is_congested:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._uncongested.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._uncongested:
                    self._uncongested.remove(waiter)

    def commit_queued(self) -> None:
        """Do everything queued on this thread; only for a log opened without a writer thread."""
        self._commit.commit_queued()

    # -- helpers

    def _opened(self, hub_id: str) -> Iterator[tuple[str, FilePartitionLog]]:
        for partition_id, log in self._logs[hub_id].items():
            if isinstance(log, FilePartitionLog):
                yield partition_id, log

    def _writers(self) -> dict[tuple[str, str], PartitionWriter]:
        """All writers, for a backup. Raises LogFailedError if there is a log without one."""
        writers = {}
        for hub_id, logs in self._logs.items():
            for partition_id, log in logs.items():
                if isinstance(log, FailedLog):
                    raise LogFailedError(
                        f"The log {self._logs_directory / hub_id / partition_id} could not be opened, and "
                        f"would be missing: {log.failure}",
                        next_step="Repair it first, or stop the service and copy the data directory.",
                    )
                writers[hub_id, partition_id] = log.writer
        return writers

    async def _run(self, work: Callable[[], T]) -> T:
        """The result of ``work`` on another thread."""
        return await self._loop.run_in_executor(self._executor, work)

    def _open_journal(self) -> Journal | None:
        """The journal, empty; None: rounds sync segments. Raises LogFailedError, LogFullError."""
        if self._replay.problem is not None and self._replay.doubted:
            path, text = self._replay.problem
            _logger.error(
                "%s: %s. %d logs were not closed: they are refused until they are repaired.",
                path,
                text,
                self._replay.doubted,
            )
        if self._replay.failed:
            for directory, failure in self._replay.failed.items():
                _logger.error("The journal is kept, as it may have events of %s: %s.", directory, failure)
            return None
        try:
            return Journal.open(
                self._files,
                self._data_directory,
                owner=bytes.fromhex(self.control.log_id),
                file_bytes=self._options.journal_bytes,
                part_bytes_max=self._options.journal_part_bytes,
                executor=self._checkpoints,
            )
        except OSError as error:
            raise step_error(error, "prepare the journal", self._data_directory) from error

    def _recover(self, directory: Path) -> RecoveredLog:
        failure = self._replay.failed.get(directory)
        if failure is not None:
            raise failure
        return recover_log(directory, files=self._files, options=self._options)

    def _log_of(self, directory: Path, recovered: RecoveredLog) -> FilePartitionLog:
        writer = PartitionWriter(
            directory,
            files=self._files,
            options=self._options,
            reserve=self._reserve,
            view=recovered.view,
            manifest=recovered.manifest,
            producers=recovered.producers,
            unsaved_bytes=recovered.unsaved_bytes,
        )
        log = self._by_writer[writer] = FilePartitionLog(
            directory,
            writer,
            commit=self._commit,
            cache=self._cache,
            hubs=self._hubs,
            calls=self._calls,
            admission=self,
            gaps=recovered.gaps,
            loop=self._loop,
        )
        return log

    def _deliver(self, delivery: Delivery) -> None:
        done, commands = delivery
        for writer, requests in done:
            self._queued_bytes -= _payload_bytes(requests)
            self._by_writer[writer].deliver(requests)
        for command in commands:
            _answer(command)
        if self._uncongested and not self.is_congested:
            waiters, self._uncongested = self._uncongested, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def __repr__(self) -> str:
        return f"<LogManager hubs={len(self._logs)} queued_bytes={self._queued_bytes}>"


def _stopping_error() -> ClosedError:
    return ClosedError("The service is stopping and accepts no more events.")


def _payload_bytes(requests: list[Request]) -> int:
    return sum(len(request.payload) for request in requests if isinstance(request, AppendRequest))


def _answer(command: Command) -> None:
    if command.future.done():
        return
    if command.error is not None:
        command.future.set_exception(command.error)
    else:
        command.future.set_result(command.result)


def _remove_deleted(files: Files, directory: Path) -> None:
    """Remove what a deleted hub left; if that fails, it only takes space."""
    try:
        files.remove_tree(directory)
    except OSError as error:
        _logger.warning("Could not remove %s, which a deleted event hub left: %s.", directory, error)
