"""``tidegate group``: create, list and delete consumer groups."""

from __future__ import annotations

import click

from tidegate.cli.shell.completing import complete_group
from tidegate.cli.shell.connection import Service, with_service
from tidegate.cli.shell.contents import CommandGroup
from tidegate.cli.shell.options import hub_argument, with_output
from tidegate.cli.shell.render import Output, remark

group_group = CommandGroup("group", help="Create, list and delete consumer groups.")

group_argument = click.argument("group", shell_complete=complete_group, help="The consumer group.")


@group_group.command()
@hub_argument
@group_argument
@with_service
def create(service: Service, hub: str, group: str) -> None:
    """Create a consumer group.

    Example:
      tidegate group create telemetry reports
    """
    service.administer(lambda each: each.create_consumer_group(hub, group))
    remark(f"Created the consumer group {group} of {hub}.")


@group_group.command("list")
@hub_argument
@with_service
@with_output()
def list_groups(output: Output, service: Service, hub: str) -> None:
    """List the consumer groups of an event hub.

    Example:
      tidegate group list telemetry --json
    """
    names = service.administer(lambda each: each.list_consumer_groups(hub))
    output.rows(("event_hub", "consumer_group"), ((hub, name) for name in names))


@group_group.command()
@hub_argument
@group_argument
@with_service
def delete(service: Service, hub: str, group: str) -> None:
    """Delete a consumer group. Its checkpoints, which are stored elsewhere, stay.

    Example:
      tidegate group delete telemetry reports
    """
    service.administer(lambda each: each.delete_consumer_group(hub, group))
    remark(f"Deleted the consumer group {group} of {hub}.")
