"""docs/benchmarks.md and its pictures, from what ``make bench`` has kept."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from bench.kafka_broker import kafka_version
from bench.measure import Figure, Found, Measurement
from bench.reasons import reasons_of
from bench.report import machine
from bench.targets import Target, targets_of

_DOCS: Final = Path(__file__).parents[1] / "docs"
_PLACES: Final = "/usr/bin:/usr/sbin:/usr/local/bin:/usr/local/sbin:/usr/lib/postgresql/15/bin"
_DURABILITY: Final = (
    ("Tidegate", "on disk: one `fdatasync` for all that waits"),
    ("Redis", "on disk: `appendfsync always`"),
    ("NATS JetStream", "written; synced every two minutes, its default"),
    ("Kafka", "written; the operating system decides when it is on disk, its default"),
    ("PostgreSQL", "on disk: `fsync=on`, `synchronous_commit=on`; its own bulk loads too"),
    ("SQLite", "on disk at each commit: journal WAL, `synchronous=FULL`; its own bulk loads too"),
    ("a canned peer for the official SDK", "nothing is stored: the SDK's own ceiling"),
)
_OURS: Final = "#2f55c4"
_THEIRS: Final = "#8a8f98"
_ROW: Final = 24
_LABELS: Final = 300
_WIDTH: Final = 820


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a picture."""

    label: str
    value: float
    is_ours: bool = True


def write_page(parts: Mapping[str, Found], *, rounds: int) -> list[Path]:
    """Write the page and its pictures; returns what was written. A part that was not measured is left out."""
    written = []
    images = []
    for name, title, unit, bars in _pictures(parts):
        if bars:
            path = _DOCS / "images" / f"benchmark-{name}.svg"
            path.write_text(picture(title, unit, bars))
            written.append(path)
            images.append(f"![{title}: {_in_words(bars, unit)}](images/{path.name})\n")
    page = _DOCS / "benchmarks.md"
    page.write_text(
        _HEAD.format(
            rounds="one round, three of *shapes* and *sdk*" if rounds == 1 else f"median of {rounds} rounds"
        )
    )
    with page.open("a") as file:
        file.write("\n".join([*_setting(), "", "## In pictures", "", *images]))
        file.writelines(_section(name, parts) for name in parts)
    return [page, *written]


_HEAD: Final = """# Benchmarks

What `make bench` measured, each row beside its target, reached or not. Peers ran in the same run, in turns
with us: a shared machine has fast and slow hours, so **the ratios hold and the rates are an example**
({rounds}). `make bench ARGS=--page` renews this page.

Below the tables of a part stands why it missed targets, and their bound. A profile is a run of its own beside
other work: its CPU times and shares of samples count, its rates do not.

"""


