"""``tidegate receive``: show events as they come, from all partitions or one."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from tidegate.cli.shell.completing import complete_group
from tidegate.cli.shell.connection import resolve_connection
from tidegate.cli.shell.options import CaFileOption, ConnectionStringOption, HubArgument, with_output
from tidegate.cli.shell.render import Output
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP
from tidegate.model.position_text import parse_position


@with_output()
def receive(
    output: Output,
    hub: HubArgument,
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="earliest, latest, @SEQUENCE_NUMBER, a time in ISO 8601, or an age (90s, 15m, 2h, 7d).",
        ),
    ] = "earliest",
    max_: Annotated[
        int | None, typer.Option("--max", min=1, metavar="N", help="Stop after this many events.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Wait for new events, or stop at the end of the log.")
    ] = True,
    partition: Annotated[str | None, typer.Option(metavar="ID", help="Only this partition.")] = None,
    group: Annotated[
        str, typer.Option(metavar="NAME", help="Consumer group to read as.", autocompletion=complete_group)
    ] = DEFAULT_CONSUMER_GROUP,
    body: Annotated[bool, typer.Option("--body", help="Print only the bodies, one per line.")] = False,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Show events as they arrive, until Ctrl-C.

    Reading does not affect other readers. Events are ordered within a partition, not across partitions.

    \b
    Examples:
      tidegate receive telemetry
      tidegate receive telemetry --from 2h --no-follow --nl | head
      tidegate receive telemetry --from @4711 --partition 0 --max 10
    """
    from tidegate.cli.events.tail import BodyWriter, RecordWriter, Selection, show_events
    from tidegate.cli.shell.interrupt import run_interruptible
    from tidegate.transport.clock import SystemClock

    position = parse_position(from_, now_utc=SystemClock().now_utc())
    connection = resolve_connection(connection_string, ca_file, os.environ)
    selection = Selection(position, partition, max_, follow)
    writer = BodyWriter() if body else RecordWriter(output)
    run_interruptible(show_events(connection, hub, group, selection, writer))
