"""Measurements as a table for people and as JSON for scripts."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.measure import Measurement
from bench.targets import Target, targets_of


def print_table(baselines: Sequence[Measurement], stages: Sequence[Measurement]) -> None:
    """One table of baselines, one of stages with their ratios."""
    console = Console(width=None if sys.stdout.isatty() else 130)
    console.print(_table("Baselines of this run", baselines))
    console.print(_table("Tidegate", stages))
    if targets := targets_of(stages):
        console.print(_targets_table(targets))
    console.print(
        "CPU is client + service; a ratio is this rate by the baseline's, measured in the same run."
    )


def as_json(
    baselines: Sequence[Measurement],
    stages: Sequence[Measurement],
    home_security: Mapping[str, object] | None = None,
) -> str:
    """One JSON object: the machine, the baselines, the stages; home security's state size and latency."""
    return json.dumps(
        {
            "machine": {
                "python": platform.python_version(),
                "cpu": _cpu_model(),
                "system": platform.platform(),
            },
            "baselines": [as_dict(measurement) for measurement in baselines],
            "stages": [as_dict(measurement) for measurement in stages],
            "targets": [asdict(target) | {"is_met": target.is_met} for target in targets_of(stages)],
            "home_security": home_security,
        },
        indent=2,
    )


def as_dict(measurement: Measurement) -> dict[str, object]:
    """What scripts get of a measurement."""
    return {
        "name": measurement.name,
        "events": measurement.events,
        "events_per_s": round(measurement.events_per_s),
        "megabytes_per_s": round(measurement.megabytes_per_s, 1),
        "cpu_us_per_event": round(measurement.cpu_us_per_event, 2),
        "service_us_per_event": round(measurement.service_us_per_event, 2),
        "ratios": {name: round(ratio, 3) for name, ratio in measurement.baselines.items()},
    }


def _targets_table(targets: Sequence[Target]) -> Table:
    table = Table(title="Spark's targets (rates: of a quiet machine of two cores)", title_justify="left")
    table.add_column("stage")
    table.add_column("compared with")
    for column in ("ratio", "target", "reached"):
        table.add_column(column, justify="right")
    for target in targets:
        table.add_row(
            target.stage,
            target.compared_with,
            f"{target.reached:.2f}",
            f"≥ {target.wanted:.1f}",
            "yes" if target.is_met else "no",
        )
    return table


def _table(title: str, measurements: Sequence[Measurement]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("stage")
    for column in ("events", "events/s", "MB/s", "CPU µs/event", "of it service"):
        table.add_column(column, justify="right")
    table.add_column("ratio to baseline")
    for measurement in measurements:
        table.add_row(
            measurement.name,
            f"{measurement.events:,}",
            f"{measurement.events_per_s:,.0f}",
            f"{measurement.megabytes_per_s:,.1f}" if measurement.payload_bytes else "–",
            f"{measurement.cpu_us_per_event:.2f}",
            f"{measurement.service_us_per_event:.2f}" if measurement.service_cpu_s else "–",
            "\n".join(f"{ratio:.3g} × {name}" for name, ratio in measurement.baselines.items()) or "–",
        )
    return table


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
