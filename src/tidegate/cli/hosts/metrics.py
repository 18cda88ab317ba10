"""The Prometheus metrics of running hosts, in one table that is read from their reports on request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from tidegate.cli.hosts.report import HostReport
from tidegate.metric_rows import MetricRow

PREFIX: Final = "tidegate_host_"

HOST_METRICS: Final[tuple[MetricRow[HostReport], ...]] = (
    MetricRow("partitions", "Partitions that the host owns.", lambda host: [((), len(host.partitions))]),
    MetricRow(
        "events_total", "Events processed; a repeated batch counts again.",
        lambda host: [((), host.events_total)],
    ),
    MetricRow(
        "dead_letters_total", "Dead letters written, with parked events; their rate: rate(…[5m]).",
        lambda host: [((host.event_hub, host.consumer_group), host.dead_letters_total)],
        ("event_hub", "consumer_group"),
    ),
    MetricRow(
        "outbox_events", "Events that handlers have published and that are not known to be in their hubs.",
        lambda host: [((), host.outbox_events)],
    ),
    MetricRow(
        "relayed_events_total", "Published events that the host has brought into their hubs.",
        lambda host: [((), host.relayed_total)],
    ),
    MetricRow(
        "outbox_failing", "1 if published events wait because of an error, else 0.",
        lambda host: [((), float(host.outbox_error is not None))],
    ),
    MetricRow(
        "partition_state", "1 for the state that an owned partition is in.",
        lambda host: [((each.partition, each.state), 1.0) for each in host.partitions],
        ("partition", "state"),
    ),
    MetricRow(
        "partition_next_sequence_number", "The first event of the partition that is not processed.",
        lambda host: [
            ((host.event_hub, host.consumer_group, each.partition), each.next_sequence_number)
            for each in host.partitions if each.next_sequence_number is not None
        ],
        ("event_hub", "consumer_group", "partition"),
    ),
    MetricRow(
        "partition_last_progress_seconds",
        "When a batch of the partition was last processed, in seconds since 1970-01-01 UTC.",
        lambda host: [
            ((each.partition,), each.last_progress_s)
            for each in host.partitions if each.last_progress_s is not None
        ],
        ("partition",),
    ),
    MetricRow(
        "partition_failing", "1 if the latest attempt to process the partition failed, else 0.",
        lambda host: [((each.partition,), float(each.error is not None)) for each in host.partitions],
        ("partition",),
    ),
)  # fmt: skip
"""The metrics of each host."""

RESTARTS: Final = ("restarts_total", "Host processes that ended unexpectedly and were started again.")
"""A counter without labels, only with ``--processes``: name without ``PREFIX``, and description."""


class HostCollector(Collector):
    """The table in the form that prometheus-client requires."""

    def __init__(self, reports: Mapping[int, HostReport], restarts: Callable[[], int] | None = None) -> None:
        """reports: the latest of each host, a live view. restarts: None: nothing is restarted."""
        self._reports = reports
        self._restarts = restarts

    def collect(self) -> Iterator[Metric]:
        reports = [(report.host, report) for report in self._reports.values()]
        for row in HOST_METRICS:
            yield row.family(PREFIX, "host", reports)
        if self._restarts is not None:
            name, description = RESTARTS
            yield CounterMetricFamily(PREFIX + name, description, value=self._restarts())
