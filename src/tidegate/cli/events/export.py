"""``tidegate export``: write a hub's events to a file."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidegate.cli.shell.connection import Service, with_service
from tidegate.cli.shell.decorators import FILE, flag, option
from tidegate.cli.shell.interrupt import run_interruptible
from tidegate.cli.shell.options import from_option, group_option, hub_argument, verbose_option
from tidegate.cli.shell.render import Output, OutputFormat, counted, remark
from tidegate.model.errors import AlreadyExistsError
from tidegate.model.position import parse_position

if TYPE_CHECKING:
    from tidegate.client import PartitionEnds


@click.command()
@hub_argument
@click.argument("file", type=FILE, help="The file; compressed if its name ends in .gz; - is standard output.")
@from_option
@option("--partition", "ID", "Only this partition.")
@group_option("Consumer group to read as.")
@flag("--force", "Replace the file if it exists.")
@verbose_option
@with_service
def export(
    service: Service,
    hub: str,
    file: Path,
    position: str,
    partition: str | None,
    group: str,
    force: bool,
    verbose: bool,
) -> None:
    """Write the events of a hub to a file.

    Each is one JSON object on a line, as `tidegate receive --nl` writes it: partition, numbers and enqueued
    time, partition key, message id, correlation id, content type, properties with their AMQP types, and the
    body, in base64 if it is not text. Events are in order within a partition. Those that arrive meanwhile
    are not in the file, which exists only once it is complete. An event that is not a valid AMQP message
    has a decode_error, and its bytes in body_base64; `tidegate import` refuses its line.

    Examples:
      tidegate export telemetry telemetry.jsonl.gz
      tidegate export telemetry - --from 2h --partition 0 | jq .body
    """
    from tidegate.cli.events.filters import EventFilter
    from tidegate.cli.events.tail import RecordWriter, Selection, events_after, read_events
    from tidegate.cli.shell.progress import progress_bar
    from tidegate.transport.clock import SystemClock

    start = parse_position(position, now_utc=SystemClock().now_utc())
    selection = Selection(start, partition, None, False, EventFilter(), verbose)
    target = None if str(file) == "-" else file
    if target is not None and target.exists() and not force:
        raise AlreadyExistsError(f"{file} exists already.", next_step="Name another file, or add --force.")
    with ExitStack() as bars, Output(OutputFormat.NL).into(target) as output:
        writer = RecordWriter(output)

        def show_progress(ends: Sequence[PartitionEnds]) -> None:
            if target is None and output.is_terminal:
                return
            total = sum(events_after(start, each) for each in ends)
            writer.bar = bars.enter_context(progress_bar("Exporting", total))

        try:
            run_interruptible(
                read_events(service.connection(), hub, group, selection, writer, on_partitions=show_progress)
            )
        except click.exceptions.Exit:
            if target is not None:
                remark(f"Stopped after {counted(writer.event_count, 'event')}; {file} was not written.")
            raise
        writer.close()
    where = "" if target is None else f" to {file}"
    remark(f"Exported {counted(writer.event_count, 'event')} of {hub}{where}.")
