"""A certificate authority's file, read on the driver and recreated on executors that do not have it."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tidegate.model.errors import InvalidArgumentError


def read_certificates(given: Mapping[str, str], option: str) -> str | None:
    """The content of the file that an option names; None if it is not given. Raises InvalidArgumentError."""
    path = given.get(option)
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, ValueError) as exc:
        why = "there is no such file" if isinstance(exc, FileNotFoundError) else "it cannot be read as PEM"
        raise InvalidArgumentError(f"The option {option} is {path!r}, but {why}.") from exc


def certificates_file(certificates: str | None) -> str | None:
    """The path of a file on this machine with this content, shared by all of this user's processes.

    It is named for its content, in the directory for temporary files, which may be cleaned at any time.
    """
    if certificates is None:
        return None
    digest = hashlib.sha256(certificates.encode()).hexdigest()[:32]
    target = Path(tempfile.gettempdir()) / f"tidegate-{os.getuid()}-{digest}.pem"
    if not _holds(target, certificates):
        descriptor, temporary = tempfile.mkstemp(prefix="tidegate-", suffix=".pem")
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(certificates)
        os.replace(temporary, target)
    return str(target)


def _holds(path: Path, certificates: str) -> bool:
    """Whether the file is complete and ours, because another user's could hold another authority."""
    try:
        return path.stat().st_uid == os.getuid() and path.read_text(encoding="ascii") == certificates
    except (OSError, ValueError):
        return False
