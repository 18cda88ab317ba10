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

from bench.measure import Figure, Found, Measurement
from bench.targets import Target, targets_of


def print_table(baselines: Sequence[Measurement], stages: Sequence[Measurement]) -> None:
    """One table of baselines, one of stages with their ratios, one of targets."""
    print_all({"": Found(list(baselines), list(stages))})


def print_all(parts: Mapping[str, Found]) -> None:
    """The same of several parts, and their figures."""
    console = Console(width=None if sys.stdout.isatty() else 130)
    baselines = [each for found in parts.values() for each in found.baselines]
    stages = [each for found in parts.values() for each in found.stages]
    figures = [each for found in parts.values() for each in found.figures]
    if baselines:
        console.print(_table("Baselines of this run", baselines))
    if stages:
        console.print(_table("Tidegate", stages))
    if figures:
        console.print(_figures_table(figures))
    if targets := targets_of(stages):
        console.print(_targets_table(targets))
    console.print(
        "CPU is client + service; a ratio is this rate by the baseline's, measured in the same run."
    )


def machine() -> dict[str, str]:
    """What it was measured on."""
    return {"python": platform.python_version(), "cpu": _cpu_model(), "system": platform.platform()}


def as_json(parts: Mapping[str, Found]) -> str:
    """One JSON object: the machine, and by part the baselines, stages, figures and targets."""
    return json.dumps(
        {
            "machine": machine(),
            "parts": {
                name: {
                    "baselines": [as_dict(each) for each in found.baselines],
                    "stages": [as_dict(each) for each in found.stages],
                    "figures": [asdict(each) | {"is_reached": each.is_reached} for each in found.figures],
                    "targets": [
                        asdict(target) | {"is_met": target.is_met} for target in targets_of(found.stages)
                    ],
                }
                for name, found in parts.items()
            },
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
    table = Table(title="Targets (rates: of a quiet machine of two cores)", title_justify="left")
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


def _figures_table(figures: Sequence[Figure]) -> Table:
    table = Table(title="Latency, memory and cost", title_justify="left")
    table.add_column("what")
    for column in ("figure", "target", "reached"):
        table.add_column(column, justify="right")
    for figure in figures:
        is_bound = figure.at_most is not None
        table.add_row(
            figure.what,
            f"{figure.value:,.4g} {figure.unit}",
            f"≤ {figure.at_most:,.4g} {figure.unit}" if is_bound else "–",
            "–" if not is_bound else "yes" if figure.is_reached else "no",
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
