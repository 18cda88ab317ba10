"""``tidegate lease``: which host has which partition."""

from __future__ import annotations

import typer

from tidegate.cli.shell.options import (
    BlobContainerOption,
    CaFileOption,
    CheckpointDirOption,
    ConnectionStringOption,
    DatabaseOption,
    GroupsOption,
    HubArgument,
    NamespaceOption,
    with_output,
)
from tidegate.cli.shell.render import Output
from tidegate.cli.shell.stores import LEASE_COLUMNS, StoreChoice, lease_record, view_groups

lease_app = typer.Typer(help="List the leases of Event Processor Hosts.", no_args_is_help=True)


@lease_app.command("list")
@with_output()
def list_leases(
    output: Output,
    hub: HubArgument,
    group: GroupsOption = None,
    database: DatabaseOption = None,
    checkpoint_dir: CheckpointDirOption = None,
    blob_container: BlobContainerOption = None,
    namespace: NamespaceOption = None,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """List each partition's owner, and the age of its lease.

    A partition that was never owned is not listed; a released one has no owner. The service is not contacted.

    \b
    Example:
      tidegate lease list telemetry --group reports --database sqlite:///reports.db
    """
    from tidegate.cli.shell.interrupt import run_interruptible

    choice = StoreChoice(database, checkpoint_dir, blob_container, namespace)
    group_namespace = choice.group_namespace(connection_string, ca_file)

    async def work() -> list[dict[str, object]]:
        async with choice.open() as store:
            return [
                lease_record(name, view, partition_id)
                for name, view in await view_groups(store, group_namespace, hub, group)
                for partition_id in view.partition_ids
                if partition_id in view.leases.leases
            ]

    output.records(run_interruptible(work()), columns=LEASE_COLUMNS, title=f"Leases of {hub}")
