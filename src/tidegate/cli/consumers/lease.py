"""``tidegate lease``: which host owns which partition."""

from __future__ import annotations

from tidegate.cli.shell.connection import Service, with_service
from tidegate.cli.shell.contents import CommandGroup
from tidegate.cli.shell.options import groups_option, hub_argument, with_output, with_store
from tidegate.cli.shell.render import Output
from tidegate.cli.shell.stores import LEASE_COLUMNS, StoreChoice, lease_record

lease_group = CommandGroup("lease", help="List the leases of Event Processor Hosts.")


@lease_group.command("list")
@hub_argument
@groups_option
@with_store
@with_service
@with_output()
def list_leases(
    output: Output, service: Service, store: StoreChoice, hub: str, groups: tuple[str, ...]
) -> None:
    """List each partition's owner, and the age of its lease.

    A partition that was never owned is not listed; a released one has no owner. The service is not contacted.

    \b
    Example:
      tidegate lease list telemetry --group reports --database sqlite:///reports.db
    """
    records = [
        lease_record(name, view, partition_id)
        for name, view in store.read(service, hub, groups)
        for partition_id in view.partition_ids
        if partition_id in view.leases.leases
    ]
    output.records(records, columns=LEASE_COLUMNS, title=f"Leases of {hub}")
