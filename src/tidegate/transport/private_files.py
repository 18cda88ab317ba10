"""Files and directories that only this user may read: whatever holds what is in events."""

from __future__ import annotations

import os
from pathlib import Path


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """The ``opener`` of ``open`` for such a file: one that is made has mode 0600."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def make_private_directory(directory: Path) -> None:
    """Make a directory, and those above it that are missing, each with mode 0700. (``Path.mkdir`` gives it to
    the last one alone.) What is there stays as it is. Raises OSError.
    """
    if directory.is_dir():
        return
    if not directory.parent.exists():
        make_private_directory(directory.parent)
    directory.mkdir(mode=0o700, exist_ok=True)
