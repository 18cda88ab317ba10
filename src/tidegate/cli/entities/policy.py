"""``tidegate policy``: shared access policies of the namespace or of one event hub."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from tidegate.broker.blobs.accounts import account_key, account_name
from tidegate.cli.shell.completing import complete_hub, complete_policy
from tidegate.cli.shell.connection import Service, with_service
from tidegate.cli.shell.contents import CommandGroup
from tidegate.cli.shell.decorators import flag, option
from tidegate.cli.shell.options import with_output, yes_option
from tidegate.cli.shell.render import Output, remark
from tidegate.model.connection_string import ConnectionString

if TYPE_CHECKING:
    from tidegate.client import PolicyProperties

policy_group = CommandGroup("policy", help="Manage policies: who may send, listen and manage.")

name_argument = click.argument("name", shell_complete=complete_policy, help="The policy.")
hub_option = option(
    "--hub",
    "HUB",
    "The event hub that the policy belongs to. Default: the namespace.",
    shell_complete=complete_hub,
)
with_connection_string_option = flag(
    "--with-connection-string",
    "Also show the connection strings with their keys; treat them as passwords.",
)

_COLUMNS = ("name", "event_hub", "claims")


@policy_group.command()
@name_argument
@option(
    "--claim",
    "CLAIM",
    "Send, Listen or Manage (which includes both); repeatable.",
    required=True,
    multiple=True,
)
@hub_option
@with_connection_string_option
@with_service
@with_output()
def create(
    output: Output,
    service: Service,
    name: str,
    claim: tuple[str, ...],
    hub: str | None,
    with_connection_string: bool,
) -> None:
    """Create a policy with random keys, effective immediately.

    Examples:
      tidegate policy create dashboard --claim Listen --hub telemetry
      tidegate policy create ingest --claim Send --with-connection-string
    """
    policy = service.administer(lambda each: each.create_policy(name, claim, event_hub=hub))
    output.record(_record(policy, service if with_connection_string else None))


@policy_group.command("list")
@hub_option
@with_service
@with_output()
def list_policies(output: Output, service: Service, hub: str | None) -> None:
    """List the policies of the namespace or of an event hub. Keys are not shown.

    Example:
      tidegate policy list --hub telemetry
    """
    policies = service.administer(lambda each: each.list_policies(hub))
    output.records(map(_record, policies), columns=_COLUMNS)


@policy_group.command()
@name_argument
@hub_option
@with_connection_string_option
@with_service
@with_output()
def show(output: Output, service: Service, name: str, hub: str | None, with_connection_string: bool) -> None:
    """Show a policy and, on request, its connection strings.

    Example:
      tidegate policy show ingest --with-connection-string
    """
    policy = service.administer(lambda each: each.get_policy(name, event_hub=hub))
    output.record(_record(policy, service if with_connection_string else None))


@policy_group.command()
@name_argument
@hub_option
@yes_option
@with_service
def delete(service: Service, name: str, hub: str | None, yes: bool) -> None:
    """Delete a policy. Clients that use it lose access immediately.

    Example:
      tidegate policy delete dashboard --hub telemetry --yes
    """
    if not yes and sys.stdin.isatty():
        question = (
            f"Delete the policy {name} of {hub or 'the namespace'}? Its clients lose access immediately."
        )
        click.confirm(question, abort=True, err=True)
    service.administer(lambda each: each.delete_policy(name, event_hub=hub))
    remark(f"Deleted the policy {name} of {hub or 'the namespace'}.")


@policy_group.command()
@name_argument
@hub_option
@flag("--secondary", "Replace the secondary key instead of the primary.")
@with_connection_string_option
@with_service
@with_output()
def regenerate(
    output: Output,
    service: Service,
    name: str,
    hub: str | None,
    secondary: bool,
    with_connection_string: bool,
) -> None:
    """Replace a policy's primary key with a random one. The old key stops working immediately.

    To rotate keys without interruption: switch all clients to the secondary key, regenerate the primary key,
    switch the clients to it, then regenerate the secondary key.

    Examples:
      tidegate policy regenerate ingest --with-connection-string
      tidegate policy regenerate dashboard --hub telemetry --secondary
    """
    policy = service.administer(lambda each: each.regenerate_key(name, event_hub=hub, is_secondary=secondary))
    output.record(_record(policy, service if with_connection_string else None))


def _record(policy: PolicyProperties, service: Service | None = None) -> dict[str, object]:
    """service: for the policy's connection strings; None: they are not shown."""
    record: dict[str, object] = {
        "name": policy.name,
        "event_hub": policy.event_hub,
        "claims": ", ".join(policy.claims),
    }
    if service is not None:
        used = ConnectionString.parse(service.connection().connection_string)
        for kind, key in (("primary", policy.primary_key), ("secondary", policy.secondary_key)):
            record[f"{kind}_connection_string"] = ConnectionString(
                used.host,
                used.port,
                policy.name,
                key,
                entity_path=policy.event_hub,
                use_development_emulator=used.use_development_emulator,
            ).format()
        record["storage_account"] = account_name(policy.event_hub)
        record["storage_account_key"] = (
            None if policy.primary_key is None else account_key(policy.primary_key)
        )
    return record
