"""The log of a partition that could not be opened: it refuses every call with the reason.

The other partitions of the service are served meanwhile. It has no bounds: a number would be a guess.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

from tidegate.model.errors import TidegateError
from tidegate.storage.partition_log import closed_error, copy_error
from tidegate.storage.producers import ProducerState
from tidegate.storage.record import AppendResult, ProducerBatch, RecordBatch


class FailedLog:
    """Stands for a ``PartitionLog``; each call raises ``failure``, or ClosedError after ``close``."""

    def __init__(self, failure: TidegateError) -> None:
        self.failure = failure
        self.is_closed = False
        self.is_failed = True
        self.appended = (0, 0)
        self._listeners: dict[object, Callable[[], None]] = {}

    def append_nowait(
        self,
        payload: bytes | memoryview,
        lengths: Sequence[int],
        *,
        enqueued_time_ms: int,
        producer: ProducerBatch | None = None,
    ) -> asyncio.Future[AppendResult]:
        self._refuse()

    async def producer_state(self, producer_id: int) -> ProducerState | None:
        self._refuse()

    @property
    def begin_sequence_number(self) -> int:
        self._refuse()

    @property
    def next_sequence_number(self) -> int:
        self._refuse()

    @property
    def last_enqueued_time_ms(self) -> int | None:
        self._refuse()

    def stored_bytes(self) -> int:
        """0: unknown."""
        return 0

    def read_nowait(self, start_sequence_number: int, *, bytes_max: int) -> list[RecordBatch]:
        self._refuse()

    def sequence_number_at_time(self, time_ms: int) -> int:
        self._refuse()

    async def wait_appended(self, sequence_number: int) -> None:
        self._refuse()

    def add_append_listener(self, listener: Callable[[], None]) -> Callable[[], None]:
        """``listener`` is called at close."""
        key = object()
        self._listeners[key] = listener
        return partial(self._remove_listener, key)

    async def apply_retention(self, *, before_ms: int, bytes_max: int | None) -> int:
        """Nothing is removed: it may be the only copy."""
        return 0

    def close(self) -> None:
        """The hub was deleted, or the service stops."""
        self.is_closed = True
        for listener in list(self._listeners.values()):
            listener()

    def _remove_listener(self, key: object) -> None:
        self._listeners.pop(key, None)

    def _refuse(self) -> NoReturn:
        raise closed_error() if self.is_closed else copy_error(self.failure)