def _setting() -> list[str]:
    lines = ["| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in (machine() | _versions()).items()]
    lines += ["", "| | acknowledged when |", "|---|---|"]
    return lines + [f"| {name} | {words} |" for name, words in _DURABILITY]


def _versions() -> dict[str, str]:
    found = {name: version(name) for name in ("azure-eventhub", "pyspark", "pyarrow")}
    for program in ("nats-server", "redis-server", "postgres"):
        if (path := shutil.which(program, path=_PLACES)) is not None:
            said = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
            if number := re.search(r"\d+\.\d+(\.\d+)?", said):
                found[program] = number[0]
    return found | {"Kafka": kafka_version()}


_NOTES: Final = {
    "shapes": """\
With 1, 32 and 1,024 partitions, links are open before events are written or read; how long that
takes for 1,024 is in the last table. Only the rates of record batches have it in them: to open a receiver
takes about a millisecond of CPU on either side.

Ratios to one partition are lower because batches are smaller, 250 KB and not 1 MB, and what costs is a batch,
not a partition; of this size, each is a sync of a file as well (1,097 for 1,024 batches, where one partition
had 241 for as many events). Batches of 49 events of 1 KB, links open, microseconds of CPU per batch (two
rounds beside other load, each 5,120 batches):

| | client, user | service, user | system, both |
|---|---:|---:|---:|
| ingest, 1 partition | 402, 378 | 502, 484 | 351, 283 |
| ingest, 1,024 partitions | 395, 442 | 553, 590 | 418, 378 |
| delivery, 1 partition | 353, 380 | 80, 98 | 53, 52 |
| delivery, 1,024 partitions | 567, 534 | 156, 158 | 120, 82 |

Ingest of the same batches costs about the same. In delivery, a reader of the whole hub has 16 MB of prefetch
for all partitions, so each of 1,024 asks for one batch at a time: a flow frame (some 60 on either side), a
call of `receive`, a look into the log and a turn for each batch, where one partition has several at once.
"""
}
"""By part: what its rows mean, and why they are as they are."""


def _section(name: str, parts: Mapping[str, Found]) -> str:
    found = parts[name]
    lines = ["", f"## {name}", ""]
    if note := _NOTES.get(name):
        lines.append(note)
    if found.stages or found.baselines:
        lines += ["| | events/s | CPU, µs per event | ratio |", "|---|---:|---:|---|"]
        lines += [_row_of(each) for each in (*found.stages, *found.baselines)]
        lines.append("")
    if targets := targets_of(found.stages):
        lines += ["| | compared with | ratio | target | |", "|---|---|---:|---:|---|"]
        lines += [_row_of_target(each) for each in targets]
        lines.append("")
    if found.figures:
        lines += ["| | figure | target | |", "|---|---:|---:|---|"]
        lines += [_row_of_figure(each) for each in found.figures]
        lines.append("")
    for reason in reasons_of(name, parts):
        lines += [reason, ""]
    return "\n".join(lines)


def _row_of(measurement: Measurement) -> str:
    ratios = "; ".join(f"{ratio:.3g} × {name}" for name, ratio in measurement.baselines.items())
    return (
        f"| {measurement.name} | {measurement.events_per_s:,.0f} | "
        f"{measurement.cpu_us_per_event:.2f} | {ratios} |"
    )


def _row_of_target(target: Target) -> str:
    return (
        f"| {target.stage} | {target.compared_with} | {target.reached:.2f} | ≥ {target.wanted:g} | "
        f"{_reached(target.is_met)} |"
    )


def _row_of_figure(figure: Figure) -> str:
    target = "" if figure.at_most is None else f"≤ {figure.at_most:,.4g} {figure.unit}"
    reached = "" if figure.at_most is None else _reached(figure.is_reached)
    return f"| {figure.what} | {figure.value:,.4g} {figure.unit} | {target} | {reached} |"


def _reached(is_reached: bool) -> str:
    return "reached" if is_reached else "**not reached**"


def _pictures(parts: Mapping[str, Found]) -> list[tuple[str, str, str, list[Bar]]]:
    """Name, title, unit and bars of each picture."""
    peers, shapes = parts.get("peers", Found()), parts.get("shapes", Found())
    spark, keyed = parts.get("spark", Found()), parts.get("keyed", Found())
    both = [*peers.stages, *peers.baselines]
    ours = {each.name for each in peers.stages}
    pictures = [
        (
            f"{way}{'-100-b' if small else ''}",
            f"{way.capitalize()} of {'100 B' if small else '1 KB'} events",
            "events/s",
            _bars(
                [each for each in both if each.name.startswith(way) and ("100 B" in each.name) == small], ours
            ),
        )
        for small in (False, True)
        for way in ("ingest", "delivery")
    ]
    for way in ("ingest", "delivery"):
        found = [each for each in shapes.stages if each.name.startswith(way)]
        pictures.append(
            (f"{way}-shapes", f"{way.capitalize()}, by what the events are", "events/s", _bars(found))
        )
    reads = [each for each in (*spark.stages, *spark.baselines) if "Spark read" in each.name]
    pictures.append(
        ("spark-reads", "Spark reads", "events/s", _bars(reads, {each.name for each in spark.stages}))
    )
    sinks = [each for each in spark.stages if each.name.startswith("exactly-once")]
    bulk = [each for each in spark.baselines if "Spark read" not in each.name]
    bars = _bars([*sinks, *bulk], {each.name for each in sinks})
    pictures.append(("exactly-once", "Exactly once into SQL, beside bulk loads", "rows/s", bars))
    latency = [Bar(each.what.partition(", ")[2], each.value) for each in keyed.figures]
    pictures.append(("keyed", "Publish → handler", "ms", latency))
    return pictures


def _bars(measurements: Sequence[Measurement], ours: set[str] | None = None) -> list[Bar]:
    return [Bar(each.name, each.events_per_s, ours is None or each.name in ours) for each in measurements]


def _in_words(bars: Sequence[Bar], unit: str) -> str:
    return ", ".join(f"{bar.label} {_number(bar.value)} {unit}" for bar in bars)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}"


def picture(title: str, unit: str, bars: Sequence[Bar]) -> str:
    """Horizontal bars as an SVG that needs nothing from elsewhere and stands on any background."""
    top, room = max(bar.value for bar in bars), _WIDTH - _LABELS - 110
    height = 40 + _ROW * len(bars) + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="#1f2328">',
        f"<title>{html.escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{height}" rx="6" fill="#ffffff"/>',
        f'<text x="12" y="24" font-weight="bold">{html.escape(title)} ({unit})</text>',
    ]
    for number, bar in enumerate(bars):
        y = 40 + _ROW * number
        width = max(1.0, room * bar.value / top)
        lines += [
            f'<text x="{_LABELS - 8}" y="{y + 16}" text-anchor="end">{html.escape(bar.label)}</text>',
            f'<rect x="{_LABELS}" y="{y + 4}" width="{width:.1f}" height="{_ROW - 8}" '
            f'fill="{_OURS if bar.is_ours else _THEIRS}"/>',
            f'<text x="{_LABELS + width + 6:.1f}" y="{y + 16}">{_number(bar.value)}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])
