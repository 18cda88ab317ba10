"""The capture state of a partition: how far it is, and what its next file holds. A value of the control log.

    1. save   planned = the file's name and its range of sequence numbers
    2. write  the file, under that name, with those events
    3. save   next = the end of that range, planned = nothing

A crash before 1 leaves nothing; between 1 and 3 the same file is written again, with the same bytes. So no
event is missing from the files, and none is in two.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Final

import msgspec

from tidegate.broker import ControlConflictError, ControlLog
from tidegate.model.errors import LogCorruptError
from tidegate.model.validation import from_values

CAPTURE_KEYS: Final = "capture/"
"""Before the id of a hub, ``/`` and the id of a partition."""

_FORMAT_VERSION: Final = 1


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
    is_full: bool
    """True if size closed the window, False if time did."""
    history_id: str | None = None
    """The history of the file's last event (see ``model.history``); None: unknown."""
    sync_marker: bytes | None = None
    """Random, and drawn once the file's events are in the log, so that no sender knows it; the same when the
    file is written again. None: an earlier version planned the file (see ``wire.capture.guessable_marker``).
    """


class PartitionState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far the capture of one partition is."""

    next_sequence_number: _Natural = 0
    """Events before it are in files, or no longer in the log."""
    window_start_ms: _Natural | None = None
    """When the open window began, milliseconds since 1970-01-01 UTC; None: it begins with the first event."""
    last_name_s: _Natural | None = None
    """The time in the last file's name, seconds since 1970-01-01 UTC: these times only increase."""
    planned: PlannedFile | None = None
    history_id: str | None = None
    """The history of the event before ``next_sequence_number``; None: unknown."""


class StateStore:
    """Stores the state of one partition, for one capture at a time."""

    def __init__(self, control: ControlLog, hub_id: str, partition_id: str) -> None:
        self._control = control
        self._key = f"{CAPTURE_KEYS}{hub_id}/{partition_id}"
        self._version = 0

    async def load(self) -> PartitionState | None:
        """The saved state; None if there is none. Raises LogCorruptError, LogFailedError, ServerBusyError."""
        cell = await self._control.read(self._key)
        if cell is None:
            return None
        self._version = cell.version
        try:
            document = msgspec.json.decode(cell.value, type=dict[str, object])
            if document.pop("format_version", None) == _FORMAT_VERSION and "planned" in document:
                return from_values(document, PartitionState)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass
        raise LogCorruptError(
            f"This version cannot read the capture state {self._control.place(self._key)}; capture of this "
            "partition has stopped.",
            next_step="Run the version that wrote it. Without it, retained events would be captured again.",
        )

    async def save(self, state: PartitionState) -> None:
        """Replace the state; durable on return. Call ``load`` first. Raises as ``ControlLog.change``."""
        value = msgspec.json.encode({"format_version": _FORMAT_VERSION, **msgspec.structs.asdict(state)})
        try:
            self._version = await self._control.change(self._key, value, expected_version=self._version)
        except ControlConflictError:
            # The answer to the same change may have been lost.
            cell = await self._control.read(self._key)
            if cell is None or cell.value != value:
                raise
            self._version = cell.version


async def remove_states(control: ControlLog, hub_ids: Collection[str]) -> None:
    """Remove the states of all hubs but these. Raises as ``ControlLog.change``."""
    for key, cell in (await control.read_all(CAPTURE_KEYS)).items():
        if key.split("/")[1] not in hub_ids:
            await control.change(key, None, expected_version=cell.version)
