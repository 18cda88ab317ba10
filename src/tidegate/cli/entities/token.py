"""``tidegate token sas``: a shared access signature for curl and other HTTP clients."""

from __future__ import annotations

import click

from tidegate.cli.entities.entra import entra
from tidegate.cli.shell.completing import complete_hub
from tidegate.cli.shell.connection import Service, with_service
from tidegate.cli.shell.contents import CommandGroup
from tidegate.cli.shell.decorators import option, require_at_most_one
from tidegate.cli.shell.options import life_option, life_s, with_output
from tidegate.cli.shell.render import Output, remark
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import InvalidArgumentError, NotFoundError
from tidegate.model.times import time_of

token_group = CommandGroup("token", help="Make tokens, for HTTP clients and as Entra ID does.")
token_group.add_command(entra)


@token_group.command()
@click.argument(
    "hub", required=False, shell_complete=complete_hub, help="The event hub. Default: the namespace."
)
@option("--publisher", "NAME", "Only for sending as this publisher of the hub.")
@option("--policy", "NAME", "Sign with the key of this policy of the hub, else of the namespace.")
@option(
    "--claim",
    "CLAIM",
    "Send, Listen or Manage: sign with the policy that has it and the fewest others.",
    click.Choice(("Send", "Listen", "Manage"), case_sensitive=False),
)
@life_option
@with_service
@with_output()
def sas(
    output: Output,
    service: Service,
    hub: str | None,
    publisher: str | None,
    policy: str | None,
    claim: str | None,
    life: str,
) -> None:
    """Make a shared access signature, for the header Authorization.

    A token has the claims of the policy whose key signs it, for this entity and what is below it. Without
    --policy or --claim, the connection string's own key signs, and the service is not contacted; with them,
    it must have Manage. Deleting the policy, or replacing its key, ends the token.

    Examples:
      tidegate token sas telemetry --claim Send --life 15m
      curl -H "Authorization: $(tidegate token sas)" http://127.0.0.1:5300/api/v1/event-hubs
    """
    from tidegate.model.sas import make_sas_token
    from tidegate.transport.clock import SystemClock

    require_at_most_one({"--policy": policy, "--claim": claim})
    if publisher is not None and hub is None:
        raise InvalidArgumentError("--publisher was given without an event hub.", next_step="Name the hub.")
    if publisher is not None and claim == "Listen":
        raise InvalidArgumentError(
            "A publisher only sends: a token with Listen for it would be refused everywhere.",
            next_step="Use --claim Send, or leave --publisher out to read the hub.",
        )
    expiry = int(SystemClock().now_utc().timestamp()) + life_s(life)
    used = ConnectionString.parse(service.connection().connection_string)
    name, key = used.shared_access_key_name, used.shared_access_key
    if policy is not None or claim is not None:
        name, key = _key_of(service, hub, policy, claim)
    if name is None or key is None:
        raise InvalidArgumentError("The connection string has no key to sign with.")
    entity = "/".join(each for each in (hub, publisher and f"publishers/{publisher}") if each)
    token = make_sas_token(audience=f"sb://{used.host}/{entity}", key_name=name, key=key, expiry=expiry)
    if not output.is_table:
        output.record(
            {"token": token, "entity": entity, "policy": name, "expires_at": time_of(expiry * 1000)}
        )
        return
    output.line(token)
    remark(f"Signed by the policy {name}, valid for {life}. Treat it as a password.")


def _key_of(service: Service, hub: str | None, policy: str | None, claim: str | None) -> tuple[str, str]:
    """The policy that is meant, and its key: of the hub, else of the namespace."""
    from tidegate.client import EventHubAdministrator

    async def find(administrator: EventHubAdministrator) -> tuple[str, str]:
        found = [
            each
            for scope in ([hub, None] if hub is not None else [None])
            for each in await administrator.list_policies(scope)
            if each.name == policy or (claim is not None and claim in each.claims)
        ]
        if not found:
            raise NotFoundError(
                f"No policy {f'named {policy}' if claim is None else f'with {claim}'} is in "
                f"{f'{hub} or ' if hub else ''}the namespace.",
                next_step="See `tidegate policy list`.",
            )
        # The hub's come first, and min keeps the first of several.
        chosen = found[0] if claim is None else min(found, key=lambda each: len(each.claims))
        full = await administrator.get_policy(chosen.name, event_hub=chosen.event_hub)
        assert full.primary_key is not None
        return full.name, full.primary_key

    return service.administer(find)
