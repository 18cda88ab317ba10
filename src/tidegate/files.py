"""Files that are locked, replaced atomically, made durable, or private to this user (all with event data).

Client and command line use them on Windows, too, which has other locks and cannot sync a directory.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

try:
    import fcntl
except ModuleNotFoundError:
    IS_WINDOWS = True
    _msvcrt: Any = importlib.import_module("msvcrt")
else:
    IS_WINDOWS = False

BINARY: Final = getattr(os, "O_BINARY", 0)
"""A flag of ``os.open``: what is written stays as it is, on Windows as well."""

_LOCKED_AT: Final = 2**40
"""The byte that stands for a file on Windows, where a locked byte cannot be read."""


def lock_file(descriptor: int) -> None:
    """Lock an open file, until ``unlock_file`` or the end of the last process with a copy of the descriptor.

    Raises BlockingIOError while another one has it.
    """
    if not IS_WINDOWS:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    _at_lock(descriptor, _msvcrt.LK_NBLCK)


def unlock_file(descriptor: int) -> None:
    """Release the lock of an open file, for all copies of the descriptor."""
    if not IS_WINDOWS:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return
    _at_lock(descriptor, _msvcrt.LK_UNLCK)


def _at_lock(descriptor: int, mode: int) -> None:
    os.lseek(descriptor, _LOCKED_AT, os.SEEK_SET)
    try:
        _msvcrt.locking(descriptor, mode, 1)
    except PermissionError as error:
        raise BlockingIOError(*error.args) from None
    finally:
        os.lseek(descriptor, 0, os.SEEK_SET)


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """An ``opener`` for ``open`` that creates files with mode 0600."""
    return os.open(path, flags, 0o600)


def replace_file(path: Path, content: bytes, *, mode: int = 0o600, is_synced: bool = False) -> None:
    """Write a file atomically: a reader sees the old content or all of the new.

    mode: the permissions, before the umask; by default only this user may read it. is_synced: return when the
    new content is on disk. Raises OSError; the old content then remains.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if is_synced:
                file.flush()
                os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if is_synced:
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make creations, renames and removals in a directory durable. Raises OSError."""
    if IS_WINDOWS:
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_private_directory(directory: Path) -> None:
    """Create a directory and its missing parents, each with mode 0700. (``Path.mkdir`` applies the mode only
    to the last.) Existing ones are unchanged. Raises OSError."""
    if directory.is_dir():
        return
    if not directory.parent.exists():
        make_private_directory(directory.parent)
    directory.mkdir(mode=0o700, exist_ok=True)


def user_directory(environment: Mapping[str, str], own: str, xdg: str, default: str) -> Path:
    """This user's directory: in the variable ``own``, else ``tidegate`` in the one of the XDG base directory
    specification (the variable ``xdg``, else ``default`` in the home directory)."""
    if named := environment.get(own):
        return Path(named)
    return Path(environment.get(xdg) or Path.home() / default) / "tidegate"
