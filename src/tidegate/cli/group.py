"""``tidegate group``: make, list and delete consumer groups."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tidegate.cli.connection import impatient_namespace, resolve_connection
from tidegate.cli.options import CaFileOption, ConnectionStringOption, with_output
from tidegate.cli.render import Output

if TYPE_CHECKING:
    from tidegate.client import EventHubAdministrator

T = TypeVar("T")

group_app = typer.Typer(help="Make, list and delete consumer groups.", no_args_is_help=True)

HubArgument = Annotated[str, typer.Argument(metavar="HUB", help="The event hub.")]
GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]


@group_app.command("create")
def create(
    hub: HubArgument,
    group: GroupArgument,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Make a consumer group.

    \b
    Example:
      tidegate group create telemetry reports
    """
    _administer(lambda each: each.create_consumer_group(hub, group), connection_string, ca_file)
    sys.stderr.write(f"Made the consumer group {group} of {hub}.\n")


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
    names = _administer(lambda each: each.list_consumer_groups(hub), connection_string, ca_file)
    records = [{"event_hub": hub, "consumer_group": name} for name in names]
    output.records(records, columns=("event_hub", "consumer_group"))


@group_app.command("delete")
def delete(
    hub: HubArgument,
    group: GroupArgument,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Delete a consumer group. Its checkpoints, which lie elsewhere, stay.

    \b
    Example:
      tidegate group delete telemetry reports
    """
    _administer(lambda each: each.delete_consumer_group(hub, group), connection_string, ca_file)
    sys.stderr.write(f"Deleted the consumer group {group} of {hub}.\n")


def _administer(
    act: Callable[[EventHubAdministrator], Awaitable[T]],
    connection_string: str | None,
    ca_file: Path | None,
) -> T:
    from tidegate.cli.interrupt import run_interruptible

    connection = resolve_connection(connection_string, ca_file, os.environ)

    async def work() -> T:
        from tidegate.client import EventHubAdministrator

        async with EventHubAdministrator(impatient_namespace(connection)) as administrator:
            return await act(administrator)

    return run_interruptible(work())
