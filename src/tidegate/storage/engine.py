"""What the broker needs of a log: the seam between ``broker`` and an engine that keeps it.

    LogEngine       creates and deletes the logs of hubs, and has the control log
    ControlLog      small values by key, each changed as a whole: the catalog, Capture's state, checkpoints
    PartitionLog    appends to one partition, and knows its bounds
    LogReader       reads a partition in order
    Backups         copies of everything as it was at one moment

The errors that every engine raises in the same words are at the end.

No file, path or thread is named here. Everything that an engine may have to ask another machine for is
awaited: an engine may answer late, and the file engine answers without waiting. Everything else is known at
once, on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tidegate.model.errors import ClosedError, LogFailedError, ServerBusyError, TidegateError
from tidegate.model.history import History
from tidegate.storage.producers import ProducerState
from tidegate.storage.record import AppendResult, ProducerBatch, RecordBatch


@dataclass(frozen=True, slots=True)
class Bounds:
    """The beginning and the end of a log at one moment."""

    begin_sequence_number: int
    """The first event held; ``next_sequence_number`` if there is none."""
    next_sequence_number: int
    """One past the last readable event."""
    last_enqueued_time_ms: int | None
    """Milliseconds since 1970-01-01 UTC; None if no event was ever enqueued."""
    histories: tuple[History, ...]
    """In order. The last one is of all that is appended until the log is closed; another opening adds one."""


class LogReader(Protocol):
    """Reads a log in order, from the number that it was opened with."""

    def take(self, bytes_max: int) -> list[RecordBatch]:
        """The next batches that are here now: about ``bytes_max`` bytes, at least one batch if there is one,
        and few of many small ones.

        Empty: ``wake`` is called when there may be more. The first batch may begin before the number wanted;
        it begins after it if retention, or a repair, removed events. Raises LogCorruptError (damaged events
        are never served), LogFailedError, ServerBusyError; the next call tries again.
        """
        ...

    def close(self) -> None:
        """End the reading; ``wake`` is not called any more. Harmless twice."""
        ...


class PartitionLog(Protocol):
    """The durable log of one partition. What is readable is durable; what is acknowledged is readable."""

    @property
    def failure(self) -> TidegateError | None:
        """Why it refuses all appends until a restart; None: it accepts them."""
        ...

    @property
    def is_closed(self) -> bool:
        """Whether the hub was deleted or the engine was closed: no more events will come."""
        ...

    @property
    def known_bounds(self) -> Bounds | None:
        """The bounds as last seen; None: the log could not be opened, and everything raises ``failure``."""
        ...

    @property
    def appended(self) -> tuple[int, int]:
        """Events and bytes stored since the start."""
        ...

    @property
    def stored_bytes(self) -> int:
        """The size of the log, as last seen."""
        ...

    def append_nowait(
        self,
        payload: bytes | memoryview,
        lengths: Sequence[int],
        *,
        enqueued_time_ms: int,
        producer: ProducerBatch | None = None,
    ) -> asyncio.Future[AppendResult]:
        """Queue a batch; the future resolves to its location in the log once it is durable.

        payload: the events end to end; lengths: bytes of each, at least one. Batches are stored in the order
        of the calls. enqueued_time_ms: raised to that of the previous batch if the clock went back. Raises
        InvalidArgumentError, ServerBusyError and ClosedError here; through the future LogFullError,
        LogFailedError, OutOfOrderSequenceError and ProducerEpochStolenError. Cancellation of the future: the
        batch is wholly in the log or wholly absent; others are unaffected.
        """
        ...

    def open_reader(self, start_sequence_number: int, wake: Callable[[], None]) -> LogReader:
        """Read from an event on; from the oldest one if retention removed it.

        wake: called on the loop when more can be taken, if the last ``take`` returned nothing, and when the
        log is closed; one call may be for many appends. It must neither block nor raise.
        """
        ...

    async def read(self, start_sequence_number: int, *, bytes_max: int) -> list[RecordBatch]:
        """About ``bytes_max`` bytes of batches from an event on, without a reader of one's own.

        At least one batch; none only at the end of the log. The rest as for ``LogReader.take``.
        """
        ...

    async def bounds(self) -> Bounds:
        """The bounds now: nothing that was acknowledged before the call is outside. Raises ClosedError."""
        ...

    async def sequence_number_at_time(self, time_ms: int) -> int:
        """The first event enqueued at ``time_ms`` (milliseconds since 1970-01-01 UTC) or later.

        ``next_sequence_number`` if there is none. Raises LogCorruptError, LogFailedError, ServerBusyError.
        """
        ...

    async def apply_retention(self, *, before_ms: int, bytes_max: int | None, seal_before_ms: int = 0) -> int:
        """Remove the oldest events, in units of the engine's choice; returns how many units.

        A unit is removed if all its events were enqueued before ``before_ms``, or if the rest still holds
        ``bytes_max`` bytes (None: no limit by size). One with an event enqueued before ``seal_before_ms``
        gets no more events: so no event stays because newer ones follow it. Raises LogFullError,
        ServerBusyError, LogFailedError, LogCorruptError, ClosedError.
        """
        ...

    async def producer_state(self, producer_id: int) -> ProducerState | None:
        """The state of an idempotent producer after all appends queued so far, all durable; None if unknown.

        Raises ClosedError, LogFailedError. Cancellation: leaves no trace.
        """
        ...

    @property
    def producers_known_since(self) -> int:
        """A producer that wrote at this sequence number or beyond is known: those before may be forgotten."""
        ...


@dataclass(frozen=True, slots=True)
class Cell:
    """A value of the control log."""

    version: int
    """Greater for each change of a key, also after its removal; from 1 on."""
    value: bytes


@dataclass(frozen=True, slots=True)
class ControlChange:
    """A change of one key's value."""

    key: str
    value: bytes | None
    """None removes the key."""
    expected_version: int
    """The version that the key has before; 0: it has no value."""


