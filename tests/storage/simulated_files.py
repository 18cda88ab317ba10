"""A disk in memory that can be full, write short, fail to sync, and lose power.

Faithful in what matters to a log: what was not synced may be lost, in whole or sector by sector and in any
order; so may creations, renames and removals in a directory that was not synced, of files and of directories,
and with a directory all that is in it.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from pathlib import Path

from tidegate.model.errors import DirectoryInUseError
from tidegate.storage.files import (
    DirectoryLock,
    ReadableFile,
    RenameInDoubtError,
    WritableFile,
)

_SECTOR_BYTES = 512
_Pending = tuple[int, bytes] | int
"""A write (position, data), or a change to a size."""


class _Inode:
    def __init__(self) -> None:
        self.durable = bytearray()
        self.content = bytearray()
        self.pending: list[_Pending] = []

    def apply(self, target: bytearray, operation: _Pending) -> None:
        if isinstance(operation, int):
            del target[operation:]
            target.extend(bytes(operation - len(target)))
            return
        position, data = operation
        if len(target) < position:
            target.extend(bytes(position - len(target)))
        target[position : position + len(data)] = data


class _Directory:
    """What of a directory is durable, and what may be."""

    def __init__(self) -> None:
        self.durable: _Names = {}
        self.pending: list[_Names] = []
        """Each happens as a whole or not at all."""

    def sync(self) -> None:
        for change in self.pending:
            self.durable.update(change)
        self.pending.clear()


_Names = dict[str, _Inode | _Directory | None]
"""None: there is no such name any more."""
_ROOT = Path("/")


class SimulatedFiles:
    """A ``Files`` in memory. Set the faults as attributes between calls."""

    def __init__(self) -> None:
        self.entries: dict[Path, _Inode] = {}
        self.directories: dict[Path, _Directory] = {_ROOT: _Directory()}
        self.space_left: int | None = None
        """Bytes by which files may still grow before ENOSPC; None: no limit."""
        self.write_bytes_max: int | None = None
        """A write writes at most so many bytes (a short write)."""
        self.sync_error: int | None = None
        """Errno that every sync of a file fails with."""
        self.sync_error_name: str | None = None
        """Only for files whose path contains this."""
        self.directory_sync_error: int | None = None
        """Errno that every sync of a directory fails with."""
        self.sync_errors_left: int | None = None
        """So many syncs of such files fail; None: all."""
        self.is_failed_sync_forgotten = False
        """True: after a sync failed, the next one has nothing to write, as with Linux's page cache."""
        self.truncate_error: int | None = None
        """Errno that every truncation fails with."""
        self.opens_left: int | None = None
        """Files and directories that may still be opened before EMFILE; None: no limit."""
        self.read_error: int | None = None
        """Errno that every read fails with."""
        self.operations_left: int | None = None
        """Changes that still work before the power is gone; None: it stays."""
        self.is_sync_a_lie = False
        """True: sync answers and does nothing, as some disks do. For the canary."""
        self.syncs = 0
        self.written_bytes = 0
        self.locked: set[Path] = set()

    # -- faults

    def operate(self) -> None:
        """Count a change; raises EIO once the power is gone."""
        if self.operations_left is not None:
            if self.operations_left <= 0:
                raise OSError(errno.EIO, "the power is gone")
            self.operations_left -= 1

    def open(self) -> None:
        """Count an opening; raises EMFILE once there are no descriptors left."""
        if self.opens_left is not None:
            if self.opens_left <= 0:
                raise OSError(errno.EMFILE, "too many open files")
            self.opens_left -= 1

    def lose_power(self, randomness: random.Random, *, share: float | None = None) -> SimulatedFiles:
        """The disk as it is found after a power loss now.

        share: of the sectors not synced that survive; None: chosen for each file.
        """
        after = SimulatedFiles()
        survivors: dict[_Inode, _Inode] = {}  # a file may have several names

        def survive(inode: _Inode) -> _Inode:
            survivor = _Inode()
            survivor.durable = bytearray(inode.durable)
            surviving = randomness.choice((0.0, 0.5, 0.9, 1.0)) if share is None else share
            for operation in inode.pending:
                for part in _sectors(operation):
                    if randomness.random() < surviving:
                        inode.apply(survivor.durable, part)
            survivor.content = bytearray(survivor.durable)
            return survivor

        def visit(directory: _Directory, path: Path) -> None:
            names = dict(directory.durable)
            for change in directory.pending:
                if randomness.random() < 0.5:
                    names.update(change)
            found = after.directories[path] = _Directory()
            for name, node in names.items():
                if isinstance(node, _Directory):
                    visit(node, path / name)
                    found.durable[name] = after.directories[path / name]
                elif node is not None:
                    survivors[node] = survivors.get(node) or survive(node)
                    found.durable[name] = after.entries[path / name] = survivors[node]

        visit(self.directories[_ROOT], _ROOT)
        return after

    # -- Files

    def list_names(self, directory: Path) -> list[str]:
        self.open()
        if directory not in self.directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(directory))
        start = f"{directory}/".replace("//", "/")
        below = [path for path in (*self.entries, *self.directories) if str(path).startswith(start)]
        return sorted({path.name for path in below if path.parent == directory})

    def exists(self, path: Path) -> bool:
        return path in self.entries or path in self.directories

    def make_directory(self, directory: Path) -> None:
        self.operate()
        for path in (*reversed(directory.parents), directory):
            if path not in self.directories:
                self.directories[path] = _Directory()
                self._note(path, self.directories[path])

    def create(self, path: Path) -> WritableFile:
        self.open()
        self.operate()
        if path.parent not in self.directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
        inode = self.entries.get(path)
        if inode is None:
            inode = self.entries[path] = _Inode()
            self._note(path, inode)
        inode.content.clear()
        inode.pending.append(0)
        return _SimulatedWritable(self, inode, path)

    def open_writable(self, path: Path) -> WritableFile:
        self.open()
        return _SimulatedWritable(self, self._inode(path), path)

    def open_readable(self, path: Path) -> ReadableFile:
        self.open()
        return _SimulatedReadable(self, self._inode(path))

    def rename(self, source: Path, target: Path) -> None:
        self.operate()
        if source in self.directories:
            change: _Names = {target.name: self.directories[source], source.name: None}
            self.directories[target.parent].pending.append(change)
            for path in [path for path in self.entries if source in path.parents]:
                self.entries[target / path.relative_to(source)] = self.entries.pop(path)
            for path in [path for path in self.directories if source in (path, *path.parents)]:
                self.directories[target / path.relative_to(source)] = self.directories.pop(path)
            return
        inode = self.entries[target] = self.entries.pop(source)
        self._note(target, inode)
        self._note(source, None)

    def link(self, source: Path, target: Path) -> None:
        self.operate()
        inode = self.entries[target] = self._inode(source)
        self._note(target, inode)

    def remove(self, path: Path) -> None:
        self.operate()
        if self.entries.pop(path, None) is not None:
            self._note(path, None)

    def remove_tree(self, directory: Path) -> None:
        self.operate()
        for path in [path for path in self.entries if directory in path.parents]:
            del self.entries[path]
            self._note(path, None)
        for path in [path for path in self.directories if directory in (path, *path.parents)]:
            self._note(path, None)
        self.directories = {
            path: found for path, found in self.directories.items() if directory not in (path, *path.parents)
        }

    def rename_durably(self, source: Path, target: Path) -> None:
        self.open()
        self.rename(source, target)
        try:
            self._sync_directory(target.parent)
        except OSError as error:
            raise RenameInDoubtError(error.errno, error.strerror, str(target)) from error

    def sync_directory(self, directory: Path) -> None:
        self.open()
        self._sync_directory(directory)

    def _sync_directory(self, directory: Path) -> None:
        self.operate()
        if self.directory_sync_error is not None:
            raise OSError(self.directory_sync_error, "injected")
        self.directories[directory].sync()

    def _note(self, path: Path, node: _Inode | _Directory | None) -> None:
        """A name was given or taken, which is not durable yet."""
        self.directories[path.parent].pending.append({path.name: node})

    def lock(self, path: Path) -> DirectoryLock:
        if path in self.locked:
            raise DirectoryInUseError(f"{path} is locked.")
        self.locked.add(path)
        return _SimulatedLock(self.locked, path)

    def _inode(self, path: Path) -> _Inode:
        try:
            return self.entries[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path)) from None


