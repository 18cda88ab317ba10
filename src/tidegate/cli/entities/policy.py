"""``tidegate policy``: shared access policies of the namespace or of one event hub."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.shell.administering import administer
from tidegate.cli.shell.completing import complete_hub, complete_policy
from tidegate.cli.shell.connection import resolve_connection
from tidegate.cli.shell.options import CaFileOption, ConnectionStringOption, with_output
from tidegate.cli.shell.render import Output
from tidegate.model.connection_string import ConnectionString

if TYPE_CHECKING:
    from tidegate.client import PolicyProperties

policy_app = typer.Typer(
    help="Manage policies: who may send, listen and manage.",
    no_args_is_help=True,
)

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The policy.", autocompletion=complete_policy)
]
HubOption = Annotated[
    str | None,
    typer.Option(
        "--hub",
        metavar="HUB",
        help="The event hub that the policy belongs to. Default: the namespace.",
        autocompletion=complete_hub,
    ),
]
WithConnectionStringOption = Annotated[
    bool,
    typer.Option(
        "--with-connection-string",
        help="Also show the connection strings with their keys; treat them as passwords.",
    ),
]

_COLUMNS = ("name", "event_hub", "claims")


@policy_app.command("create")
@with_output()
def create(
    output: Output,
    name: NameArgument,
    claim: Annotated[
        list[str],
        typer.Option(metavar="CLAIM", help="Send, Listen or Manage (which includes both); repeatable."),
    ],
    hub: HubOption = None,
    with_connection_string: WithConnectionStringOption = False,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Create a policy with random keys, effective immediately.

    \b
    Examples:
      tidegate policy create dashboard --claim Listen --hub telemetry
      tidegate policy create ingest --claim Send --with-connection-string
    """
    made = administer(lambda each: each.create_policy(name, claim, event_hub=hub), connection_string, ca_file)
    output.record(_record(made, connection_string, with_connection_string))


@policy_app.command("list")
@with_output()
def list_policies(
    output: Output,
    hub: HubOption = None,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """List the policies of the namespace or of an event hub. Keys are not shown.

    \b
    Example:
      tidegate policy list --hub telemetry
    """
    policies = administer(lambda each: each.list_policies(hub), connection_string, ca_file)
    records = [_record(policy, connection_string, with_connection_string=False) for policy in policies]
    output.records(records, columns=_COLUMNS)


@policy_app.command("show")
@with_output()
def show(
    output: Output,
    name: NameArgument,
    hub: HubOption = None,
    with_connection_string: WithConnectionStringOption = False,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Show a policy and, on request, its connection strings.

    \b
    Example:
      tidegate policy show ingest --with-connection-string
    """
    found = administer(lambda each: each.get_policy(name, event_hub=hub), connection_string, ca_file)
    output.record(_record(found, connection_string, with_connection_string))


@policy_app.command("delete")
def delete(
    name: NameArgument,
    hub: HubOption = None,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Delete a policy. Clients that use it lose access immediately.

    \b
    Example:
      tidegate policy delete dashboard --hub telemetry
    """
    administer(lambda each: each.delete_policy(name, event_hub=hub), connection_string, ca_file)
    sys.stderr.write(f"Deleted the policy {name} of {hub or 'the namespace'}.\n")


@policy_app.command("regenerate")
@with_output()
def regenerate(
    output: Output,
    name: NameArgument,
    hub: HubOption = None,
    secondary: Annotated[
        bool, typer.Option("--secondary", help="Replace the secondary key instead of the primary.")
    ] = False,
    with_connection_string: WithConnectionStringOption = False,
    connection_string: ConnectionStringOption = None,
    ca_file: CaFileOption = None,
) -> None:
    """Replace a policy's primary key with a random one. The old key stops working immediately.

    To rotate keys without interruption: switch all clients to the secondary key, regenerate the primary key,
    switch the clients to it, then regenerate the secondary key.

    \b
    Examples:
      tidegate policy regenerate ingest --with-connection-string
      tidegate policy regenerate dashboard --hub telemetry --secondary
    """
    changed = administer(
        lambda each: each.regenerate_key(name, event_hub=hub, is_secondary=secondary),
        connection_string,
        ca_file,
    )
    output.record(_record(changed, connection_string, with_connection_string))


def _record(
    policy: PolicyProperties, connection_string: str | None, with_connection_string: bool
) -> dict[str, object]:
    record: dict[str, object] = {
        "name": policy.name,
        "event_hub": policy.event_hub,
        "claims": ", ".join(policy.claims),
    }
    if with_connection_string:
        record["primary_connection_string"] = _connection_string(
            policy, policy.primary_key, connection_string
        )
        record["secondary_connection_string"] = _connection_string(
            policy, policy.secondary_key, connection_string
        )
    return record


def _connection_string(policy: PolicyProperties, key: str | None, connection_string: str | None) -> str:
    """The string that leads where this command went, with the policy's key."""
    used = ConnectionString.parse(resolve_connection(connection_string, None, os.environ).connection_string)
    return ConnectionString(
        used.host,
        used.port,
        policy.name,
        key,
        entity_path=policy.event_hub,
        use_development_emulator=used.use_development_emulator,
    ).format()
