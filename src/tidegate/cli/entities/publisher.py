"""``tidegate publisher``: block single publishers of an event hub from sending, without a new key."""

from __future__ import annotations

import click

from tidegate.cli.shell.connection import Service, with_service
from tidegate.cli.shell.contents import CommandGroup
from tidegate.cli.shell.options import hub_argument, with_output
from tidegate.cli.shell.render import Output, remark

publisher_group = CommandGroup(
    "publisher", help="Revoke and restore publishers (who send to HUB/publishers/NAME)."
)

name_argument = click.argument("name", help="The publisher.")


@publisher_group.command()
@hub_argument
@name_argument
@with_service
def revoke(service: Service, hub: str, name: str) -> None:
    """Block a publisher from sending, even with a valid token. Its open links are closed.

    Example:
      tidegate publisher revoke telemetry device-17
    """
    service.administer(lambda each: each.revoke_publisher(hub, name))
    remark(f"Revoked the publisher {name} of {hub}.")


@publisher_group.command()
@hub_argument
@name_argument
@with_service
def restore(service: Service, hub: str, name: str) -> None:
    """Let a revoked publisher send again.

    Example:
      tidegate publisher restore telemetry device-17
    """
    service.administer(lambda each: each.restore_publisher(hub, name))
    remark(f"Restored the publisher {name} of {hub}.")


@publisher_group.command("list")
@hub_argument
@with_service
@with_output()
def list_publishers(output: Output, service: Service, hub: str) -> None:
    """List the revoked publishers of an event hub. Other publishers are not recorded.

    Example:
      tidegate publisher list telemetry --json
    """
    names = service.administer(lambda each: each.list_revoked_publishers(hub))
    output.rows(("event_hub", "revoked_publisher"), ((hub, name) for name in names))
