"""``tidegate top``: the service's event hubs and consumer groups as they are now, refreshed until Ctrl-C."""

from __future__ import annotations

import click

from tidegate.cli.shell.completing import complete_hub
from tidegate.cli.shell.connection import Service, with_service
from tidegate.cli.shell.decorators import flag
from tidegate.cli.shell.interrupt import run_interruptible
from tidegate.cli.shell.options import interval_option, with_output, with_store
from tidegate.cli.shell.render import Output, OutputFormat
from tidegate.cli.shell.stores import StoreChoice


@click.command()
@click.argument("hubs", nargs=-1, shell_complete=complete_hub, help="Only these event hubs. Default: all.")
@interval_option("Seconds between refreshes; rates are over this time.")
@flag("--once", "Show one snapshot, after one interval, and end.")
@with_store
@with_service
@with_output(OutputFormat.TABLE, OutputFormat.JSON)
def top(
    output: Output, service: Service, store: StoreChoice, hubs: tuple[str, ...], interval: float, once: bool
) -> None:
    """Watch event hubs and consumer groups, until Ctrl-C.

    Event hubs, the busiest first: events and bytes per second in and out, batches refused for the throughput
    units, partitions, events and bytes in the log. Consumer groups, the largest lag first: lag and lost
    events as in `tidegate lag`, owned partitions, and the hosts that own them. Without a database, directory
    or container: the groups that keep their checkpoints in the service, and those of hosts, which report to
    it; with one, also those in it.

    Requires Manage: on the namespace, or on the event hub that the connection string names.

    A terminal is redrawn in place and shows what fits. Elsewhere each refresh is a plain snapshot, or with
    --json one object.

    Examples:
      tidegate top
      tidegate top telemetry --interval 5 --database postgresql://user@host/name
      tidegate top --once --json | jq '.groups[].lag_events'
    """
    from tidegate.cli.consumers.top_view import watch

    run_interruptible(watch(output, service, store, hubs, interval, is_once=once))