class _SimulatedLock:
    def __init__(self, locked: set[Path], path: Path) -> None:
        self._locked = locked
        self._path = path

    def release(self) -> None:
        self._locked.discard(self._path)


class _SimulatedWritable:
    def __init__(self, files: SimulatedFiles, inode: _Inode, path: Path) -> None:
        self._files = files
        self._inode = inode
        self._path = path

    def write_at(self, buffers: Sequence[bytes], position: int) -> int:
        files = self._files
        files.operate()
        data = b"".join(buffers)
        if files.write_bytes_max is not None:
            data = data[: files.write_bytes_max]
        if files.space_left is not None:
            in_place = max(0, len(self._inode.content) - position)
            data = data[: in_place + files.space_left]
            if not data:
                raise OSError(errno.ENOSPC, "no space left on device")
            files.space_left -= max(0, len(data) - in_place)
        files.written_bytes += len(data)
        operation = (position, data)
        self._inode.apply(self._inode.content, operation)
        self._inode.pending.append(operation)
        return len(data)

    def sync(self) -> None:
        self._files.operate()
        self._files.syncs += 1
        name, left = self._files.sync_error_name, self._files.sync_errors_left
        is_meant = (name is None or name in str(self._path)) and left != 0
        if self._files.sync_error is not None and is_meant:
            if left is not None:
                self._files.sync_errors_left = left - 1
            if self._files.is_failed_sync_forgotten:
                self._inode.pending.clear()
            raise OSError(self._files.sync_error, "injected")
        if self._files.is_sync_a_lie:
            return
        for operation in self._inode.pending:
            self._inode.apply(self._inode.durable, operation)
        self._inode.pending.clear()

    def truncate(self, size: int) -> None:
        self._files.operate()
        if self._files.truncate_error is not None:
            raise OSError(self._files.truncate_error, "injected")
        self._inode.apply(self._inode.content, size)
        self._inode.pending.append(size)

    def allocate(self, size: int) -> None:
        missing = size - len(self._inode.content)
        if missing <= 0:
            return
        self._files.operate()
        if self._files.space_left is not None:
            if missing > self._files.space_left:
                raise OSError(errno.ENOSPC, "no space left on device")
            self._files.space_left -= missing
        self._inode.apply(self._inode.content, size)
        self._inode.pending.append(size)

    def reader(self) -> ReadableFile:
        self._files.open()
        return _SimulatedReadable(self._files, self._inode)

    def close(self) -> None:
        pass


class _SimulatedReadable:
    is_cache_known = True

    def __init__(self, files: SimulatedFiles, inode: _Inode) -> None:
        self._files = files
        self._inode = inode

    def read_at(self, count: int, position: int) -> bytes:
        if self._files.read_error is not None:
            raise OSError(self._files.read_error, "injected")
        return bytes(self._inode.content[position : position + count])

    def read_cached(self, into: memoryview, position: int) -> int | None:
        data = self.read_at(len(into), position)
        into[: len(data)] = data
        return len(data)

    def size(self) -> int:
        return len(self._inode.content)

    def close(self) -> None:
        pass


def _sectors(operation: _Pending) -> list[_Pending]:
    if isinstance(operation, int):
        return [operation]
    position, data = operation
    parts: list[_Pending] = []
    offset = 0
    while offset < len(data):
        length = min(_SECTOR_BYTES - (position + offset) % _SECTOR_BYTES, len(data) - offset)
        parts.append((position + offset, data[offset : offset + length]))
        offset += length
    return parts
