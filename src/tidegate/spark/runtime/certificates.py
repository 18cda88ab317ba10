"""A certificate authority's file on the driver, carried to executors that have no such file."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from tidegate.model.errors import InvalidArgumentError


def read_certificates(path: str) -> str:
    """What the file holds. Raises InvalidArgumentError where it cannot be read, in words for the option."""
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, ValueError) as exc:
        why = "there is no such file" if isinstance(exc, FileNotFoundError) else "it cannot be read as PEM"
        raise InvalidArgumentError(f"The option eventhubs.caFile names {path!r}, and {why}.") from exc


def certificates_file(certificates: str) -> str:
    """A file on this machine that holds them: the same one for all processes of this user.

    It is in the directory for temporary files, named for its content, and looked at each time: such a
    directory is cleaned up now and then.
    """
    digest = hashlib.sha256(certificates.encode()).hexdigest()[:32]
    target = Path(tempfile.gettempdir()) / f"tidegate-{os.getuid()}-{digest}.pem"
    if _holds(target, certificates):
        return str(target)
    descriptor, temporary = tempfile.mkstemp(prefix="tidegate-", suffix=".pem")
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(certificates)
    os.replace(temporary, target)
    return str(target)


def _holds(path: Path, certificates: str) -> bool:
    """Whether it is ours and whole: somebody else's file of that name would be somebody else's authority."""
    try:
        return path.stat().st_uid == os.getuid() and path.read_text(encoding="ascii") == certificates
    except (OSError, ValueError):
        return False
