"""``tidegate hub``: make, list, show and delete event hubs."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.connection import ServiceConnection, impatient_namespace, resolve_connection
from tidegate.cli.options import CaFileOption, ConnectionStringOption, with_output
from tidegate.cli.render import Output
from tidegate.model.limits import PARTITIONS_MAX, RETENTION_HOURS_DEFAULT, RETENTION_HOURS_MAX

if TYPE_CHECKING:
    from tidegate.client import EventHubProperties

hub_app = typer.Typer(help="Make, list, show and delete event hubs.", no_args_is_help=True)

HubArgument = Annotated[str, typer.Argument(metavar="NAME", help="The event hub.")]

_HUB_COLUMNS = ("name", "partitions", "retention_hours", "created_at")
_PARTITION_COLUMNS = (
    "partition",
    "events",
    "begin_sequence_number",
    "next_sequence_number",
    "last_enqueued_time",
)


@hub_app.command("create")
@with_output()
def create(
    output: Output,
    name: HubArgument,
    partitions: Annotated[
        int,
        typer.Option(min=1, max=PARTITIONS_MAX, metavar="N", help="Partitions; cannot be changed later."),
    ] = 4,
    retention_hours: Annotated[
        int,
        typer.Option(min=1, max=RETENTION_HOURS_MAX, metavar="H", help="Hours that events are kept."),
    ] = RETENTION_HOURS_DEFAULT,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Make an event hub.

    \b
    Example:
      tidegate hub create telemetry --partitions 8 --retention-hours 24
    """
    from tidegate.cli.interrupt import run_interruptible

    connection = resolve_connection(connection_string, ca_file, os.environ)

    async def work() -> dict[str, object]:
        from tidegate.client import EventHubAdministrator

        async with EventHubAdministrator(impatient_namespace(connection)) as administrator:
            made = await administrator.create_event_hub(
                name, partition_count=partitions, retention_hours=retention_hours
            )
        return _hub_record(made)

    output.record(run_interruptible(work()))


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
    from tidegate.cli.interrupt import run_interruptible

    connection = resolve_connection(connection_string, ca_file, os.environ)

    async def work() -> list[dict[str, object]]:
        from tidegate.client import EventHubAdministrator

        async with EventHubAdministrator(impatient_namespace(connection)) as administrator:
            return [_hub_record(hub) for hub in await administrator.list_event_hubs()]

    output.records(run_interruptible(work()), columns=_HUB_COLUMNS)


@hub_app.command("show")
@with_output()
def show(
    output: Output,
    name: HubArgument,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Show an event hub's partitions and what each one holds.

    \b
    Example:
      tidegate hub show telemetry
    """
    from tidegate.cli.interrupt import run_interruptible

    connection = resolve_connection(connection_string, ca_file, os.environ)
    records = run_interruptible(_partition_records(connection, name))
    output.records(records, columns=_PARTITION_COLUMNS, title=f"Event hub {name}")


@hub_app.command("delete")
def delete(
    name: HubArgument,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask; on anything but a terminal it never asks.")
    ] = False,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Delete an event hub with all its events, for good.

    \b
    Example:
      tidegate hub delete telemetry --yes
    """
    from tidegate.cli.interrupt import run_interruptible

    connection = resolve_connection(connection_string, ca_file, os.environ)
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Delete the event hub {name} and all its events?", abort=True, err=True)

    async def work() -> None:
        from tidegate.client import EventHubAdministrator

        async with EventHubAdministrator(impatient_namespace(connection)) as administrator:
            await administrator.delete_event_hub(name)

    run_interruptible(work())
    sys.stderr.write(f"Deleted the event hub {name}.\n")


async def _partition_records(connection: ServiceConnection, name: str) -> list[dict[str, object]]:
    from tidegate.client import EventHubConsumer

    records: list[dict[str, object]] = []
    async with EventHubConsumer(impatient_namespace(connection), name) as consumer:
        hub = await consumer.get_event_hub_properties()
        for partition_id in hub.partition_ids:
            partition = await consumer.get_partition_properties(partition_id)
            # An empty partition of Azure may say -1 for both; ours says where its next event will be.
            begin = max(partition.begin_sequence_number, 0)
            until = partition.next_sequence_number
            records.append(
                {
                    "partition": partition_id,
                    "events": 0 if partition.is_empty else until - begin,
                    "begin_sequence_number": begin,
                    "next_sequence_number": until,
                    "last_enqueued_time": partition.last_enqueued_time,
                }
            )
    return records


def _hub_record(hub: EventHubProperties) -> dict[str, object]:
    return {
        "name": hub.name,
        "partitions": len(hub.partition_ids),
        "retention_hours": hub.retention_hours,
        "created_at": hub.created_at,
    }
