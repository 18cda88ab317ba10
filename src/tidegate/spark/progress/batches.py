"""A micro-batch in numbers: what Spark's progress says, put into the terms of ``PipelineStatus``.

Pure, and without pyspark. Events are counted twice and the smaller number is taken: by offsets, which count
what a restarted query reads past, and by Spark's row count, which counts again what a sink reads twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.pipeline_status import PipelineStatus
from tidegate.spark.progress.lag import partition_lags
from tidegate.spark.source.offsets import StreamOffset


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """One micro-batch that is done."""

    batch_id: int
    began_at: datetime
    events: int
    input_events_per_s: float | None
    processed_events_per_s: float | None
    batch_ms: int
    lag_by_partition: Mapping[str, int]
    rows: int | None
    watermark: datetime | None
    state_rows: int | None
    state_bytes: int | None

    @classmethod
    def parse(cls, text: str) -> BatchProgress:
        """Read ``StreamingQueryProgress.json``. Raises InvalidArgumentError where it is no progress."""
        lags = partition_lags(text)
        value: dict[str, Any] = json.loads(text)
        try:
            began_at = datetime.fromisoformat(value["timestamp"])
            batch_ms = int(value.get("batchDuration") or value["durationMs"].get("triggerExecution", 0))
            batch_id = int(value["batchId"])
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise InvalidArgumentError("That is no progress of a streaming query.") from error
        row_count = int(value.get("numInputRows") or 0)
        spanned = _events_between(value["sources"])
        events = row_count if spanned is None else min(row_count, spanned)
        # Spark's rate is of its own row count.
        rate = value.get("inputRowsPerSecond")
        input_rate = rate * events / row_count if isinstance(rate, int | float) and row_count else None
        operators = value.get("stateOperators") or []
        watermark = (value.get("eventTime") or {}).get("watermark")
        return cls(
            batch_id=batch_id,
            began_at=began_at,
            events=events,
            input_events_per_s=input_rate,
            processed_events_per_s=events * 1000 / batch_ms if batch_ms else None,
            batch_ms=batch_ms,
            lag_by_partition=lags,
            rows=_rows((value.get("sink") or {}).get("numOutputRows")),
            watermark=None if watermark is None else datetime.fromisoformat(watermark),
            state_rows=_sum(operators, "numRowsTotal"),
            state_bytes=_sum(operators, "memoryUsedBytes"),
        )

    def applied_to(self, status: PipelineStatus) -> PipelineStatus:
        """The status after this micro-batch; one that had nothing to read only moves the lag."""
        lag = sum(self.lag_by_partition.values()) if self.lag_by_partition else status.lag_events
        status = replace(
            status, lag_events=lag, lag_by_partition=self.lag_by_partition or status.lag_by_partition
        )
        if self.events == 0 and not self.rows:
            return status
        rows_total = status.rows_total
        if self.rows is not None:
            rows_total = self.rows + (rows_total or 0)
        return replace(
            status,
            batch_id=self.batch_id,
            batches=status.batches + 1,
            is_idle=False,
            events=self.events,
            events_total=status.events_total + self.events,
            input_events_per_s=self.input_events_per_s,
            processed_events_per_s=self.processed_events_per_s,
            batch_ms=self.batch_ms,
            rows=self.rows,
            rows_total=rows_total,
            watermark=self.watermark,
            state_rows=self.state_rows,
            state_bytes=self.state_bytes,
        )


def _events_between(sources: list[Mapping[str, Any]]) -> int | None:
    """Events between the offsets of all sources of the format ``eventhubs``; None: there is none of those, or
    it began with this micro-batch, before which it was nowhere."""
    total = 0
    for source in sources:
        start, end = _offset(source.get("startOffset")), _offset(source.get("endOffset"))
        if start is None or end is None:
            return None
        total += sum(max(0, until - start.partitions.get(key, 0)) for key, until in end.partitions.items())
    return total


def _offset(value: object) -> StreamOffset | None:
    try:
        decoded = json.loads(value) if isinstance(value, str) else value
        return StreamOffset.from_json(decoded) if isinstance(decoded, dict) else None
    except (ValueError, InvalidArgumentError):
        return None


def _rows(count: object) -> int | None:
    """Spark says -1 where a sink does not count."""
    return count if isinstance(count, int) and count >= 0 else None


def _sum(operators: list[Mapping[str, Any]], name: str) -> int | None:
    return sum(int(item.get(name) or 0) for item in operators) if operators else None