class ControlConflictError(ServerBusyError):
    """Another change of the key came first: nothing was changed. Read it again, and try again."""


class ChangeInDoubtError(LogFailedError):
    """A change was made, and may not survive a power loss. Until the restart, nothing may be promised that
    relies on the old value alone, or on the new one alone."""


class ControlLog(Protocol):
    """Values by key, each changed as a whole, in one order for all who use the engine."""

    def place(self, key: str) -> str:
        """Where a key is kept, for messages to the operator."""
        ...

    @property
    def failure(self) -> TidegateError | None:
        """Why it refuses changes until a restart; None: it accepts them."""
        ...

    async def read(self, key: str) -> Cell | None:
        """The value of a key; None if it has none. Raises LogFailedError, ServerBusyError."""
        ...

    async def read_all(self, prefix: str) -> dict[str, Cell]:
        """The values of all keys that begin with ``prefix``, in the order in which the keys were created.

        Raises LogFailedError, ServerBusyError.
        """
        ...

    async def change(self, key: str, value: bytes | None, *, expected_version: int) -> int:
        """Set the value of a key if it has ``expected_version`` (0: none); returns the new version.

        value: None removes the key. Durable on return. Raises ControlConflictError, ChangeInDoubtError, and
        LogFullError, ServerBusyError, LogFailedError: the old value then stays.
        Cancellation: the change may or may not take place.
        """
        ...

    async def change_all(self, changes: Sequence[ControlChange], *, may_borrow: bool = True) -> int:
        """Make changes of different keys, all or none, at about the cost of one; returns the new version of
        all these keys. may_borrow: False refuses them on a full disk, as events are, where other changes use
        the space that is kept for deletions. Otherwise as ``change``.
        """
        ...


