"""How far a checkpoint is behind the end of its partition's log: for the command line and for the console."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tidegate.model.partition_ends import PartitionEnds
from tidegate.processor.checkpoint import ProcessorCheckpoint

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a checkpoint is behind the end of its partition's log."""

    events: int | None
    """Still to be read. None: unknown, for the checkpoint has no sequence number or is not of this log."""
    seconds: float | None
    """Enqueued time of the log's last event minus that of the last processed one; 0 when caught up. None:
    unknown, for nothing was processed yet, or when it was enqueued is not stored."""
    lost_events: int | None
    """Those that retention removed before they were read; None as for ``events``."""
    is_beyond_log: bool = False
    """The checkpoint is not of this log: it lies beyond its end, or counts in another hub of this name."""


def lag_of(
    partition: PartitionEnds,
    checkpoint: ProcessorCheckpoint | None,
    *,
    event_hub_created_at_ms: int | None = None,
) -> Lag:
    """The lag of one partition; without a checkpoint everything that is held is to be read.

    event_hub_created_at_ms: which hub the log is of; None: not compared with the checkpoint's.
    """
    # An empty partition of Azure may say -1; ours says where its next event will be.
    begin = partition.begin_sequence_number
    until = partition.next_sequence_number
    if checkpoint is None:
        return Lag(until - begin, 0.0 if begin == until else None, 0)
    stored_ms = checkpoint.event_hub_created_at_ms
    if None not in (stored_ms, event_hub_created_at_ms) and stored_ms != event_hub_created_at_ms:
        return Lag(None, None, None, is_beyond_log=True)
    if checkpoint.sequence_number is None:
        is_at_end = checkpoint.offset is not None and checkpoint.offset == partition.last_enqueued_offset
        return Lag(0, 0.0, 0) if is_at_end else Lag(None, _seconds(partition, checkpoint), None)
    # -1, nothing is processed yet, asks for the first event there is: none is lost to it.
    following = checkpoint.sequence_number + 1 if checkpoint.sequence_number >= 0 else begin
    if following > until:
        return Lag(None, None, None, is_beyond_log=True)
    events = until - max(begin, following)
    return Lag(
        events,
        _seconds(partition, checkpoint) if events else 0.0,
        max(0, begin - following),
    )


def total_of(lags: Sequence[Lag]) -> Lag:
    """The lag of several partitions: known events summed up, and the most seconds; None where one's are not
    known, for the most of the others would look like good news.
    """
    known = [lag.seconds for lag in lags if lag.seconds is not None]
    return Lag(
        sum(lag.events or 0 for lag in lags),
        max(known, default=None) if len(known) == len(lags) else None,
        sum(lag.lost_events or 0 for lag in lags),
        any(lag.is_beyond_log for lag in lags),
    )


def _seconds(partition: PartitionEnds, checkpoint: ProcessorCheckpoint) -> float | None:
    if checkpoint.enqueued_time_ms is None or partition.last_enqueued_time is None:
        return None
    processed = _EPOCH + timedelta(milliseconds=checkpoint.enqueued_time_ms)
    return max(0.0, (partition.last_enqueued_time - processed).total_seconds())
