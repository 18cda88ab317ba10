"""The two ways from Arrow rows of one hub partition to a committed batch: through a handler, or as they
are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.events import ReceivedEvent
from tidegate.spark.accounting import PARTITION_COLUMN, SEQUENCE_NUMBER_COLUMN, sequence_numbers_of
from tidegate.spark.hub import HubReader
from tidegate.spark.plan import SinkPlan
from tidegate.sql import (
    BatchResult,
    Database,
    EventPlace,
    NewDeadLetter,
    PartitionRows,
    commit_partition_batch,
    process_partition_batch,
)
from tidegate.sql.values import place_of
from tidegate.wire.event_codec import decode_event, event_body

OFFSET_COLUMN = "offset"
ENQUEUED_TIME_COLUMN = "enqueuedTime"
PARTITION_KEY_COLUMN = "partitionKey"
ENCODED_EVENT_COLUMN = "encodedEvent"
ERROR_COLUMN = "_error"
SKIP_COLUMN = "_skip"

BOOKKEEPING_COLUMNS = (
    PARTITION_COLUMN,
    SEQUENCE_NUMBER_COLUMN,
    OFFSET_COLUMN,
    ENQUEUED_TIME_COLUMN,
    PARTITION_KEY_COLUMN,
    ERROR_COLUMN,
    SKIP_COLUMN,
)
"""Columns of a transformed DataFrame that say which event a row came from and what is to become of it. They
are written to the table where it has columns of these names."""

TRANSFORMATION_ERROR_TYPE = "TransformationError"
"""``error_type`` of a dead letter that a transformation made by setting ``_error``."""

CommitRange = Callable[[Database, SinkPlan, str, pa.Table, bool], BatchResult]
"""(database, plan, partition id, rows in order of their sequence numbers, is_gap_allowed) → what was done."""


def commit_handled(
    database: Database, plan: SinkPlan, partition_id: str, rows: pa.Table, is_gap_allowed: bool
) -> BatchResult:
    """Run the pipeline's handler over encoded events, and commit what comes of it."""
    events = received_events(partition_id, rows)
    return process_partition_batch(
        database,
        plan.pipeline,
        partition_id,
        events,
        start_sequence_number=events[0].sequence_number,
        until_sequence_number=events[-1].sequence_number + 1,
        event_hub_created_at_ms=plan.claim.event_hub_created_at_ms,
        is_gap_allowed=is_gap_allowed,
        owner=plan.claim.owner,
        lease_epoch=plan.claim.lease_epoch,
    )


def received_events(partition_id: str, rows: pa.Table) -> list[ReceivedEvent]:
    """Rows of ``ENCODED_EVENT_SCHEMA`` as events that decode when a handler asks for their contents."""
    return [
        ReceivedEvent(
            partition_id=partition_id,
            sequence_number=sequence_number,
            offset=offset,
            enqueued_time_ms=enqueued_time_ms,
            encoded=encoded,
            decode=decode_event,
            decode_body=event_body,
        )
        for sequence_number, offset, enqueued_time_ms, encoded in zip(
            sequence_numbers_of(rows).tolist(),
            _texts(rows.column(OFFSET_COLUMN)),
            _times_ms(rows),
            rows.column(ENCODED_EVENT_COLUMN).to_pylist(),
            strict=True,
        )
    ]


def _texts(column: pa.ChunkedArray[Any]) -> list[str]:
    """The values of a column that has no nulls."""
    texts: list[Any] = column.to_pylist()
    return texts