class LineLog(Protocol):
    """The newest lines of a kind, within some MB. Not durable: a power loss may remove the last ones."""

    def read(self) -> list[bytes]:
        """All complete lines, oldest first. Call it before the first ``append``. A failure is logged."""
        ...

    def append(self, line: bytes) -> None:
        """Add a line, which ends with a line feed. A failure is logged."""
        ...

    def close(self) -> None:
        """Release it; harmless twice."""
        ...


class BackupState(Enum):
    """How far a backup is."""

    COPYING = "copying"
    COMPLETE = "complete"
    FAILED = "failed"
    """Nothing of it is left."""


@dataclass(frozen=True, slots=True)
class Backup:
    """A copy of all logs, and of the control log, as they were at one moment."""

    name: str
    place: str
    """Where it is when it is complete, for the operator."""
    state: BackupState
    partition_count: int | None = None
    """None, here and below: it was made before the last start."""
    event_count: int | None = None
    bytes_total: int | None = None
    bytes_copied: int | None = None
    failure: str | None = None
    """Why it failed."""


class Backups(Protocol):
    """The backups of an engine. One is made at a time."""

    async def create(self, name: str) -> Backup:
        """Begin a backup; returns once the moment is past. What was acknowledged before is in it.

        No log may be created or deleted, and no value changed that belongs to logs, until this returns. The
        copying then continues by itself; ``list_all`` says how far it is. name: new, and one of a file.
        Raises ServerBusyError (one is being made; a file is stuck), LogFullError, LogFailedError.
        Cancellation: the backup may or may not be made.
        """
        ...

    async def list_all(self) -> list[Backup]:
        """All backups: complete ones, and the one that was begun last. Raises LogFailedError."""
        ...

    async def delete(self, name: str) -> None:
        """Delete a backup; one that is being copied is given up. Raises NotFoundError, LogFailedError."""
        ...


class LogEngine(Protocol):
    """Keeps the logs of all hubs of one namespace."""

    @property
    def control(self) -> ControlLog:
        """The control log."""
        ...

    @property
    def backups(self) -> Backups | None:
        """Its backups; None: it makes none."""
        ...

    def open_lines(self, name: str) -> LineLog:
        """The lines of a kind."""
        ...

    async def create_logs(self, hub_id: str, partition_count: int) -> None:
        """Create those of a hub's logs "0", "1", … that do not exist yet, ready for use; durable on return.

        Existing ones stay as they are. Again after a failure is harmless.
        Raises LogFullError, ServerBusyError, LogFailedError.
        """
        ...

    def log(self, hub_id: str, partition_id: str) -> PartitionLog:
        """The log of a partition. One that cannot be opened has ``failure`` set and no known bounds."""
        ...

    def close_logs(self, hub_id: str) -> None:
        """Refuse everything more of a hub; its events stay."""
        ...

    async def delete_logs(self, hub_id: str) -> None:
        """Close a hub's logs and remove their events. What cannot be removed is logged.

        Cancellation: the logs are closed; the rest is removed at the next start.
        """
        ...

    def unknown_hub_ids(self, known: Iterable[str]) -> list[str]:
        """Logs of hubs that are not in ``known``; never changed, as they may be the only copy."""
        ...

    @property
    def is_congested(self) -> bool:
        """Whether too many appends wait: stop reading from producers."""
        ...

    async def wait_uncongested(self) -> None:
        """Wait until the engine is not congested. Cancellation: leaves no trace."""
        ...

    async def close(self) -> None:
        """Refuse new appends and finish queued ones. Harmless twice."""
        ...


def closed_error() -> ClosedError:
    """The error for calls after a log's end."""
    return ClosedError("The partition is closed: its event hub was deleted or the service is stopping.")


def copy_error(error: TidegateError) -> TidegateError:
    """A copy for one of several waiters: a shared error would collect the traceback of each."""
    copy = type(error)(error.message, next_step=error.next_step, retry_after_s=error.retry_after_s)
    copy.__cause__ = error.__cause__
    return copy
