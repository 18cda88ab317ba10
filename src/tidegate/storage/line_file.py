"""Lines in a file of bounded size, for records that may be lost with a power failure: it is never synced.

<name>.jsonl        the newest lines
<name>.1.jsonl      those before them
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from tidegate.storage.files import Files, WritableFile, read_whole, write_all

FILE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Size at which a file replaces the older one (our choice: some 10,000 changes)."""

SUFFIX: Final = ".jsonl"
OLDER_SUFFIX: Final = ".1.jsonl"

_log: Final = logging.getLogger(__name__)


class LineFile:
    """A ``LineLog``."""

    def __init__(self, files: Files, directory: Path, name: str) -> None:
        self._files = files
        self._path, self._older_path = directory / f"{name}{SUFFIX}", directory / f"{name}{OLDER_SUFFIX}"
        self._file: WritableFile | None = None
        self._position = 0

    def append(self, line: bytes) -> None:
        """See ``LineLog``."""
        try:
            self._append(line)
        except OSError as error:
            self.close()
            _log.error("%s cannot be written: %s", self._path, error)

    def close(self) -> None:
        """See ``LineLog``."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def read(self) -> list[bytes]:
        """See ``LineLog``; later lines are appended after the last complete one."""
        older, _ = self._read(self._older_path)
        newer, self._position = self._read(self._path)
        return [*older, *newer]

    def _append(self, line: bytes) -> None:
        if self._file is not None and self._position + len(line) > FILE_BYTES_MAX:
            self.close()
            self._files.rename(self._path, self._older_path)
            self._position = 0
        if self._file is None:
            is_there = self._files.exists(self._path)
            self._file = self._files.open_writable(self._path) if is_there else self._files.create(self._path)
        self._position = write_all(self._file, [line], self._position)

    def _read(self, path: Path) -> tuple[list[bytes], int]:
        """The complete lines of a file, and where they end."""
        try:
            data = read_whole(self._files, path)
        except FileNotFoundError:
            return [], 0
        except OSError as error:
            _log.error("%s cannot be read: %s", path, error)
            return [], 0
        end = data.rfind(b"\n") + 1
        return data[:end].splitlines(), end
