"""``tidegate bench``: what a service on this machine does, beside what its disk and its loopback do alone.

The rule: figures of the same run are compared, since only ratios carry from one machine to another.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click

from tidegate.cli.shell.decorators import FILE, option
from tidegate.cli.shell.interrupt import run_interruptible
from tidegate.cli.shell.options import with_output
from tidegate.cli.shell.render import Output
from tidegate.files import IS_WINDOWS
from tidegate.model.errors import InvalidArgumentError

_COLUMNS: Final = ("measured", "per_s", "MB_per_s", "ratio", "to")
_FIRST: Final = "measured per_s MB_per_s ratio to"


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
    """Measure what a service does on this machine, beside its disk.

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
        raise InvalidArgumentError(f"{data_dir} is not a directory that you can write to.")
    from tidegate.cli.service.measuring import measure, records_of

    found = run_interruptible(measure(data_dir, seconds))
    records = records_of(found)
    if output.is_table:
        # A table's numbers have one decimal.
        texts = [None if each["ratio"] is None else f"{each['ratio']:.2f}" for each in records]
        records = [{**each, "ratio": text} for each, text in zip(records, texts, strict=True)]
    output.records(records, columns=_COLUMNS, title="This machine", first=_FIRST)
