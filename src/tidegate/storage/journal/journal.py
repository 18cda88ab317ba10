"""The journal in use: appends of all partitions, made durable with one write and one sync.

Theory of operation. A round has written its appends to the segments, that is, to the system's page cache.
``commit`` puts the same bytes into the journal and syncs that. The segments are synced later: when a file is
full, rounds use the other one, and a thread syncs each segment that has records in the full file, unless
that was done since for another reason. Then the full file begins again.

    a round is large, or has one partition         its segments are synced: there is nothing to gain
    the other file is not ready yet                the same, until it is
    a write or sync of the journal fails           the same, until a restart
    the sync of a segment fails                    its partition fails, and the file is kept for the restart

Only one thread at a time calls ``commit``; checkpoints run on a thread of their own.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, Protocol

from tidegate.storage.files import Files, WritableFile, write_all
from tidegate.storage.journal.reading import read_journal
from tidegate.storage.journal.records import (
    GENERATION_BYTES,
    RECORDS_START,
    JournalHeader,
    JournalPart,
    encode_header,
    encode_round,
)
from tidegate.storage.write_errors import is_full_error

_RETRY_AFTER_S: Final = 1.0
"""From one try to make the other file ready to the next."""

_AHEAD_BYTES: Final = 1024 * 1024
"""So much is written ahead of the records (our choice)."""

_logger = logging.getLogger(__name__)


class Source(Protocol):
    """The writer of a partition."""

    journaled: int
    """The number of the last round of which it has a record."""

    def sync_journaled(self, count: int) -> bool:
        """Make durable in the segment what it had in the journal up to a round; False: that failed, for good.

        Any thread may call it. Raises OSError for what may succeed later.
        """
        ...


class _JournalFile:
    def __init__(self, path: Path, file: WritableFile, header: JournalHeader) -> None:
        self.path = path
        self.file = file
        self.written = 0
        """What is before this was written since the start. A file system notes when space that was only taken
        is first written, and that would make each sync slower."""
        self.begin(header)

    def begin(self, header: JournalHeader) -> None:
        """It has this header, and no records."""
        self.header = header
        self.position = RECORDS_START
        self.round_number = 0
        self.rounds_before = 0
        self.dirty: dict[Source, int] = {}
        """Writers whose segment has records here that are perhaps not durable there, and the last round."""
        self.is_ready = True
        """Whether rounds may continue here."""


class Journal:
    """The two files of a data directory, in use."""

    def __init__(
        self,
        files: list[_JournalFile],
        *,
        owner: bytes,
        file_bytes: int,
        part_bytes_max: int,
        executor: Executor,
    ) -> None:
        """Use ``open``."""
        self._active, self._other = files
        self._owner = owner
        self._file_bytes = file_bytes
        self._part_bytes_max = part_bytes_max
        self._executor = executor
        self._count = 0
        """Rounds since the start."""
        self._is_failed = False
        self._retry_at = 0.0

    @classmethod
    def open(
        cls,
        files: Files,
        data_directory: Path,
        *,
        owner: bytes,
        file_bytes: int,
        part_bytes_max: int,
        executor: Executor,
    ) -> Journal | None:
        """The journal of a directory, without records: what it had must be in the segments.

        file_bytes: size of each of the two files, which is taken now; None if the disk is too full for that.
        executor: for checkpoints. Raises OSError.
        """
        headers = reset(files, data_directory, owner)
        opened = [_JournalFile(path, files.open_writable(path), header) for path, header in headers]
        try:
            for each in opened:
                each.file.allocate(file_bytes)
        except OSError as error:
            for each in opened:
                each.file.truncate(RECORDS_START)
                each.file.close()
            if not is_full_error(error):
                raise
            _logger.warning("No space for the journal %s: each partition's file is synced.", opened[0].path)
            return None
        return cls(
            opened, owner=owner, file_bytes=file_bytes, part_bytes_max=part_bytes_max, executor=executor
        )

    def commit(self, parts: Sequence[tuple[Source, JournalPart]]) -> bool:
        """Make what a round has written to segments durable; False: the segments must be synced."""
        size = sum(part.record_bytes for _, part in parts)
        # What it saves is a sync for each part but one; what it costs is to write everything once more.
        size_max = min((len(parts) - 1) * self._part_bytes_max, self._file_bytes - RECORDS_START)
        if self._is_failed or size > size_max or not self._has_room(size):
            return False
        file = self._active
        data = encode_round(
            [part for _, part in parts],
            file.header,
            position=file.position,
            round_number=file.round_number + 1,
            rounds_before=file.rounds_before,
        )
        self._count += 1
        for source, _ in parts:
            source.journaled = file.dirty[source] = self._count
        buffers = [data]
        if file.position + size > file.written:
            file.written = min(file.position + size + _AHEAD_BYTES, self._file_bytes)
            buffers.append(bytes(file.written - file.position - size))
        try:
            write_all(file.file, buffers, file.position)
            file.file.sync()
        except OSError as error:
            self._fail(file, error)
            return False
        file.position += size
        file.round_number += 1
        return True

    def close(self) -> None:
        """Begin both files again if all that they have is durable in the segments, and release them.

        No checkpoint is running any more.
        """
        files = sorted((self._active, self._other), key=lambda file: file.header.number)
        is_settled = [self._settle(file) for file in files]
        if all(is_settled):
            for file in files:
                self._begin(file)
        for file in files:
            file.file.close()

    def _has_room(self, size: int) -> bool:
        full, other = self._active, self._other
        if full.position + size <= self._file_bytes:
            return True
        if other.is_ready:
            other.rounds_before = full.round_number
            full.is_ready = False
            self._active, self._other = other, full
            self._submit(self._checkpoint, full)
            return True
        if time.monotonic() >= self._retry_at:
            self._retry_at = time.monotonic() + _RETRY_AFTER_S
            self._submit(self._checkpoint, other)
        return False

    def _fail(self, file: _JournalFile, error: OSError) -> None:
        self._is_failed = True
        _logger.error(
            "The journal %s is not used any more: %s. Until a restart, each partition's file is synced by "
            "itself. Check the disk.",
            file.path,
            error.strerror or error,
        )
        for each in (self._other, self._active):
            self._submit(self._settle, each)

    def _submit(self, work: Callable[[_JournalFile], object], file: _JournalFile) -> None:
        def run() -> None:
            try:
                work(file)
            except Exception:  # the file stays as it is, and rounds sync segments
                _logger.exception("A checkpoint of the journal failed.")

        self._executor.submit(run)

    # -- on the thread of checkpoints

    def _checkpoint(self, file: _JournalFile) -> None:
        """Make all that a full file has durable in the segments, and begin it again."""
        if not file.is_ready and self._settle(file):
            self._begin(file)

    def _begin(self, file: _JournalFile) -> None:
        if self._is_failed:
            return  # the numbers of the two files would not follow each other any more
        number = max(self._active.header.number, self._other.header.number) + 1
        header = JournalHeader(number, os.urandom(GENERATION_BYTES), self._owner)
        try:
            write_all(file.file, [encode_header(header)], 0)
            file.file.sync()
        except OSError as error:
            self._fail(file, error)
        else:
            file.begin(header)

    def _settle(self, file: _JournalFile) -> bool:
        is_whole = True
        for source, count in list(file.dirty.items()):
            try:
                is_settled = source.sync_journaled(count)
            except OSError as error:
                _logger.warning("%s is not synced yet: %s.", source, error)
                is_settled = False
            if is_settled:
                del file.dirty[source]
            is_whole &= is_settled
        return is_whole


def reset(files: Files, data_directory: Path, owner: bytes) -> list[tuple[Path, JournalHeader]]:
    """Begin both files again, the older one first; returns them in the order of their numbers.

    An interruption leaves the newer one as it was, and a journal that fits together. Raises OSError.
    """
    found = read_journal(files, data_directory, None).files
    number = max(file.number for file in found)
    result = []
    for file in found:
        number += 1
        header = JournalHeader(number, os.urandom(GENERATION_BYTES), owner)
        is_new = not files.exists(file.path)
        writable = files.create(file.path) if is_new else files.open_writable(file.path)
        try:
            write_all(writable, [encode_header(header)], 0)
            writable.sync()
        finally:
            writable.close()
        result.append((file.path, header))
    files.sync_directory(data_directory)
    return result
