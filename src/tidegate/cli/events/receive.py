"""``tidegate receive``: show events as they arrive, from all partitions or one."""

from __future__ import annotations

import click

from tidegate.cli.shell.connection import Service, with_service
from tidegate.cli.shell.decorators import flag, option
from tidegate.cli.shell.interrupt import run_interruptible
from tidegate.cli.shell.options import COUNT, group_option, hub_argument, with_output
from tidegate.cli.shell.render import Output
from tidegate.model.position import parse_position


@click.command()
@hub_argument
@option(
    "--from",
    "POSITION",
    "earliest, latest, @SEQUENCE_NUMBER, a time in ISO 8601, or an age (90s, 15m, 2h, 7d).",
    argument="position",
    default="earliest",
)
@option("--max", "N", "Stop after this many events.", COUNT, argument="maximum")
@click.option(
    "--follow/--no-follow", default=True, help="Wait for new events, or stop at the end of the log."
)
@option("--partition", "ID", "Only this partition.")
@group_option("Consumer group to read as.")
@flag("--body", "Print only the bodies, one per line.")
@with_service
@with_output()
def receive(
    output: Output,
    service: Service,
    hub: str,
    position: str,
    maximum: int | None,
    follow: bool,
    partition: str | None,
    group: str,
    body: bool,
) -> None:
    """Show events as they arrive, until Ctrl-C.

    Reading does not affect other readers, and hosts that own the group's partitions do not prevent it.
    Events are ordered within a partition, not across partitions.

    Examples:
      tidegate receive telemetry
      tidegate receive telemetry --from 2h --no-follow --nl | head
      tidegate receive telemetry --from @4711 --partition 0 --max 10
    """
    from tidegate.cli.events.tail import BodyWriter, RecordWriter, Selection, show_events
    from tidegate.transport.clock import SystemClock

    start = parse_position(position, now_utc=SystemClock().now_utc())
    selection = Selection(start, partition, maximum, follow)
    writer = BodyWriter() if body else RecordWriter(output)
    run_interruptible(show_events(service.connection(), hub, group, selection, writer))
