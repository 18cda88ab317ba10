"""``tidegate import``: send the events of a file that ``tidegate export`` wrote."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tidegate.cli.shell.connection import Service, with_service
from tidegate.cli.shell.decorators import FILE, flag, option
from tidegate.cli.shell.interrupt import run_interruptible
from tidegate.cli.shell.options import RATE, hub_argument, verbose_option


@click.command("import")
@hub_argument
@click.argument(
    "file", type=FILE, help="The file; uncompressed if its name ends in .gz; - is standard input."
)
@flag("--keep-partitions", "Send events without a partition key to the partition that they were in.")
@option(
    "--skip",
    "N",
    "Skip this many events of the file, which an earlier run has sent.",
    click.IntRange(min=0),
    default=0,
)
@option("--rate", "N", "Send at most N events per second.", RATE)
@verbose_option
@with_service
def import_events(
    service: Service,
    hub: str,
    file: Path,
    keep_partitions: bool,
    skip: int,
    rate: float | None,
    verbose: bool,
) -> None:
    """Send the events of a file that `tidegate export` wrote.

    Partition keys, properties with their types, message id, correlation id, content type and body are as
    they were; sequence numbers and times are the hub's own. Events with a partition key keep their partition
    if the hub has as many; others are distributed round-robin, unless --keep-partitions is given.

    The command returns when every event is on the service's disk. If it is interrupted or meets an invalid
    line, it says how many were sent, and with which --skip the next run continues.

    Examples:
      tidegate import telemetry telemetry.jsonl.gz
      tidegate import copy telemetry.jsonl --keep-partitions
      tidegate export telemetry - --profile production | tidegate import telemetry - --profile staging
    """
    from tidegate.cli.events.sending import Input, Routing, opened, send_input

    given = Input(
        [sys.stdin.fileno() if str(file) == "-" else opened(file)],
        is_record=True,
        rate=rate,
        skip=skip,
        is_import=True,
        is_zipped=file.suffix == ".gz",
        is_verbose=verbose,
    )
    routing = Routing(is_partition_kept=keep_partitions)
    run_interruptible(send_input(service.connection(), hub, given, routing))
