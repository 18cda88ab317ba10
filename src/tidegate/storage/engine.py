"""What the broker needs of a log: the seam between ``broker`` and an engine that keeps it.

    LogEngine       creates and deletes the logs of hubs
    PartitionLog    appends to one partition, and knows its bounds
    LogReader       reads a partition in order

No file, path or thread is named here. Everything that an engine may have to ask another machine for is
awaited: an engine may answer late, and the file engine answers without waiting. Everything else is known at
once, on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tidegate.model.errors import TidegateError
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


class LogReader(Protocol):
    """Reads a log in order, from the number that it was opened with."""

    def take(self, bytes_max: int) -> list[RecordBatch]:
        """The next batches that are here now: about ``bytes_max`` bytes, at least one batch if there is one.

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

        wake: called on the loop when more can be taken, and when the log is closed; one call may be for many
        appends. It must neither block nor raise.
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

    async def apply_retention(self, *, before_ms: int, bytes_max: int | None) -> int:
        """Remove the oldest events, in units of the engine's choice; returns how many units.

        A unit is removed if all its events were enqueued before ``before_ms``, or if the rest still holds
        ``bytes_max`` bytes (None: no limit by size). Raises LogFullError, ServerBusyError, LogFailedError,
        LogCorruptError, ClosedError.
        """
        ...

    async def producer_state(self, producer_id: int) -> ProducerState | None:
        """The state of an idempotent producer after all appends queued so far; None if unknown.

        Raises ClosedError. Cancellation: leaves no trace.
        """
        ...
