"""Prometheus metrics as a table, whose numbers are read from reports on request. It counts nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

Report = TypeVar("Report")
Samples = Iterable[tuple[tuple[str, ...], float]]
"""(label values, value) of each sample."""


@dataclass(frozen=True, slots=True)
class MetricRow(Generic[Report]):
    """One row of the table."""

    name: str
    """Without the table's prefix; a counter's ends in ``_total``."""
    description: str
    read: Callable[[Report], Samples]
    labels: tuple[str, ...] = ()
    """Besides the one that names the report."""

    @property
    def is_counter(self) -> bool:
        """Whether it only grows, from 0 at each start."""
        return self.name.endswith("_total")

    def family(self, prefix: str, label: str, reports: Iterable[tuple[str, Report]]) -> Metric:
        """The metric with the numbers of all reports. label: of their names."""
        kind = CounterMetricFamily if self.is_counter else GaugeMetricFamily
        family = kind(prefix + self.name, self.description, labels=(label, *self.labels))
        for name, report in reports:
            for labels, value in self.read(report):
                family.add_metric((name, *labels), value)
        return family
