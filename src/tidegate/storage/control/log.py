"""The control log in files: two files of records, to which a change is appended, so that its cost does not
depend on how much is kept.

Theory of operation. A change is written to the first file and synced, then to the second, then it is applied
in memory and answered; see ``reading`` for what a start makes of the two. If a step fails, both files are cut
to what they were, and the change has not been made. If that fails, too, it is not known what a restart finds:
the change is in doubt, and nothing more is accepted. A file is compacted (rewritten with the present values
alone) once more than half of it is outdated: per change, that is a constant number of bytes, too.

Writing is done by one thread, in the order of the calls.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from tidegate.model.errors import ClosedError, LogFailedError, LogFullError
from tidegate.storage.control.reading import FILE_NAMES, read_files
from tidegate.storage.control.records import (
    ControlFile,
    digest_of,
    encode_change,
    encode_changes,
    encode_header,
    size_of,
)
from tidegate.storage.engine import (
    Cell,
    ChangeInDoubtError,
    ControlChange,
    ControlConflictError,
    copy_error,
)
from tidegate.storage.files import Files, RenameInDoubtError, WritableFile, write_all
from tidegate.storage.write_errors import Reserve, step_error

OUTDATED_BYTES_MIN: Final = 64 * 1024
"""A file with fewer outdated bytes is not compacted (our choice)."""

_NEW_SUFFIX: Final = ".new"
_LOG_ID_BYTES: Final = 16
_logger: Final = logging.getLogger(__name__)


class _Copy:
    """One of the two files, open for appending."""

    def __init__(self, path: Path, file: WritableFile, end: int, digest: bytes) -> None:
        self.path = path
        self.file = file
        self.end = end
        self.digest = digest
        """Of its last record."""
        self.bytes_max = 0
        """It is compacted when it is larger; 0: not known yet."""


class FileControlLog:
    """A ``ControlLog``; reading is answered without waiting."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        state: ControlFile,
        *,
        is_threaded: bool,
        reserve: Reserve | None = None,
    ) -> None:
        """Use ``open``."""
        self._reserve = reserve
        self.failure: LogFailedError | None = None
        self._files = files
        self._directory = directory
        self._log_id = state.log_id or secrets.token_hex(_LOG_ID_BYTES)
        self._cells = state.cells
        self._live_bytes = sum(size_of(key, cell.value) for key, cell in state.cells.items())
        self._revision = state.revision
        self._copies: list[_Copy] = []
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, "tidegate-control-log") if is_threaded else None

    @classmethod
    def open(
        cls,
        files: Files,
        directory: Path,
        *,
        is_used: bool,
        is_threaded: bool = True,
        reserve: Reserve | None = None,
    ) -> FileControlLog:
        """Open the control log of a data directory, which is this process's alone; a new directory gets one.

        is_used: whether the directory has logs. is_threaded: False writes within the call, for tests.
        reserve: space for changes on a full disk.
        Raises as ``read_files``, LogCorruptError if neither file counts, and LogFullError.
        """
        found = read_files(files, directory, is_used=is_used)
        best = ControlFile(directory) if found.is_new else found.best()
        log = cls(files, directory, best, is_threaded=is_threaded, reserve=reserve)
        log._open_copies(found.found)
        return log

    @classmethod
    def write(cls, files: Files, directory: Path, state: ControlFile) -> None:
        """Replace both files by what ``state`` holds, for a repair. Raises LogFullError, LogFailedError."""
        log = cls(files, directory, state, is_threaded=False)
        log._open_copies((None, None))
        log._close_files()

    def snapshot(self) -> ControlFile:
        """What it holds now, for ``write``."""
        cells = dict(self._cells)
        # In this order: the thread sets the revision before the cell.
        return ControlFile(self._directory, self._log_id, self._revision, cells=cells)

    @property
    def log_id(self) -> str:
        """32 random hexadecimal digits, drawn for the data directory."""
        return self._log_id

    def place(self, key: str) -> str:
        """See ``ControlLog``."""
        return f"{self._directory / FILE_NAMES[0]} ({key})"

    async def read(self, key: str) -> Cell | None:
        """See ``ControlLog``."""
        return self._cells.get(key)

    async def read_all(self, prefix: str) -> dict[str, Cell]:
        """See ``ControlLog``."""
        return {key: cell for key, cell in list(self._cells.items()) if key.startswith(prefix)}

    async def change(self, key: str, value: bytes | None, *, expected_version: int) -> int:
        """See ``ControlLog``. Cancellation: a change that has begun is waited for first."""
        return await self.change_all([ControlChange(key, value, expected_version)])

    async def change_all(self, changes: Sequence[ControlChange], *, may_borrow: bool = True) -> int:
        """See ``ControlLog``. Cancellation: as of ``change``."""
        if self._is_closed:
            raise ClosedError("The service is stopping and accepts no more changes.")
        if self._thread is None:
            return self._change(changes, may_borrow=may_borrow)
        begun = self._thread.submit(self._change, changes, may_borrow=may_borrow)
        answer = asyncio.wrap_future(begun)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            if not begun.cancel():
                await asyncio.wait([answer])
                answer.exception()  # read it, so that asyncio does not report it as unretrieved
            raise

    async def close(self) -> None:
        """Finish the changes that have begun, and release the files. Harmless twice."""
        if not self._is_closed:
            self._is_closed = True
            if self._thread is not None:
                await asyncio.to_thread(self._thread.shutdown)
            self._close_files()

    # -- in the thread

    def _change(self, changes: Sequence[ControlChange], *, may_borrow: bool) -> int:
        change = partial(self._change_once, changes)
        if self._reserve is None:
            return change()
        if may_borrow:
            return self._reserve.lend(change)
        if not self._reserve.is_whole():
            raise LogFullError(
                f"Cannot write the {changes[0].key}: the disk of {self._directory} is full.",
                next_step="Free disk space and try again.",
            )
        return change()

    def _change_once(self, changes: Sequence[ControlChange]) -> int:
        if self.failure is not None:
            # Not in doubt: this change was not begun.
            raise LogFailedError(self.failure.message, next_step=self.failure.next_step)
        for each in changes:
            cell = self._cells.get(each.key)
            version = 0 if cell is None else cell.version
            if version != each.expected_version:
                raise ControlConflictError(f"Version {version} of the {each.key} came before this change.")
        self._compact_outdated()
        revision = self._revision + 1
        self._append(changes[0].key, lambda digest: encode_changes(revision, digest, changes))
        self._revision = revision
        for each in changes:
            before = self._cells.get(each.key)
            self._live_bytes -= 0 if before is None else size_of(each.key, before.value)
            if each.value is None:
                self._cells.pop(each.key, None)
            else:
                self._cells[each.key] = Cell(revision, each.value)
                self._live_bytes += size_of(each.key, each.value)
        return revision

    def _append(self, key: str, encode: Callable[[bytes], bytes]) -> None:
        """Make a record durable in both files. key: for messages."""
        records = [encode(copy.digest) for copy in self._copies]
        touched: list[_Copy] = []
        try:
            for copy, record in zip(self._copies, records, strict=True):
                touched.append(copy)
                write_all(copy.file, [record], copy.end)
                copy.file.sync()
        except OSError as error:
            self._undo(key, touched)
            raise step_error(error, f"write the {key}", touched[-1].path) from error
        for copy, record in zip(self._copies, records, strict=True):
            copy.end += len(record)
            copy.digest = digest_of(record)

    def _undo(self, key: str, copies: list[_Copy]) -> None:
        """Cut off what a failed change has written. Raises ChangeInDoubtError if that fails."""
        for copy in copies:
            try:
                copy.file.truncate(copy.end)
                copy.file.sync()
            except OSError as error:
                # As after a failed sync of a log: a later sync that succeeds would prove nothing about this.
                self._fail(
                    ChangeInDoubtError(
                        f"The control log {copy.path} accepts no more changes: it is not known whether the "
                        f"last one, of the {key}, was made: it could be neither written nor undone "
                        f"({error.strerror}).",
                        next_step="Check the disk, restart the service, and see whether the change was made.",
                    ),
                    error,
                )

    def _fail(self, failure: LogFailedError, cause: OSError) -> None:
        self.failure = failure
        _logger.error("%s", failure)
        raise copy_error(failure) from cause

    # -- whole files

    def _open_copies(self, found: Sequence[ControlFile | None]) -> None:
        for name, file in zip(FILE_NAMES, found, strict=True):
            path = self._directory / name
            try:
                self._files.remove(_new_path(path))
                self._copies.append(self._open_copy(path, file))
            except OSError as error:
                self._close_files()
                raise step_error(error, "write the control log", path) from error

    def _open_copy(self, path: Path, found: ControlFile | None) -> _Copy:
        """Open a file for appending, after it has been made equal to what counts. Raises OSError."""
        last = None if found is None else found.last
        is_equal = found is not None and found.revision == self._revision and found.cells == self._cells
        if found is None or last is None or not is_equal:
            if found is not None and not found.is_sound:
                _logger.warning("%s is damaged at byte %d; it is restored from its copy.", path, found.end)
            return self._write_whole(path)
        if not found.is_sound:
            _logger.warning("%s: the incomplete write at byte %d is removed.", path, found.end)
        file = self._files.open_writable(path)
        try:
            file.truncate(found.end)
            # What was read may be in the page cache alone, if the last sync before the start has failed.
            write_all(file, [found.last_bytes], last.start)
            file.sync()
        except OSError:
            file.close()
            raise
        return _Copy(path, file, found.end, last.digest)

    def _compact_outdated(self) -> None:
        """Compact files that are mostly outdated. Raises LogFailedError if a file is then in doubt."""
        for index, copy in enumerate(self._copies):
            size_max = max(copy.bytes_max, 2 * self._live_bytes + OUTDATED_BYTES_MIN)
            if copy.end <= size_max:
                continue
            try:
                self._copies[index] = self._write_whole(copy.path)
            except RenameInDoubtError as error:
                self._fail(
                    LogFailedError(
                        f"The control log {copy.path} accepts no more changes: it was compacted, and "
                        f"the sync of {self._directory} failed ({error.strerror}).",
                        next_step="Check the disk, and restart the service.",
                    ),
                    error,
                )
            except OSError as error:
                copy.bytes_max = 2 * copy.end
                _logger.warning("%s cannot be compacted, and grows: %s.", copy.path, error.strerror)
            else:
                copy.file.close()

    def _write_whole(self, path: Path) -> _Copy:
        """Replace a file by one that has the present values alone. Raises OSError, RenameInDoubtError."""
        new_path = _new_path(path)
        records = [encode_header(self._log_id, self._revision, len(self._cells))]
        for key, cell in self._cells.items():
            records.append(encode_change(cell.version, digest_of(records[-1]), key, cell.value))
        file = self._files.create(new_path)
        try:
            end = write_all(file, records, 0)
            file.sync()
            self._files.rename_durably(new_path, path)
        except OSError as error:
            file.close()
            if not isinstance(error, RenameInDoubtError):
                with suppress(OSError):
                    self._files.remove(new_path)
            raise
        return _Copy(path, file, end, digest_of(records[-1]))

    def _close_files(self) -> None:
        for copy in self._copies:
            copy.file.close()
        self._copies.clear()


def _new_path(path: Path) -> Path:
    return path.with_name(path.name + _NEW_SUFFIX)
