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

    A service may run on it still: what its retention removes meanwhile counts nothing.
    """
    total = 0
    for segment in (data_directory / LOGS_NAME).glob(f"*/*/*{SEGMENT_SUFFIX}"):
        with suppress(FileNotFoundError):
            total += segment.stat().st_size
    return total


class CountedFiles(OsFiles):
    """The real file system, which tells a bar how many bytes of segments were read."""

    def __init__(self, bar: ProgressBar) -> None:
        self._bar = bar
        self._bytes_before = 0

    def open_readable(self, path: Path) -> ReadableFile:
        """See ``Files``."""
        file = super().open_readable(path)
        return _CountedFile(file, self) if path.suffix == SEGMENT_SUFFIX else file

    def tell(self, bytes_read: int) -> None:
        """So much of the file that is being read was read."""
        self._bar.update(self._bytes_before + bytes_read)

    def add(self, bytes_read: int) -> None:
        """The file that was being read is closed."""
        self._bytes_before += bytes_read


class _CountedFile:
    """A segment; what is read of it again counts once."""

    def __init__(self, file: ReadableFile, files: CountedFiles) -> None:
        self._file = file
        self._files = files
        self._until = 0

    def read_at(self, count: int, position: int) -> bytes:
        """See ``ReadableFile``."""
        data = self._file.read_at(count, position)
        if position + len(data) > self._until:
            self._until = position + len(data)
            self._files.tell(self._until)
        return data

    def size(self) -> int:
        """See ``ReadableFile``."""
        return self._file.size()

    def close(self) -> None:
        """See ``ReadableFile``."""
        self._files.add(self._until)
        self._file.close()
