"""``tidegate publisher``: keep single publishers of an event hub from sending, without a new key."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tidegate.cli.shell.administering import administer
from tidegate.cli.shell.options import CaFileOption, ConnectionStringOption, HubArgument, with_output
from tidegate.cli.shell.render import Output

publisher_app = typer.Typer(
    help="Revoke and restore publishers (who send to HUB/publishers/NAME).", no_args_is_help=True
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The publisher.")]


@publisher_app.command("revoke")
def revoke(
    hub: HubArgument,
    name: NameArgument,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Block a publisher from sending, even with a valid token. Its open links are closed.

    \b
    Example:
      tidegate publisher revoke telemetry device-17
    """
    administer(lambda each: each.revoke_publisher(hub, name), connection_string, ca_file)
    sys.stderr.write(f"Revoked the publisher {name} of {hub}.\n")


@publisher_app.command("restore")
def restore(
    hub: HubArgument,
    name: NameArgument,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Let a revoked publisher send again.

    \b
    Example:
      tidegate publisher restore telemetry device-17
    """
    administer(lambda each: each.restore_publisher(hub, name), connection_string, ca_file)
    sys.stderr.write(f"Restored the publisher {name} of {hub}.\n")


@publisher_app.command("list")
@with_output()
def list_publishers(
    output: Output,
    hub: HubArgument,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """List the revoked publishers of an event hub. Other publishers are not recorded.

    \b
    Example:
      tidegate publisher list telemetry --json
    """
    names = administer(lambda each: each.list_revoked_publishers(hub), connection_string, ca_file)
    records = [{"event_hub": hub, "revoked_publisher": name} for name in names]
    output.records(records, columns=("event_hub", "revoked_publisher"))
