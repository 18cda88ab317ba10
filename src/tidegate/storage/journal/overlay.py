"""Files as they would be with some bytes written to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidegate.storage.files import Files, ReadableFile

Patches = dict[Path, list[tuple[int, bytes]]]
"""By file: positions, and the bytes there; a later one counts where two overlap."""


class OverlaidFiles:
    """A ``Files`` for reading."""

    def __init__(self, files: Files, patches: Patches) -> None:
        self._files = files
        self._patches = patches

    def open_readable(self, path: Path) -> ReadableFile:
        """See ``Files``."""
        runs = self._patches.get(path)
        if runs is None:
            return self._files.open_readable(path)
        file = self._files.open_readable(path) if self._files.exists(path) else None
        return _OverlaidFile(file, runs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


class _OverlaidFile:
    is_cache_known = False

    def __init__(self, file: ReadableFile | None, runs: list[tuple[int, bytes]]) -> None:
        self._file = file
        self._runs = runs
        size = 0 if file is None else file.size()
        self._size = max(size, *(position + len(data) for position, data in runs))

    def read_at(self, count: int, position: int) -> bytes:
        """See ``ReadableFile``."""
        end = min(position + count, self._size)
        if end <= position:
            return b""
        result = bytearray(b"" if self._file is None else self._file.read_at(end - position, position))
        result.extend(bytes(end - position - len(result)))
        for start, data in self._runs:
            first, last = max(start, position), min(start + len(data), end)
            if first < last:
                result[first - position : last - position] = data[first - start : last - start]
        return bytes(result)

    def read_cached(self, into: memoryview, position: int) -> int | None:
        """See ``ReadableFile``."""
        return None

    def size(self) -> int:
        """See ``ReadableFile``."""
        return self._size

    def close(self) -> None:
        """See ``ReadableFile``."""
        if self._file is not None:
            self._file.close()
