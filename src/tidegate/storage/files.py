"""The file system as the log sees it, behind a seam that fault simulation replaces.

The rule: nothing else in ``storage`` and ``broker`` touches the file system, so a test that passes its own
``Files`` sees every write, sync and rename in order, and can make any of them fail.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final, Protocol

from tidegate.files import lock_file, make_private_directory, sync_directory
from tidegate.model.errors import DirectoryInUseError

PRIVATE_MODE: Final = 0o600
"""Readable by the owner alone: the log holds users' data, the catalog holds keys."""


class RenameInDoubtError(OSError):
    """A file was renamed, and it is not known whether that survives a power loss."""


class WritableFile(Protocol):
    """A file open for writing at positions; used by one thread at a time."""

    def write_at(self, buffers: Sequence[bytes], position: int) -> int:
        """Write buffers end to end at ``position``; returns how many bytes (perhaps fewer). Raises
        OSError.
        """
        ...

    def sync(self) -> None:
        """Make the contents and the size durable. Raises OSError."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes. Raises OSError."""
        ...

    def allocate(self, size: int) -> None:
        """Make the file at least ``size`` bytes long, and take that space of the disk. Raises OSError."""
        ...

    def reader(self) -> ReadableFile | None:
        """Open the same file for reading, without a look at the disk; None if it is closed. Any thread may
        call it. Raises OSError.
        """
        ...

    def close(self) -> None:
        """Release the descriptor, without a sync."""
        ...


class ReadableFile(Protocol):
    """A file open for reading at positions."""

    def read_at(self, count: int, position: int) -> bytes:
        """Up to ``count`` bytes from ``position``; fewer only at the end of the file. Raises OSError."""
        ...

    def read_cached(self, into: memoryview, position: int) -> int | None:
        """Read from ``position`` without waiting for the disk; returns how many bytes.

        They are fewer than ``into`` takes only at the end of the file. None if that would wait, or perhaps
        would. Raises OSError.
        """
        ...

    @property
    def is_cache_known(self) -> bool:
        """False: the system does not know what is cached, and ``read_cached`` is None."""
        ...

    def size(self) -> int:
        """The current size in bytes."""
        ...

    def close(self) -> None:
        """Release the descriptor."""
        ...


class DirectoryLock(Protocol):
    """Ownership of a data directory."""

    def release(self) -> None:
        """Let another service use the directory."""
        ...


class Files(Protocol):
    """A file system. Every method may raise OSError."""

    def list_names(self, directory: Path) -> list[str]:
        """Names in a directory, sorted. Raises FileNotFoundError."""
        ...

    def exists(self, path: Path) -> bool: ...

    def make_directory(self, directory: Path) -> None:
        """Create it, and missing parents; durable only once the parent is synced."""
        ...

    def create(self, path: Path) -> WritableFile:
        """Create an empty file, private to the owner; an existing one is truncated."""
        ...

    def open_writable(self, path: Path) -> WritableFile:
        """Open an existing file for writing. Raises FileNotFoundError."""
        ...

    def open_readable(self, path: Path) -> ReadableFile:
        """Open an existing file for reading. Raises FileNotFoundError."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file, replacing any other; durable only once the directory is synced."""
        ...

    def rename_durably(self, source: Path, target: Path) -> None:
        """Rename within a directory, and make that durable. Raises RenameInDoubtError if only the latter
        failed.
        """
        ...

    def link(self, source: Path, target: Path) -> None:
        """Give a file another name; durable only once the directory is synced."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file, if it exists."""
        ...

    def remove_tree(self, directory: Path) -> None:
        """Remove a directory and everything in it, if it exists."""
        ...

    def sync_directory(self, directory: Path) -> None:
        """Make creations, renames and removals in a directory durable."""
        ...

    def lock(self, path: Path) -> DirectoryLock:
        """Lock the file at ``path``, creating it if missing. Raises DirectoryInUseError."""
        ...


def read_whole(files: Files, path: Path) -> bytes:
    file = files.open_readable(path)
    try:
        return file.read_at(file.size(), 0)
    finally:
        file.close()


def write_all(file: WritableFile, buffers: Sequence[bytes], position: int) -> int:
    """Write every byte of ``buffers`` at ``position``; returns the position after them.

    Raises OSError; it is then unknown how much was written.
    """
    for start in range(0, len(buffers), _BUFFERS_PER_WRITE_MAX):
        group = buffers[start : start + _BUFFERS_PER_WRITE_MAX]
        length = sum(map(len, group))
        written = file.write_at(group, position)
        if written < length:
            # A short write is rare (a signal, a nearly full disk): write the rest as one piece.
            rest = memoryview(b"".join(group))[written:]
            position += written
            while rest:
                written = file.write_at([bytes(rest)], position)
                position += written
                rest = rest[written:]
        else:
            position += length
    return position


