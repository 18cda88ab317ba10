"""Where the service is, for every command that talks to one.

Order: ``--connection-string`` or ``--profile``, then ``TIDEGATE_CONNECTION_STRING``, then the profile that
``TIDEGATE_PROFILE`` names, else the one chosen with ``tidegate profile use``, else the one that ``tidegate
serve`` left for this user.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.cli.shell.exit_codes import NoConnectionError
from tidegate.model.connection_string import ConnectionString

if TYPE_CHECKING:
    from tidegate.client import EventHubProperties, Namespace

CONNECTION_STRING_VARIABLE = "TIDEGATE_CONNECTION_STRING"
FIRST_CONTACT_TIMEOUT_S = 10.0
"""How long a person at the terminal waits for a service that is not there."""


@dataclass(frozen=True, slots=True)
class ServiceConnection:
    """How to reach a service."""

    connection_string: str = field(repr=False)
    ca_file: str | None
    """The certificate authority to trust besides the system's; None: only the system's."""


def resolve_connection(
    connection_string: str | None, ca_file: Path | None, environment: Mapping[str, str]
) -> ServiceConnection:
    """The connection to use.

    Raises ConnectionStringError for one that does not parse, InvalidArgumentError for a profile that is
    damaged or not there, and NoConnectionError where none of the sources has one.
    """
    text = connection_string or environment.get(CONNECTION_STRING_VARIABLE)
    if text:
        ConnectionString.parse(text)
        return ServiceConnection(text, None if ca_file is None else str(ca_file))
    from tidegate.cli.shell.profiles import LOCAL, PROFILE_VARIABLE, chosen_profile
    from tidegate.server.ready import profile_path

    name = chosen_profile(environment)
    if name == LOCAL and not profile_path(environment).exists():
        raise NoConnectionError(
            f"No service given: found no --connection-string, --profile, {CONNECTION_STRING_VARIABLE} or "
            f"{PROFILE_VARIABLE}, and no profile at {profile_path(environment)}.",
            next_step="Start one with `tidegate serve`, or save a connection: `tidegate profile save NAME`.",
        )
    return connection_of_profile(name, ca_file, environment)


def connection_of_profile(
    name: str, ca_file: Path | None, environment: Mapping[str, str]
) -> ServiceConnection:
    """The connection that a profile keeps. Raises InvalidArgumentError where there is none of that name."""
    from tidegate.cli.shell.profiles import load_profile

    profile = load_profile(name, environment)
    return ServiceConnection(profile.connection_string, profile.ca_file if ca_file is None else str(ca_file))


def impatient_namespace(connection: ServiceConnection) -> Namespace:
    """For first contact and small requests: somebody waits at the terminal, so a service that is not there is
    told within seconds.
    """
    from tidegate.client import Namespace, RetryPolicy

    return Namespace.from_connection_string(
        connection.connection_string,
        ca_file=connection.ca_file,
        retry=RetryPolicy(retries_max=2),
        timeout_s=FIRST_CONTACT_TIMEOUT_S,
    )


async def check_event_hub(connection: ServiceConnection, name: str) -> EventHubProperties:
    """What the service says about a hub: shows that it is there before patient work begins.

    Raises NotFoundError, UnauthorizedError, BrokenError and OperationTimeoutError.
    """
    from tidegate.client import EventHubConsumer

    async with EventHubConsumer(impatient_namespace(connection), name) as consumer:
        return await consumer.get_event_hub_properties()
