"""``tidegate throughput``: the throughput units of the namespace."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tidegate.cli.shell.administering import administer, number_or_off
from tidegate.cli.shell.options import CaFileOption, ConnectionStringOption, with_output
from tidegate.cli.shell.render import Output

throughput_app = typer.Typer(help="Show or set the namespace's throughput units.", no_args_is_help=True)


@throughput_app.command("show")
@with_output()
def show(
    output: Output, connection_string: ConnectionStringOption = None, ca_file: CaFileOption = None
) -> None:
    """Show the throughput units, and the traffic rejected and delayed. No value means no limit.

    Rejected and delayed traffic is counted since the service started.

    \b
    Example:
      tidegate throughput show
    """
    output.record(asdict(administer(lambda each: each.get_throughput(), connection_string, ca_file)))


@throughput_app.command("set")
@with_output()
def set_units(
    output: Output,
    units: Annotated[str, typer.Argument(metavar="N|off", help="Throughput units; off: no limit.")],
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Set the namespace's throughput units. Effective immediately and after restarts.

    A unit is 1 MB or 1,000 events per second in, and 2 MB or 4,096 events per second out. Above the limit,
    producers get a server-busy error (some SDKs retry by themselves), and readers are slowed.

    \b
    Examples:
      tidegate throughput set 4
      tidegate throughput set off
    """
    number = number_or_off("The number of units", units)
    changed = administer(lambda each: each.set_throughput_units(number), connection_string, ca_file)
    output.record(asdict(changed))
