"""What a trial must show, a table of all of them, and JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from bench.floods.attack import Flood
from bench.floods.trial import Outcome, Phase

SLOWDOWN_MAX: Final = 20.0
"""How many times its base a canary's p99 may be under a flood: the issue's."""
BASE_MS_MIN: Final = 5.0
"""A base below it counts as it. Our choice: on a machine of two processors, a program that is awake beside
the service costs that much by itself."""
_DISTURBED_MS: Final = 40.0
STOP_BEGINS_S_MAX: Final = 1.0
_BOUND_KINDS: Final = ("send", "health")
_TALLIES_SHOWN: Final = 4


def slowdown(outcome: Outcome, kind: str) -> float:
    """The canary's p99 under the flood by its p99 before."""
    return outcome.under.p99_ms[kind] / max(outcome.base.p99_ms[kind], BASE_MS_MIN)


def is_base_disturbed(outcome: Outcome) -> bool:
    """Whether the canary waited for something before the flood began, so that ratios say too little."""
    return any(outcome.base.p99_ms[kind] > _DISTURBED_MS for kind in _BOUND_KINDS)


def broken_bounds(flood: Flood, outcome: Outcome) -> list[str]:
    """What the flood did that it must not be able to do; empty where all is well."""
    broken = [
        f"{kind} x{slowdown(outcome, kind):.0f}"
        for kind in _BOUND_KINDS
        if slowdown(outcome, kind) > SLOWDOWN_MAX
    ]
    if outcome.peak_mb - outcome.base_mb > flood.growth_mb_max:
        broken.append(f"+{outcome.peak_mb - outcome.base_mb:.0f} MB")
    if outcome.after_mb - outcome.base_mb > flood.kept_mb_max:
        broken.append(f"{outcome.after_mb - outcome.base_mb:.0f} MB kept")
    if not outcome.is_alive:
        broken.append("the service ended")
    broken += [f"{kind} fails afterwards" for kind, count in outcome.after.failed.items() if count]
    if outcome.lost is None:
        broken.append("nothing could be read")
    elif outcome.lost:
        broken.append(f"{outcome.lost} acknowledged events lost")
    if outcome.stop_begins_s is None or outcome.stop_begins_s > STOP_BEGINS_S_MAX:
        broken.append("SIGTERM is late")
    if outcome.stop_ends_s is None:
        broken.append("it does not stop")
    return broken


def as_json(outcomes: Sequence[tuple[str, Outcome]]) -> str:
    """Trees' names and outcomes, for scripts and for ``read_json``."""
    return json.dumps([{"tree": tree} | asdict(outcome) for tree, outcome in outcomes], indent=1) + "\n"


def read_json(file: Path) -> list[Outcome]:
    """The outcomes that ``as_json`` wrote."""
    found = []
    for values in json.loads(file.read_text()):
        del values["tree"]
        for phase in ("base", "under", "after"):
            values[phase] = Phase(**values[phase])
        found.append(Outcome(**values))
    return found


def print_table(floods: Sequence[Flood], outcomes: Sequence[tuple[str, Outcome]]) -> None:
    """A line for each flood and tree: what the canary noticed, memory, stop, bounds broken."""
    by_name = {flood.name: flood for flood in floods}
    table = Table(title="What a quiet user notices of a flood", title_justify="left")
    for column in ("flood", "tree"):
        table.add_column(column, no_wrap=True)
    for column in ("send p99 ms", "health p99 ms", "connect p99 ms", "memory MB", "CPU", "stop s"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("answers", "bounds broken"):
        table.add_column(column)
    for tree, outcome in outcomes:
        flood = by_name.get(outcome.flood)
        if flood is None:
            continue
        answers = sorted(outcome.tally.items(), key=lambda item: -item[1])[:_TALLIES_SHOWN]
        table.add_row(
            outcome.flood,
            tree,
            *(
                f"{outcome.base.p99_ms[kind]:,.0f} → {outcome.under.p99_ms[kind]:,.0f}"
                for kind in ("send", "health", "connect")
            ),
            f"{outcome.base_mb:,.0f} → {outcome.peak_mb:,.0f} → {outcome.after_mb:,.0f}",
            f"{outcome.cpu:.2f}",
            f"{_seconds(outcome.stop_begins_s)} / {_seconds(outcome.stop_ends_s)}",
            ", ".join(f"{name} {count:,}" for name, count in answers),
            ", ".join(broken_bounds(flood, outcome)) or "none",
        )
    Console(width=None if sys.stdout.isatty() else 220, emoji=False, markup=False).print(table)


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f}"