def replace_whole(files: Files, path: Path, data: bytes, *, is_durable: bool) -> None:
    """Replace a file's contents: readers see the old or the new, never a mixture, also after a power loss.

    is_durable: True returns only once the new contents survive a power loss. Raises RenameInDoubtError if
    that is not known, and otherwise OSError: the old contents then still stand.
    """
    temporary = path.with_name(path.name + ".new")
    file = files.create(temporary)
    try:
        try:
            write_all(file, [data], 0)
            if is_durable:
                file.sync()
        finally:
            file.close()
        rename = files.rename_durably if is_durable else files.rename
        rename(temporary, path)
    except RenameInDoubtError:
        raise
    except OSError:
        with contextlib.suppress(OSError):
            files.remove(temporary)
        raise


_BUFFERS_PER_WRITE_MAX = 1024
"""IOV_MAX on Linux and macOS."""


class _OsWritableFile:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_closed = False
        self._lock = threading.Lock()
        """Held to close and to copy the descriptor."""

    def write_at(self, buffers: Sequence[bytes], position: int) -> int:
        return os.pwritev(self._descriptor, buffers, position)

    def sync(self) -> None:
        if sys.platform == "darwin":
            import fcntl

            # fsync on macOS leaves the data in the drive's cache (its manual page says so).
            fcntl.fcntl(self._descriptor, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(self._descriptor)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def allocate(self, size: int) -> None:
        if sys.platform == "linux":
            os.posix_fallocate(self._descriptor, 0, size)
        else:
            os.pwrite(self._descriptor, bytes(size), 0)

    def reader(self) -> ReadableFile | None:
        with self._lock:
            return None if self._is_closed else _OsReadableFile(os.dup(self._descriptor))

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            os.close(self._descriptor)


@cache
def _memory_devices() -> frozenset[int]:
    """Device numbers of file systems without a disk, which do not say what is cached (Linux's tmpfs)."""
    devices: set[int] = set()
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
            fields, _, kind = line.partition(" - ")
            if kind.split(" ")[0] in ("tmpfs", "ramfs"):
                devices.add(os.makedev(*map(int, fields.split(" ")[2].split(":"))))
    return frozenset(devices)


class _OsReadableFile:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.is_cache_known = sys.platform == "linux"
        self._is_in_memory = False

    def read_at(self, count: int, position: int) -> bytes:
        return os.pread(self._descriptor, count, position)

    def read_cached(self, into: memoryview, position: int) -> int | None:
        if self._is_in_memory:
            return os.preadv(self._descriptor, [into], position)
        if not self.is_cache_known:
            return None
        try:
            read = os.preadv(self._descriptor, [into], position, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                self._is_in_memory = os.fstat(self._descriptor).st_dev in _memory_devices()
                self.is_cache_known = self._is_in_memory
                return self.read_cached(into, position)
            if error.errno != errno.EAGAIN:
                raise
            return None
        if read < len(into) and position + read < self.size():
            return None
        return read

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        os.close(self._descriptor)


class _OsDirectoryLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class OsFiles:
    """The real file system."""

    def list_names(self, directory: Path) -> list[str]:
        return sorted(os.listdir(directory))

    def exists(self, path: Path) -> bool:
        return path.exists()

    def make_directory(self, directory: Path) -> None:
        if not directory.exists():  # a file in its place is reported where it is needed
            make_private_directory(directory)

    def create(self, path: Path) -> WritableFile:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        return _OsWritableFile(os.open(path, flags, PRIVATE_MODE))

    def open_writable(self, path: Path) -> WritableFile:
        return _OsWritableFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def open_readable(self, path: Path) -> ReadableFile:
        return _OsReadableFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def rename_durably(self, source: Path, target: Path) -> None:
        """See ``Files``. The directory is opened first: too few descriptors leave no doubt."""
        descriptor = os.open(target.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.replace(source, target)
            try:
                os.fsync(descriptor)
            except OSError as error:
                raise RenameInDoubtError(error.errno, error.strerror, str(target)) from error
        finally:
            os.close(descriptor)

    def link(self, source: Path, target: Path) -> None:
        os.link(source, target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_tree(self, directory: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(directory)

    def sync_directory(self, directory: Path) -> None:
        sync_directory(directory)

    def lock(self, path: Path) -> DirectoryLock:
        """See ``Files``. The system frees the lock when the process ends, however it ends."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_MODE)
        try:
            lock_file(descriptor)
        except OSError as error:
            owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            os.close(descriptor)
            who = f" (process {owner})" if owner.isdigit() else ""
            raise DirectoryInUseError(
                f"The data directory {path.parent} is in use by another service{who}.",
                next_step="Stop that service, or use another --data-dir for this one.",
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return _OsDirectoryLock(descriptor)
