"""The Prometheus metrics of a running pipeline, in one table that is read from its status on request.

It counts nothing itself: the numbers are those of the status file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tidegate.metric_rows import MetricRow, Samples
from tidegate.model.pipeline_status import PipelineState, PipelineStatus

PREFIX: Final = "tidegate_pipeline_"


def _of(name: str, description: str, field: str, *, scale: float = 1.0) -> MetricRow[PipelineStatus]:
    """A number of ``PipelineStatus``; omitted while it is unknown."""
    read = attrgetter(field)

    def samples(status: PipelineStatus) -> Samples:
        value = read(status)
        return [] if value is None else [((), float(value) * scale)]

    return MetricRow(name, description, samples)


PIPELINE_METRICS: Final[tuple[MetricRow[PipelineStatus], ...]] = (
    MetricRow(
        "state", "1 for the state that the pipeline is in.",
        lambda status: [((status.state.value,), 1.0)], ("state",),
    ),
    _of("batches_total", "Micro-batches that read something.", "batches"),
    _of("events_total", "Events read.", "events_total"),
    _of("rows_total", "Rows written to the sink; absent if it does not report them.", "rows_total"),
    _of("input_events_per_second", "Events of the last micro-batch per second since the one before.",
        "input_events_per_s"),
    _of("processed_events_per_second", "Events of the last micro-batch per second of its duration.",
        "processed_events_per_s"),
    _of("batch_seconds", "Duration of the last micro-batch.", "batch_ms", scale=0.001),
    MetricRow(
        "lag_events", "Events that were not yet read when the last micro-batch was planned.",
        lambda status: [((key,), float(lag)) for key, lag in status.lag_by_partition.items()],
        ("partition",),
    ),
    _of("dead_letters_open", "Open dead letters of the pipeline's hub and consumer group.",
        "dead_letters_open"),
    _of("state_rows", "Rows in the query's state; absent if it has none.", "state_rows"),
    _of("state_bytes", "Memory of the query's state.", "state_bytes"),
    MetricRow(
        "watermark_seconds", "The watermark, in seconds since 1970-01-01 UTC.",
        lambda status: [] if status.watermark is None else [((), status.watermark.timestamp())],
    ),
    MetricRow(
        "up", "1 while the query runs.",
        lambda status: [((), float(status.state is PipelineState.RUNNING))],
    ),
)  # fmt: skip
"""All metrics except prometheus-client's own of the process (``process_…``)."""


class PipelineCollector(Collector):
    """The table in the form that prometheus-client requires."""

    def __init__(self, status: Callable[[], PipelineStatus]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        for row in PIPELINE_METRICS:
            yield row.family(PREFIX, "pipeline", [(status.name, status)])