def _times_ms(rows: pa.Table) -> list[int]:
    times_us = rows.column(ENQUEUED_TIME_COLUMN).cast(pa.int64()).to_numpy()
    milliseconds: list[int] = (times_us // 1000).tolist()
    return milliseconds


def commit_transformed(
    database: Database, plan: SinkPlan, partition_id: str, rows: pa.Table, is_gap_allowed: bool
) -> BatchResult:
    """Commit rows as a DataFrame transformation made them.

    An event with ``_error`` in any of its rows becomes a dead letter and writes no row; rows with ``_skip``
    are not written.
    """
    numbers = sequence_numbers_of(rows)
    places = _Places(plan, partition_id, rows)
    is_written = np.ones(len(numbers), dtype=bool)
    dead_letters: list[NewDeadLetter] = []
    if ERROR_COLUMN in rows.column_names:
        has_error = pc.is_valid(rows.column(ERROR_COLUMN)).to_numpy()
        for position in np.flatnonzero(has_error):
            number = int(numbers[position])
            if not dead_letters or dead_letters[-1].sequence_number != number:
                dead_letters.append(
                    places.dead_letter(number, rows.column(ERROR_COLUMN)[int(position)].as_py())
                )
        is_written &= ~np.isin(numbers, [letter.sequence_number for letter in dead_letters])
    if SKIP_COLUMN in rows.column_names:
        is_written &= ~np.array(rows.column(SKIP_COLUMN).to_pylist(), dtype=bool)
    written = rows if is_written.all() else rows.filter(pa.array(is_written))
    table = plan.pipeline.table
    columns = [name for name in rows.column_names if name in table.columns]
    return commit_partition_batch(
        database,
        table,
        plan.pipeline.consumer,
        partition_id,
        PartitionRows.from_columns(
            columns,
            [written.column(name).to_pylist() for name in columns],
            numbers[is_written].tolist(),
        ),
        positions=places.place_of,
        start_sequence_number=int(numbers[0]),
        until_sequence_number=int(numbers[-1]) + 1,
        dead_letters=dead_letters,
        event_hub_created_at_ms=plan.claim.event_hub_created_at_ms,
        is_gap_allowed=is_gap_allowed,
        owner=plan.claim.owner,
        lease_epoch=plan.claim.lease_epoch,
        pipeline_name=plan.pipeline.name,
    )


class _Places:
    """Where events lie: from the bookkeeping columns where they were kept, else from the hub itself."""

    def __init__(self, plan: SinkPlan, partition_id: str, rows: pa.Table) -> None:
        self._plan = plan
        self._partition_id = partition_id
        self._rows = rows
        self._numbers = sequence_numbers_of(rows)
        kept = {OFFSET_COLUMN, ENQUEUED_TIME_COLUMN} <= set(rows.column_names)
        self._is_in_rows = kept and not plan.pipeline.is_payload_copied

    def place_of(self, sequence_number: int) -> EventPlace:
        """The place of one event. Raises PositionOutOfRangeError where only the hub knew it, and forgot."""
        if not self._is_in_rows:
            hub = HubReader(self._plan.source)
            event = hub.read_event(self._partition_id, sequence_number)
            return place_of(event, is_payload_copied=self._plan.pipeline.is_payload_copied)
        position = int(np.searchsorted(self._numbers, sequence_number))
        row = self._rows.slice(position, 1)
        key: str | None = None
        if PARTITION_KEY_COLUMN in row.column_names:
            key = row.column(PARTITION_KEY_COLUMN)[0].as_py()
        return EventPlace(row.column(OFFSET_COLUMN)[0].as_py(), _times_ms(row)[0], key)

    def dead_letter(self, sequence_number: int, reason: str) -> NewDeadLetter:
        """The dead letter of an event for which the transformation gave ``reason``."""
        place = self.place_of(sequence_number)
        return NewDeadLetter(
            sequence_number=sequence_number,
            offset=place.offset,
            enqueued_time_ms=place.enqueued_time_ms,
            error_type=TRANSFORMATION_ERROR_TYPE,
            reason=reason,
            partition_key=place.partition_key,
            payload=place.payload,
        )


def missing_columns(names: Sequence[str], is_transformed: bool) -> list[str]:
    """Columns that the sink cannot do without and that are not among ``names``."""
    needed = [PARTITION_COLUMN, SEQUENCE_NUMBER_COLUMN]
    if not is_transformed:
        needed += [OFFSET_COLUMN, ENQUEUED_TIME_COLUMN, ENCODED_EVENT_COLUMN]
    return [name for name in needed if name not in names]
