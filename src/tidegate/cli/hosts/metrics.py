"""The Prometheus metrics of running hosts, in one table that is read from their reports on request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidegate.cli.hosts.report import HostReport

PREFIX: Final = "tidegate_host_"

Samples = Iterable[tuple[tuple[str, ...], float]]
"""(label values without ``host``, value) of each sample."""


@dataclass(frozen=True, slots=True)
class HostMetric:
    """One row of the table."""

    name: str
    """Without ``PREFIX``; a counter's ends in ``_total``."""
    description: str
    read: Callable[[HostReport], Samples]
    labels: tuple[str, ...] = ()
    """Besides ``host``."""

    @property
    def is_counter(self) -> bool:
        """Whether it only grows, from 0 when the host's process starts."""
        return self.name.endswith("_total")

    def family(self, reports: Iterable[HostReport]) -> Metric:
        """The metric with the numbers of all hosts."""
        kind = CounterMetricFamily if self.is_counter else GaugeMetricFamily
        family = kind(PREFIX + self.name, self.description, labels=("host", *self.labels))
        for report in reports:
            for labels, value in self.read(report):
                family.add_metric((report.host, *labels), value)
        return family


HOST_METRICS: Final = (
    HostMetric("partitions", "Partitions that the host owns.", lambda host: [((), len(host.partitions))]),
    HostMetric(
        "events_total", "Events processed; a repeated batch counts again.",
        lambda host: [((), host.events_total)],
    ),
    HostMetric(
        "partition_state", "1 for the state that an owned partition is in.",
        lambda host: [((each.partition, each.state), 1.0) for each in host.partitions],
        ("partition", "state"),
    ),
    HostMetric(
        "partition_next_sequence_number", "The first event of the partition that is not processed.",
        lambda host: [
            ((each.partition,), each.next_sequence_number)
            for each in host.partitions if each.next_sequence_number is not None
        ],
        ("partition",),
    ),
    HostMetric(
        "partition_last_progress_seconds",
        "When a batch of the partition was last processed, in seconds since 1970-01-01 UTC.",
        lambda host: [
            ((each.partition,), each.last_progress_s)
            for each in host.partitions if each.last_progress_s is not None
        ],
        ("partition",),
    ),
    HostMetric(
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
        reports = list(self._reports.values())
        for row in HOST_METRICS:
            yield row.family(reports)
        if self._restarts is not None:
            name, description = RESTARTS
            yield CounterMetricFamily(PREFIX + name, description, value=self._restarts())
