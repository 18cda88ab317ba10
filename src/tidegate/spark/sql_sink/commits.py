"""Turns one hub partition's Arrow rows into a batch to commit."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.columns.valid import with_valid_text
from tidegate.model.events import ReceivedEvent
from tidegate.spark.source.hub import HubReader
from tidegate.spark.sql_sink.accounting import SequenceNumbers, sequence_numbers_of
from tidegate.spark.sql_sink.plan import SinkPlan, policy_of
from tidegate.sql import NewDeadLetter, Pipeline
from tidegate.sql.commit.engine import BatchScope
from tidegate.sql.commit.partition_batch import PartitionBatch, computed_batch, handled_batch
from tidegate.sql.core.arrow_rows import ArrowRows
from tidegate.sql.core.values import EventPlace, place_of
from tidegate.sql.handlers.arrow import account, run_batch_handler
from tidegate.sql.handlers.batches import (
    ENQUEUED_TIME_COLUMN,
    OFFSET_COLUMN,
    PARTITION_COLUMN,
    PARTITION_KEY_COLUMN,
    SEQUENCE_NUMBER_COLUMN,
)
from tidegate.sql.handlers.outages import OutageWatch
from tidegate.wire import event_codec

ENCODED_EVENT_COLUMN = "encodedEvent"
_POSITION_COLUMNS = (PARTITION_COLUMN, SEQUENCE_NUMBER_COLUMN, OFFSET_COLUMN, ENQUEUED_TIME_COLUMN)
_PLACE_COLUMNS = (OFFSET_COLUMN, ENQUEUED_TIME_COLUMN, PARTITION_KEY_COLUMN)

_NEW_OBJECTS_MAX = 50_000
"""New objects between garbage collections while a batch is handled (our choice: about a batch's events)."""


def to_batch(
    plan: SinkPlan, partition_id: str, rows: pa.Table, is_gap_allowed: bool, history_id: str | None = None
) -> PartitionBatch:
    """The batch to commit for a hub partition's rows, which are in the order of their sequence numbers.

    history_id: of the last event.

    Runs the pipeline's handler or batch function over events. Rows of a transformation stay as they are: an
    event with ``_error`` in any of its rows becomes a dead letter and writes no row; rows with ``_skip`` are
    not written. Raises OutageError if what the handler calls is away.
    """
    pipeline, claim, numbers = plan.pipeline, plan.claim, sequence_numbers_of(rows)
    scope = BatchScope(
        pipeline.consumer,
        partition_id,
        int(numbers[0]),
        int(numbers[-1]) + 1,
        claim.event_hub_created_at_ms,
        is_gap_allowed,
        claim.owner,
        claim.lease_epoch,
        pipeline.name,
        history_id,
    )
    groups: Sequence[ArrowRows]
    failures: Sequence[tuple[int, BaseException]]
    if plan.is_transformed:
        written, failures = account(rows, numbers, pipeline.table)
        groups = [written]
    elif pipeline.batch_handler is None:
        events = received_events(partition_id, rows)
        return handled_batch(pipeline, scope, events, on_failure=OutageWatch(policy_of(pipeline)).failed)
    else:
        batches = rows.combine_chunks().to_batches()  # one, as it fits into one transaction
        watch = OutageWatch(policy_of(pipeline))
        outcomes = [
            run_batch_handler(pipeline.batch_handler, pipeline.table, batch, on_failure=watch.failed)
            for batch in batches
        ]
        groups = [group for outcome in outcomes for group in outcome.groups]
        failures = [failure for outcome in outcomes for failure in outcome.failures]
    places = _Places(plan, partition_id, rows, numbers)
    return computed_batch(
        pipeline.table,
        scope,
        groups,
        positions=places.place_of,
        dead_letters=places.dead_letters(failures),
        last=places.last(),
    )


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage less often than after 700 new objects, while a task writes.

    A batch's events and rows live until its end, so each collection would visit most of them for nothing.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(_NEW_OBJECTS_MAX, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def received_events(partition_id: str, rows: pa.Table) -> list[ReceivedEvent]:
    """Rows of ``ENCODED_EVENT_SCHEMA`` as events that decode lazily."""
    return event_codec.received_events(
        partition_id,
        sequence_numbers_of(rows).tolist(),
        _values(rows.column(OFFSET_COLUMN)),
        _times_ms(rows),
        _values(rows.column(ENCODED_EVENT_COLUMN)),
    )


def _values(column: pa.ChunkedArray[Any]) -> list[Any]:
    """Text or bytes as Python's, all at once."""
    values: list[Any] = column.to_numpy().tolist()
    return values


def _times_ms(rows: pa.Table) -> list[int]:
    times_us = rows.column(ENQUEUED_TIME_COLUMN).cast(pa.int64()).to_numpy()
    milliseconds: list[int] = (times_us // 1000).tolist()
    return milliseconds


class _Places:
    """Events' places: from the bookkeeping columns if they were kept, else from the hub."""

    def __init__(self, plan: SinkPlan, partition_id: str, rows: pa.Table, numbers: SequenceNumbers) -> None:
        self._partition_id = partition_id
        self._plan = plan
        self._rows = rows
        self._numbers = numbers
        self._has_positions = all(
            name in rows.column_names and not rows.column(name).null_count
            for name in (OFFSET_COLUMN, ENQUEUED_TIME_COLUMN)
        )
        # A transformation decides what it keeps; a function does not see what it did not ask for.
        has_key = plan.is_transformed or PARTITION_KEY_COLUMN in rows.column_names
        self._is_in_rows = self._has_positions and has_key and not plan.pipeline.is_payload_copied

    def last(self) -> EventPlace | None:
        """The place of the last event, for the checkpoint; None: only the hub knows it."""
        return self._kept(int(self._numbers[-1])) if self._has_positions else None

    def dead_letters(self, failures: Sequence[tuple[int, BaseException]]) -> list[NewDeadLetter]:
        """The dead letters of failed events; places that only the hub knows are read together.

        Raises PositionOutOfRangeError if the hub no longer holds such an event.
        """
        places: dict[int, EventPlace] = {}
        if failures and not self._is_in_rows:
            events = HubReader(self._plan.source).read_events(
                self._partition_id, [number for number, _ in failures]
            )
            copied = self._plan.pipeline.is_payload_copied
            places = {event.sequence_number: place_of(event, is_payload_copied=copied) for event in events}
        return [
            NewDeadLetter.at_place(number, places.get(number) or self.place_of(number), error)
            for number, error in failures
        ]

    def place_of(self, sequence_number: int) -> EventPlace:
        """The place of one event. Raises PositionOutOfRangeError where the hub no longer holds it."""
        if not self._is_in_rows:
            (event,) = HubReader(self._plan.source).read_events(self._partition_id, [sequence_number])
            return place_of(event, is_payload_copied=self._plan.pipeline.is_payload_copied)
        return self._kept(sequence_number)

    def _kept(self, sequence_number: int) -> EventPlace:
        position = int(np.searchsorted(self._numbers, sequence_number))
        # Arrow validates all of a column's maps, whatever the slice.
        read = [name for name in _PLACE_COLUMNS if name in self._rows.column_names]
        row = with_valid_text(self._rows.select(read).slice(position, 1))
        key: str | None = None
        if PARTITION_KEY_COLUMN in row.column_names:
            key = row.column(PARTITION_KEY_COLUMN)[0].as_py()
        return EventPlace(row.column(OFFSET_COLUMN)[0].as_py(), _times_ms(row)[0], key)


def needed_columns(pipeline: Pipeline, is_transformed: bool) -> list[str]:
    """Columns that the sink needs; a batch function also has its own, and whole events for its policy."""
    if is_transformed:
        return [PARTITION_COLUMN, SEQUENCE_NUMBER_COLUMN]
    handler = pipeline.batch_handler
    asked = () if handler is None else handler.columns
    if handler is None or not policy_of(pipeline).is_plain:
        asked = (*asked, ENCODED_EVENT_COLUMN)
    return list(dict.fromkeys((*_POSITION_COLUMNS, *asked)))
