"""Converts Spark's progress of a micro-batch to the terms of ``PipelineStatus``.

Pure, and without pyspark. The number of events is the smaller of two: by offsets, which include what a
restarted query skips, and by Spark's row count, which includes rows that a sink reads twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from tidegate.model.errors import InvalidArgumentError
from tidegate.model.pipeline_status import PipelineStatus
from tidegate.spark.progress.lag import parsed_offset, partition_lags


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """One completed micro-batch."""

    batch_id: int
    events: int
    rows: int | None
    """Written to the sink; None: it does not report them."""
    lag_by_partition: Mapping[str, int]
    figures: Mapping[str, Any]
    """Its other figures: fields of ``PipelineStatus``."""

    @classmethod
    def parse(cls, text: str) -> BatchProgress:
        """Read ``StreamingQueryProgress.json``. Raises InvalidArgumentError for anything else."""
        lags = partition_lags(text)
        value: dict[str, Any] = json.loads(text)
        try:
            batch_ms = int(value.get("batchDuration") or value["durationMs"].get("triggerExecution", 0))
            batch_id = int(value["batchId"])
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise InvalidArgumentError("This is not the progress of a streaming query.") from error
        row_count = int(value.get("numInputRows") or 0)
        spanned = _events_between(value["sources"])
        events = row_count if spanned is None else min(row_count, spanned)
        rate = value.get("inputRowsPerSecond")  # based on Spark's own row count
        input_rate = rate * events / row_count if isinstance(rate, int | float) and row_count else None
        rows = (value.get("sink") or {}).get("numOutputRows")
        watermark = (value.get("eventTime") or {}).get("watermark")
        operators = value.get("stateOperators") or []
        figures = {
            "input_events_per_s": input_rate,
            "processed_events_per_s": events * 1000 / batch_ms if batch_ms else None,
            "batch_ms": batch_ms,
            "watermark": None if watermark is None else datetime.fromisoformat(watermark),
            "state_rows": _sum(operators, "numRowsTotal"),
            "state_bytes": _sum(operators, "memoryUsedBytes"),
        }
        is_counted = isinstance(rows, int) and rows >= 0  # -1: the sink does not count
        return cls(batch_id, events, rows if is_counted else None, lags, figures)

    def applied_to(self, status: PipelineStatus) -> PipelineStatus:
        """The status after this micro-batch; one without events only changes the lag."""
        if self.lag_by_partition:
            lag = sum(self.lag_by_partition.values())
            status = replace(status, lag_events=lag, lag_by_partition=self.lag_by_partition)
        if self.events == 0 and not self.rows:
            return status
        return replace(
            status,
            batch_id=self.batch_id,
            batches=status.batches + 1,
            is_idle=False,
            events=self.events,
            events_total=status.events_total + self.events,
            rows=self.rows,
            rows_total=status.rows_total if self.rows is None else self.rows + (status.rows_total or 0),
            error=status.error if status.state.is_over else None,  # of a restart
            **self.figures,
        )


def _events_between(sources: list[Mapping[str, Any]]) -> int | None:
    """Events between the offsets of all sources, if all have the format ``eventhubs``; None: a source has
    another, or began with this micro-batch and so has no start."""
    total = 0
    for source in sources:
        try:
            start, end = parsed_offset(source.get("startOffset")), parsed_offset(source.get("endOffset"))
        except InvalidArgumentError:
            return None
        if start is None or end is None:
            return None
        total += sum(max(0, until - start.partitions.get(key, 0)) for key, until in end.partitions.items())
    return total


def _sum(operators: list[Mapping[str, Any]], name: str) -> int | None:
    return sum(int(item.get(name) or 0) for item in operators) if operators else None
