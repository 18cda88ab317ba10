"""The log of a partition that could not be opened: it refuses every call with the reason.

The other partitions of the service are served meanwhile. It has no bounds: a number would be a guess.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NoReturn

from tidegate.model.errors import TidegateError
from tidegate.storage.engine import Bounds, LogReader, closed_error, copy_error
from tidegate.storage.producers import ProducerState
from tidegate.storage.record import AppendResult, ProducerBatch, RecordBatch


class FailedLog:
    """A ``PartitionLog``; each call raises ``failure``, or ClosedError after ``close``."""

    def __init__(self, failure: TidegateError) -> None:
        self.failure = failure
        self.is_closed = False
        self.known_bounds = None
        self.appended = (0, 0)
        self.stored_bytes = 0

    def append_nowait(
        self,
        payload: bytes | memoryview,
        lengths: Sequence[int],
        *,
        enqueued_time_ms: int,
        producer: ProducerBatch | None = None,
    ) -> asyncio.Future[AppendResult]:
        self._refuse()

    def open_reader(self, start_sequence_number: int, wake: Callable[[], None]) -> LogReader:
        self._refuse()

    async def read(self, start_sequence_number: int, *, bytes_max: int) -> list[RecordBatch]:
        self._refuse()

    async def bounds(self) -> Bounds:
        self._refuse()

    async def sequence_number_at_time(self, time_ms: int) -> int:
        self._refuse()

    async def producer_state(self, producer_id: int) -> ProducerState | None:
        self._refuse()

    @property
    def producers_known_since(self) -> int:
        self._refuse()

    async def apply_retention(self, *, before_ms: int, bytes_max: int | None, seal_before_ms: int = 0) -> int:
        """0: what cannot be opened may be the only copy."""
        return 0

    def close(self) -> None:
        """The hub was deleted, or the service stops."""
        self.is_closed = True

    def _refuse(self) -> NoReturn:
        raise closed_error() if self.is_closed else copy_error(self.failure)
