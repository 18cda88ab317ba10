"""Prometheus metrics as a table, whose numbers are read from reports on request. It counts nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

Report = TypeVar("Report")
Samples = Iterable[tuple[tuple[str, ...], float] | None]
"""(label values, value) of each sample. None: a step without one, for work in slices."""


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

    @property
    def kind(self) -> str:
        """As Prometheus has it."""
        return "counter" if self.is_counter else "gauge"

    def family(self, prefix: str, label: str | None, reports: Iterable[tuple[str, Report]]) -> Metric:
        """The metric with the numbers of all reports. label: of their names; None: there is one report, and
        it needs no name."""
        kind = CounterMetricFamily if self.is_counter else GaugeMetricFamily
        own = () if label is None else (label,)
        family = kind(prefix + self.name, self.description, labels=(*own, *self.labels))
        for name, report in reports:
            for labels, value in filter(None, self.read(report)):
                family.add_metric((*(name for _ in own), *labels), value)
        return family
