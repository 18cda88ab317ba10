"""The capture state of a partition: how far it is, and what its next file holds. A file, replaced atomically.

    1. save   planned = the file's name and its range of sequence numbers
    2. write  the file, under that name, with those events
    3. save   next = the end of that range, planned = nothing

A crash before 1 leaves nothing; between 1 and 3 the same file is written again, with the same bytes. So no
event is missing from the files, and none is in two.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec

from tidegate.files import make_private_directory, replace_file, sync_directory
from tidegate.model.errors import LogCorruptError

_FORMAT_VERSION = 1


_Natural = Annotated[int, msgspec.Meta(ge=0)]


class PlannedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file that is planned, or being written."""

    name: str
    """Below the destination."""
    start_sequence_number: _Natural
    until_sequence_number: _Natural
    event_bytes: _Natural
    """As stored; of the events that the log held when the file was planned."""
    next_start_ms: _Natural
    """When the next window opens."""
    is_full: bool | None = None
    """True if size closed the window, False if time did; None: planned by a version that did not save
    this."""


class PartitionState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far the capture of one partition is."""

    next_sequence_number: _Natural = 0
    """Events before it are in files, or no longer in the log."""
    window_start_ms: _Natural | None = None
    """When the open window began, milliseconds since 1970-01-01 UTC; None: it begins with the first event."""
    last_name_s: _Natural | None = None
    """The time in the last file's name, seconds since 1970-01-01 UTC: these times only increase."""
    planned: PlannedFile | None = None


class StateFile:
    """Stores the state of one partition in a file. ``load`` and ``save`` may block."""

    def __init__(self, path: Path) -> None:
        """path: created, with its directory, by the first ``save``."""
        self.path: Final = path
        self._is_directory_durable = False

    def load(self) -> PartitionState | None:
        """The saved state; None if there is none. Raises LogCorruptError, OSError."""
        try:
            document = msgspec.json.decode(self.path.read_bytes(), type=dict[str, object])
            if document.pop("format_version", None) == _FORMAT_VERSION and "planned" in document:
                return msgspec.convert(document, PartitionState)
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
        raise LogCorruptError(
            f"Cannot parse the capture state {self.path}; capture of this partition has stopped.",
            next_step="Restore it from a backup. Without it, all retained events would be captured again.",
        )

    def save(self, state: PartitionState) -> None:
        """Replace the state; durable on return. Raises OSError; the old state then remains."""
        directory = self.path.parent
        make_private_directory(directory)
        document = {"format_version": _FORMAT_VERSION, **msgspec.structs.asdict(state)}
        replace_file(
            self.path, msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n", is_synced=True
        )
        if not self._is_directory_durable:
            # Even if another partition created it: that one may not have synced it yet, or failed to.
            sync_directory(directory.parent)
            sync_directory(directory.parent.parent)
            self._is_directory_durable = True
