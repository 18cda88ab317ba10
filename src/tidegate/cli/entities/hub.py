"""``tidegate hub``: make, list, show, change and delete event hubs."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from tidegate.cli.entities.hub_settings import with_hub_settings
from tidegate.cli.shell.administering import administer, open_administrator
from tidegate.cli.shell.completing import complete_hub
from tidegate.cli.shell.connection import ServiceConnection, impatient_namespace, resolve_connection
from tidegate.cli.shell.options import CaFileOption, ConnectionStringOption, with_output
from tidegate.cli.shell.render import Output
from tidegate.model.errors import InvalidArgumentError, TidegateError
from tidegate.model.hub_settings import HUB_SETTINGS, PARTITION_COUNT_DEFAULT, HubChanges
from tidegate.model.limits import PARTITIONS_MAX

if TYPE_CHECKING:
    from tidegate.client import EventHubProperties

hub_app = typer.Typer(help="Create, list, show, update and delete event hubs.", no_args_is_help=True)

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The event hub.", autocompletion=complete_hub)
]

_HUB_COLUMNS = (
    "name",
    "partitions",
    *(setting.name for setting in HUB_SETTINGS),
    "created_at",
)
_PARTITION_COLUMNS = (
    "partition",
    "events",
    "begin_sequence_number",
    "next_sequence_number",
    "last_enqueued_time",
)


@hub_app.command("create")
@with_output()
@with_hub_settings(is_change=False)
def create(
    output: Output,
    name: NameArgument,
    partitions: Annotated[
        int,
        typer.Option(
            min=1, max=PARTITIONS_MAX, metavar="N", help="Number of partitions; cannot be changed later."
        ),
    ] = PARTITION_COUNT_DEFAULT,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
    **settings: Unpack[HubChanges],
) -> None:
    """Create an event hub.

    \b
    Example:
      tidegate hub create telemetry --partitions 8 --retention-hours 24
    """
    made = administer(
        lambda each: each.create_event_hub(name, partition_count=partitions, **settings),
        connection_string,
        ca_file,
    )
    output.record(_hub_record(made))


@hub_app.command("update")
@with_output()
@with_hub_settings(is_change=True)
def update(
    output: Output,
    name: NameArgument,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
    **changes: Unpack[HubChanges],
) -> None:
    """Update the given settings of an event hub. The number of partitions cannot be changed.

    \b
    Examples:
      tidegate hub update telemetry --retention-hours 48
      tidegate hub update telemetry --retention-bytes 10000000000 --event-bytes-max off
    """
    if not changes:
        raise InvalidArgumentError("No setting to change was given.", next_step="See --help.")
    changed = administer(lambda each: each.update_event_hub(name, **changes), connection_string, ca_file)
    output.record(_hub_record(changed))


@hub_app.command("list")
@with_output()
def list_hubs(
    output: Output, connection_string: ConnectionStringOption = None, ca_file: CaFileOption = None
) -> None:
    """List the event hubs.

    \b
    Example:
      tidegate hub list --json
    """
    hubs = administer(lambda each: each.list_event_hubs(), connection_string, ca_file)
    output.records(map(_hub_record, hubs), columns=_HUB_COLUMNS)


@hub_app.command("show")
@with_output()
def show(
    output: Output,
    name: NameArgument,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Show an event hub's partitions and their contents.

    Prints a warning if the number of throughput units differs from the number of partitions: Azure's
    documentation recommends as many of one as of the other.

    \b
    Example:
      tidegate hub show telemetry
    """
    from tidegate.cli.shell.interrupt import run_interruptible

    connection = resolve_connection(connection_string, ca_file, os.environ)
    records = run_interruptible(_partition_records(connection, name))
    output.records(records, columns=_PARTITION_COLUMNS, title=f"Event hub {name}")
    if remark := run_interruptible(_balance_remark(connection, len(records))):
        sys.stderr.write(remark)


@hub_app.command("delete")
def delete(
    name: NameArgument,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask for confirmation. Without a terminal, it never asks.")
    ] = False,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Permanently delete an event hub and all its events.

    \b
    Example:
      tidegate hub delete telemetry --yes
    """
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Delete the event hub {name} and all its events?", abort=True, err=True)
    administer(lambda each: each.delete_event_hub(name), connection_string, ca_file)
    sys.stderr.write(f"Deleted the event hub {name}.\n")


async def _partition_records(connection: ServiceConnection, name: str) -> list[dict[str, object]]:
    from tidegate.client import EventHubConsumer

    records: list[dict[str, object]] = []
    async with EventHubConsumer(impatient_namespace(connection), name) as consumer:
        hub = await consumer.get_event_hub_properties()
        for partition in await consumer.get_all_partition_properties(hub):
            # An empty partition of Azure may say -1 for both; ours says where its next event will be.
            begin = max(partition.begin_sequence_number, 0)
            until = partition.next_sequence_number
            records.append(
                {
                    "partition": partition.partition_id,
                    "events": 0 if partition.is_empty else until - begin,
                    "begin_sequence_number": begin,
                    "next_sequence_number": until,
                    "last_enqueued_time": partition.last_enqueued_time,
                }
            )
    return records


async def _balance_remark(connection: ServiceConnection, partition_count: int) -> str:
    """What to say of throughput units and partitions; empty where they match or nobody may know."""
    try:
        async with open_administrator(connection) as administrator:
            units = (await administrator.get_throughput()).units
    except TidegateError:
        return (
            ""  # a policy without Manage, or a service that is not Tidegate: the hub was shown all the same
        )
    if units is None or units == partition_count:
        return ""
    return (
        f"Warning: the hub has {partition_count} partitions and the namespace {units} throughput units. "
        f"Azure recommends as many units as partitions: `tidegate throughput set {partition_count}`.\n"
    )


def _hub_record(hub: EventHubProperties) -> dict[str, object]:
    return {
        "name": hub.name,
        "partitions": len(hub.partition_ids),
        **hub.settings(),
        "created_at": hub.created_at,
    }
