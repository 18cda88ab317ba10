"""Idempotent producers of a partition: the last batches of each, so that repeats are recognised.

A batch is identified by producer id, epoch and the number of its first event. The table is derived state:
each snapshot contains it, and the batch headers written since then update it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tidegate.model.errors import OutOfOrderSequenceError, ProducerEpochStolenError, RepeatDiffersError
from tidegate.storage.record import AppendResult, ProducerBatch

SEQUENCE_MODULUS: Final = 2**31
"""Producer sequences are non-negative 32-bit integers on the wire
(com.microsoft:producer-sequence-number)."""

_RECENT_BATCHES_MAX = 16
"""Our choice: this many stored batches back, a repeat still gets its location (Kafka remembers 5)."""


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A stored batch of a producer."""

    sequence: int
    count: int
    start_sequence_number: int
    enqueued_time_ms: int
    body_crc: int | None = None
    """CRC32C of lengths and payload; None in a snapshot of an earlier version."""


@dataclass(frozen=True, slots=True)
class ProducerState:
    """The last batches of one producer."""

    epoch: int
    next_sequence: int
    batches: str = ""
    """The last stored batches, oldest first, as the manifest has them: JSON arrays of the fields of
    ``StoredBatch``, with commas between. Our choice: a quarter of the memory of objects, of which a partition
    would have 16,000, and a save of the manifest copies them."""

    @property
    def recent(self) -> list[StoredBatch]:
        """The last stored batches, oldest first."""
        return [StoredBatch(*fields) for fields in json.loads(f"[{self.batches}]")]


class ProducerTable:
    """The producers of one partition, the longest silent first."""

    def __init__(self, producers_max: int) -> None:
        self._producers_max = producers_max
        self._states: dict[int, ProducerState] = {}

    @property
    def states(self) -> dict[int, ProducerState]:
        """A copy, by producer id."""
        return dict(self._states)

    def get(self, producer_id: int) -> ProducerState | None:
        """The state of one producer; None if unknown."""
        return self._states.get(producer_id)

    @property
    def known_since(self) -> int:
        """Every producer whose last batch is at this sequence number or beyond is known. Thread-safe."""
        states = list(self._states.values())  # in one step: the writer's thread changes them
        if len(states) < max(1, self._producers_max - 1):  # ``record`` may have taken one out of a full table
            return 0
        return max((batch.start_sequence_number for batch in states[0].recent), default=0)

    def check(
        self, batch: ProducerBatch, count: int, body_crc: Callable[[], int] | None = None
    ) -> AppendResult | None:
        """The location of a batch of ``count`` events that is already stored; None if it is the next one.

        body_crc: called if a repeat must be compared with the stored batch. Raises ProducerEpochStolenError
        (an older epoch), OutOfOrderSequenceError (a gap, or a repeat too old to be remembered),
        RepeatDiffersError (only for ``is_repeatable`` batches).
        """
        state = self._states.get(batch.producer_id)
        if state is None:
            if batch.sequence == 0 or batch.is_start:
                return None
            raise OutOfOrderSequenceError(
                f"The producer {batch.producer_id} is unknown, and its batch begins with "
                f"number {batch.sequence} instead of 0.",
                next_step="An earlier batch was not stored. Send that batch, or start again as a new "
                "producer.",
            )
        if batch.epoch < state.epoch:
            raise ProducerEpochStolenError(
                f"The producer {batch.producer_id} now has epoch {state.epoch}; epoch "
                f"{batch.epoch} can no longer write.",
                next_step="Another instance took over. Stop this one, or start again as a new producer.",
            )
        is_beginning = batch.epoch > state.epoch and (batch.sequence == 0 or batch.is_start)
        is_next = batch.sequence == state.next_sequence
        if batch.is_repeatable and batch.epoch > state.epoch:
            # A batch after a refused one may happen to have the number with which the last epoch ended.
            is_next = is_beginning = batch.sequence == 0
        if is_next or is_beginning:
            return None
        if batch.epoch == state.epoch:
            for stored in reversed(state.recent):
                skipped = (batch.sequence - stored.sequence) % SEQUENCE_MODULUS
                if skipped + count <= stored.count:
                    if batch.is_repeatable and body_crc is not None:
                        _check_same(batch, count, stored, body_crc)
                    start = stored.start_sequence_number + skipped
                    return AppendResult(start, start + count, stored.enqueued_time_ms, is_duplicate=True)
        raise OutOfOrderSequenceError(
            f"The producer {batch.producer_id} sent a batch that begins with number "
            f"{batch.sequence}; expected number {state.next_sequence}.",
            next_step="An earlier batch was not stored. Send that batch, or start again as a new producer.",
        )

    def record(
        self,
        batch: ProducerBatch,
        count: int,
        start_sequence_number: int,
        enqueued_time_ms: int,
        body_crc: int | None = None,
    ) -> ProducerState | None:
        """Record a written batch; returns the previous state, for ``restore``. See also ``trim``."""
        before = self._states.pop(batch.producer_id, None)
        crc = "null" if body_crc is None else body_crc
        batches = f"[{batch.sequence},{count},{start_sequence_number},{enqueued_time_ms},{crc}]"
        if before is not None and before.epoch == batch.epoch and before.batches:
            kept = before.batches
            if kept.count("[") >= _RECENT_BATCHES_MAX:
                kept = kept[kept.index("]") + 2 :]
            batches = f"{kept},{batches}"
        self._states[batch.producer_id] = ProducerState(
            batch.epoch, (batch.sequence + count) % SEQUENCE_MODULUS, batches
        )
        return before

    def trim(self) -> None:
        """Forget the longest silent producers over the limit; call it once recorded batches are durable."""
        while len(self._states) > self._producers_max:
            del self._states[next(iter(self._states))]

    def restore(self, producer_id: int, state: ProducerState | None) -> None:
        """Undo a ``record`` (the latest first), or add a state from a snapshot."""
        self._states.pop(producer_id, None)
        if state is not None:
            self._states[producer_id] = state


def _check_same(batch: ProducerBatch, count: int, stored: StoredBatch, body_crc: Callable[[], int]) -> None:
    is_same = (batch.sequence, count) == (stored.sequence, stored.count)
    if is_same and stored.body_crc in (None, body_crc()):
        return
    raise RepeatDiffersError(
        f"The producer {batch.producer_id} repeated number {batch.sequence} (epoch "
        f"{batch.epoch}) with events that differ from those stored: {count} events now, "
        f"{stored.count} from number {stored.sequence} before.",
        next_step="A retry must send the same events in the same order. Nothing was stored.",
    )
