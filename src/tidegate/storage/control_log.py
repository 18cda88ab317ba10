"""The control log in files: one per key, replaced as a whole.

<data directory>/catalog.json        the key ``catalog``
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from tidegate.model.errors import LogFailedError
from tidegate.storage.engine import Cell, ChangeInDoubtError, ControlConflictError
from tidegate.storage.files import Files, RenameInDoubtError, read_whole, replace_whole
from tidegate.storage.write_errors import step_error

_logger: Final = logging.getLogger(__name__)


def control_path(directory: Path, key: str) -> Path:
    """The file of a key."""
    return directory / f"{key}.json"


class FileControlLog:
    """A ``ControlLog``; everything is answered without waiting."""

    def __init__(self, files: Files, directory: Path) -> None:
        self.failure: LogFailedError | None = None
        self._files = files
        self._directory = directory
        self._versions: dict[str, int] = {}

    def place(self, key: str) -> str:
        """See ``ControlLog``."""
        return str(control_path(self._directory, key))

    async def read(self, key: str) -> Cell | None:
        """See ``ControlLog``."""
        path = control_path(self._directory, key)
        try:
            value = read_whole(self._files, path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise step_error(error, f"read the {key}", path) from error
        return Cell(self._versions.setdefault(key, 1), value)

    async def change(self, key: str, value: bytes, *, expected_version: int) -> int:
        """See ``ControlLog``."""
        if self.failure is not None:
            raise LogFailedError(self.failure.message, next_step=self.failure.next_step)
        version = self._versions.get(key, 0)
        if version != expected_version:
            raise ControlConflictError(f"Version {version} of the {key} came before this change.")
        path = control_path(self._directory, key)
        try:
            replace_whole(self._files, path, value, is_durable=True)
        except RenameInDoubtError as error:
            # As after a failed sync of a log: a later sync that succeeds would prove nothing about this one.
            self.failure = ChangeInDoubtError(
                f"The {key} {path} accepts no more changes: it is not known whether the last one "
                f"survives a power loss, because the sync of {self._directory} failed ({error.strerror}).",
                next_step="Check the disk, restart the service, and look whether the change was made.",
            )
            _logger.error("%s", self.failure)
            raise self.failure from error
        except OSError as error:
            raise step_error(error, f"write the {key}", path) from error
        self._versions[key] = version + 1
        return version + 1
