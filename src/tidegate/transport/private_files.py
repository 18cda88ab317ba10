"""Files and directories that only this user may read, for anything that holds event data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """An ``opener`` for ``open`` that creates files with mode 0600."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def write_private_file(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Write a file atomically: a reader sees the old content or all of the new.

    mode: the permissions; by default only this user may read it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    os.replace(temporary, path)


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
