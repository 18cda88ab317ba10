"""Reads the two files of a control log, and decides which one counts. Writes nothing.

<data directory>/control.log     written first
<data directory>/control.copy    the same changes, written once they are durable in the first

A change is done when it is durable in both. So of two sound files the one with the higher revision counts: it
has everything that was done, and perhaps the change that a crash interrupted. A file that is not sound is
ignored if the other is, unless it shows that it was further.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate.model.errors import LogCorruptError
from tidegate.storage.control.records import ControlFile, read_file
from tidegate.storage.files import Files, read_whole
from tidegate.storage.write_errors import step_error

FILE_NAMES: Final = ("control.log", "control.copy")
OLD_NAME: Final = "catalog.json"
"""What the format before had."""

_REMEDY: Final = (
    "Restore control.log and control.copy from one backup, or see what `tidegate check DIR --repair` keeps."
)


@dataclass(frozen=True, slots=True)
class ControlFiles:
    """Both files as they were found."""

    found: tuple[ControlFile | None, ...]
    """None: there is no such file."""

    @property
    def is_new(self) -> bool:
        """Whether there is neither."""
        return not any(self.found)

    def best(self) -> ControlFile:
        """The file that counts. Raises LogCorruptError, which names file and offset, if neither can."""
        files = [file for file in self.found if file is not None]
        sound = [file for file in files if file.is_sound]
        damaged = [file for file in files if not file.is_sound]
        if len({file.log_id for file in sound}) > 1:
            raise LogCorruptError(
                f"{files[0].path} and {files[1].path} belong to different namespaces.", next_step=_REMEDY
            )
        if len(sound) == 2 and sound[0].revision == sound[1].revision and sound[0].cells != sound[1].cells:
            raise LogCorruptError(
                f"{files[0].path} and {files[1].path} differ at revision {sound[0].revision}.",
                next_step=_REMEDY,
            )
        if not sound:
            places = " and ".join(f"{file.path} at byte {file.end}" for file in files)
            raise LogCorruptError(f"The control log is damaged: {places}.", next_step=_REMEDY)
        best = max(sound, key=lambda file: file.revision)
        for file in damaged:
            if file.revision_seen > best.revision:
                raise LogCorruptError(
                    f"{file.path} is damaged at byte {file.end}, and {best.path} lacks its changes after "
                    f"revision {best.revision}.",
                    next_step=_REMEDY,
                )
        return best


def read_files(files: Files, directory: Path, *, is_used: bool) -> ControlFiles:
    """Read both files. is_used: whether the directory has logs, so that it had a control log, too.

    Raises LogCorruptError: a directory of the format before, of a later one, or without its control log; and
    ServerBusyError, LogFailedError.
    """
    found = ControlFiles(tuple(_read(files, directory / name) for name in FILE_NAMES))
    if found.is_new and files.exists(directory / OLD_NAME):
        raise LogCorruptError(
            f"The data directory {directory} has the format of an earlier version ({OLD_NAME}), which this "
            "version does not read.",
            next_step="Use another data directory, or run the version that wrote this one.",
        )
    if found.is_new and is_used:
        missing = directory / FILE_NAMES[0]
        raise LogCorruptError(
            f"{missing} and its copy are missing, but the logs of event hubs exist: a new namespace "
            "would not serve them.",
            next_step=_REMEDY,
        )
    return found


def _read(files: Files, path: Path) -> ControlFile | None:
    try:
        return read_file(path, read_whole(files, path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise step_error(error, "read the control log", path) from error
