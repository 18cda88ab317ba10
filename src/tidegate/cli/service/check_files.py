"""The files that ``tidegate check`` reads, counted while it reads them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tidegate.cli.shell.progress import ProgressBar
from tidegate.storage.files import OsFiles, ReadableFile
from tidegate.storage.log_manager import LOGS_NAME
from tidegate.storage.segment import SEGMENT_SUFFIX


def segment_bytes(data_directory: Path) -> int:
    """Bytes of all segments of a data directory: what a check reads, or a little more.

    A running service may remove segments meanwhile; they are not counted.
    """
    total = 0
    for segment in (data_directory / LOGS_NAME).glob(f"*/*/*{SEGMENT_SUFFIX}"):
        with suppress(FileNotFoundError):
            total += segment.stat().st_size
    return total


class CountedFiles(OsFiles):
    """The real file system; a bar shows how many bytes of segments were read."""

    def __init__(self, bar: ProgressBar) -> None:
        self._bar = bar
        self._bytes_before = 0

    def open_readable(self, path: Path) -> ReadableFile:
        file = super().open_readable(path)
        return _CountedFile(file, self) if path.suffix == SEGMENT_SUFFIX else file

    def report(self, bytes_read: int) -> None:
        """Show that this much of the current file was read."""
        self._bar(self._bytes_before + bytes_read)

    def add(self, bytes_read: int) -> None:
        """Count the current file, which is closed."""
        self._bytes_before += bytes_read


class _CountedFile:
    """A segment; bytes that are read again count once."""

    def __init__(self, file: ReadableFile, files: CountedFiles) -> None:
        self._file = file
        self._files = files
        self._until = 0

    def read_at(self, count: int, position: int) -> bytes:
        data = self._file.read_at(count, position)
        if position + len(data) > self._until:
            self._until = position + len(data)
            self._files.report(self._until)
        return data

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._files.add(self._until)
        self._file.close()
