"""``tidegate bench``: what a service on this machine does, beside what its disk and its loopback do alone.

The rule: figures of the same run are compared, since only ratios carry from one machine to another.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from tidegate.cli.shell.decorators import FILE, option
from tidegate.cli.shell.interrupt import run_interruptible
from tidegate.cli.shell.options import with_output
from tidegate.cli.shell.render import Output
from tidegate.files import IS_WINDOWS
from tidegate.model.errors import InvalidArgumentError

WRITE: Final = "disk: sync 1 MB"
SYNC: Final = "disk: sync 4 KB"
LOOPBACK: Final = "loopback: copy 1 MB"
_COLUMNS: Final = ("measured", "per_s", "MB_per_s", "ratio", "to")
_FIRST: Final = "measured per_s MB_per_s ratio to"


@dataclass(frozen=True, slots=True)
class Measured:
    """How often something was done, and how many bytes it moved."""

    name: str
    count: int
    byte_count: int
    seconds: float
    compared_with: str = ""
    """The measurement that sets its limit; "": none."""

    @property
    def per_s(self) -> float:
        """Times per second."""
        return self.count / max(self.seconds, 1e-9)

    @property
    def mb_per_s(self) -> float:
        """Megabytes per second."""
        return self.byte_count / max(self.seconds, 1e-9) / 1e6


@click.command()
@option(
    "--data-dir",
    "DIR",
    "Measure this directory's disk, in a folder that is deleted again. Default: that of temporary files.",
    FILE,
)
@option(
    "--seconds",
    "S",
    "How long each of the seven measurements takes.",
    click.FloatRange(min=0, min_open=True, max=600),
    default=3.0,
)
@with_output()
def bench(output: Output, data_dir: Path | None, seconds: float) -> None:
    """Measure what a service does on this machine, beside its disk and loopback.

    A temporary service on a free port of this machine stores 1 KB events in batches, then events sent one at
    a time and 64 at a time, each acknowledged after a sync, and delivers them. Beside it stand what the disk
    writes and syncs without it, and what a TCP connection on loopback carries. The ratio is to that limit:
    0.5 is half of it; above 1, several sends shared one sync. Client and service share the processors.

    Service, folder and everything in it are gone afterwards, also after Ctrl-C.

    Examples:
      tidegate bench
      tidegate bench --data-dir /srv/tidegate --seconds 1 --json
    """
    if IS_WINDOWS:
        raise InvalidArgumentError("The service does not run on Windows.", next_step="Run it in WSL.")
    if data_dir is not None and not (data_dir.is_dir() and os.access(data_dir, os.W_OK)):
        raise InvalidArgumentError(f"{data_dir} is no directory that you can write to.")
    from tidegate.cli.service.measuring import measure

    found = run_interruptible(measure(data_dir, seconds))
    records = records_of(found)
    if output.is_table:
        # A table's numbers have one decimal.
        texts = [None if each["ratio"] is None else f"{each['ratio']:.2f}" for each in records]
        records = [{**each, "ratio": text} for each, text in zip(records, texts, strict=True)]
    output.records(records, columns=_COLUMNS, title="This machine", first=_FIRST)


def records_of(found: Sequence[Measured]) -> list[dict[str, object]]:
    """Rows of the table: each figure beside its limit."""
    by_name = {each.name: each for each in found}
    records: list[dict[str, object]] = []
    for each in found:
        limit = by_name.get(each.compared_with)
        ratio = None
        if limit is not None:
            # Sends are compared by number, streams by bytes.
            is_counted = each.compared_with == SYNC
            ratio = each.per_s / limit.per_s if is_counted else each.mb_per_s / limit.mb_per_s
        records.append(
            {
                "measured": each.name,
                "per_s": round(each.per_s, 1),
                "MB_per_s": round(each.mb_per_s, 2),
                "ratio": ratio if ratio is None else round(ratio, 2),
                "to": each.compared_with or None,
            }
        )
    return records
