"""``tidegate group``: make, list and delete consumer groups."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tidegate.cli.shell.administering import administer
from tidegate.cli.shell.completing import complete_group
from tidegate.cli.shell.options import CaFileOption, ConnectionStringOption, HubArgument, with_output
from tidegate.cli.shell.render import Output

group_app = typer.Typer(help="Create, list and delete consumer groups.", no_args_is_help=True)

GroupArgument = Annotated[
    str, typer.Argument(metavar="GROUP", help="The consumer group.", autocompletion=complete_group)
]


@group_app.command("create")
def create(
    hub: HubArgument,
    group: GroupArgument,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Create a consumer group.

    \b
    Example:
      tidegate group create telemetry reports
    """
    administer(lambda each: each.create_consumer_group(hub, group), connection_string, ca_file)
    sys.stderr.write(f"Created the consumer group {group} of {hub}.\n")


@group_app.command("list")
@with_output()
def list_groups(
    output: Output,
    hub: HubArgument,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """List the consumer groups of an event hub.

    \b
    Example:
      tidegate group list telemetry --json
    """
    names = administer(lambda each: each.list_consumer_groups(hub), connection_string, ca_file)
    records = [{"event_hub": hub, "consumer_group": name} for name in names]
    output.records(records, columns=("event_hub", "consumer_group"))


@group_app.command("delete")
def delete(
    hub: HubArgument,
    group: GroupArgument,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Delete a consumer group. Its checkpoints, which are stored elsewhere, stay.

    \b
    Example:
      tidegate group delete telemetry reports
    """
    administer(lambda each: each.delete_consumer_group(hub, group), connection_string, ca_file)
    sys.stderr.write(f"Deleted the consumer group {group} of {hub}.\n")
