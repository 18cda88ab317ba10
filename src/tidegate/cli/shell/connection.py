"""Where the service is: the connection options, and the order of the sources.

Order: ``--connection-string`` or ``--profile``, then ``TIDEGATE_CONNECTION_STRING``, then the profile that
``TIDEGATE_PROFILE`` names, else the one chosen with ``tidegate profile use``, else the one that ``tidegate
serve`` wrote for this user.

The options are declared once, here. They may be given before the command, which is where the program itself
takes them, or after it, where each command with ``with_service`` does.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tidegate.cli.shell.decorators import (
    FILE,
    Decorator,
    adding_argument,
    all_of,
    option,
    require_at_most_one,
)
from tidegate.cli.shell.exit_codes import NoConnectionError
from tidegate.cli.shell.interrupt import run_interruptible
from tidegate.cli.shell.profiles import (
    LOCAL,
    PROFILE_VARIABLE,
    ServiceConnection,
    chosen_profile,
    complete_profile,
    load_profile,
)
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import UnauthorizedError
from tidegate.server.ready import profile_path

if TYPE_CHECKING:
    from tidegate.client import EventHubAdministrator, EventHubProperties, Namespace

T = TypeVar("T")

CONNECTION_STRING_VARIABLE = "TIDEGATE_CONNECTION_STRING"
FIRST_CONTACT_TIMEOUT_S = 10.0
"""Longest wait, in seconds, for a service that a person at a terminal waits for."""


@dataclass(slots=True)
class Service:
    """The service that the options name; nothing is resolved before it is needed."""

    connection_string: str | None = field(default=None, repr=False)
    profile: str | None = None
    ca_file: Path | None = None

    def connection(self) -> ServiceConnection:
        """See ``resolve_connection``."""
        return resolve_connection(self.connection_string, self.ca_file, os.environ, profile=self.profile)

    def administer(self, act: Callable[[EventHubAdministrator], Awaitable[T]]) -> T:
        """The result of ``act``, called with an administrator of this service.

        Raises NoConnectionError, ConnectionStringError and what ``act`` raises.
        """
        connection = self.connection()

        async def work() -> T:
            async with open_administrator(connection) as administrator:
                return await act(administrator)

        try:
            return run_interruptible(work())
        except UnauthorizedError as error:
            hub = ConnectionString.parse(connection.connection_string).entity_path
            if hub is None or "InvalidSignature" not in error.message:
                raise
            # The service looks for the policy among the namespace's, and cannot know of which hub it is.
            raise UnauthorizedError(
                error.message,
                next_step=f"The string names the event hub {hub}: if its policy is of that hub, the key is "
                "right, but this needs a policy of the namespace.",
            ) from error


def _remember(context: click.Context, parameter: click.Parameter, value: object) -> None:
    if value is not None:
        setattr(context.ensure_object(Service), parameter.name, value)


profile_option: Decorator = option(
    "--profile",
    "NAME",
    f"A connection saved with `tidegate profile`. Default: {PROFILE_VARIABLE}, then the active profile, then "
    "the one written by `tidegate serve`.",
    expose_value=False,
    callback=_remember,
    shell_complete=complete_profile,
)

connection_options: Decorator = all_of(
    profile_option,
    option(
        "--connection-string",
        "TEXT",
        f"The service's connection string. Default: {CONNECTION_STRING_VARIABLE}, then a profile.",
        expose_value=False,
        callback=_remember,
    ),
    option(
        "--ca-file",
        "FILE",
        "Certificate authority to trust for TLS. Default: the system's.",
        FILE,
        expose_value=False,
        callback=_remember,
    ),
)


def with_service(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the connection options; it takes a ``Service`` as its argument ``service``."""
    make = adding_argument(command, "service", lambda context, _: context.ensure_object(Service))
    return connection_options(make)


def resolve_connection(
    connection_string: str | None,
    ca_file: Path | None,
    environment: Mapping[str, str],
    *,
    profile: str | None = None,
) -> ServiceConnection:
    """The connection to use.

    Raises ConnectionStringError for one that does not parse, InvalidArgumentError for a profile that is
    damaged or does not exist, and NoConnectionError if no source has a connection.
    """
    require_at_most_one({"--profile": profile, "--connection-string": connection_string})
    text = None if profile else connection_string or environment.get(CONNECTION_STRING_VARIABLE)
    if text:
        ConnectionString.parse(text)
        return ServiceConnection(text, None if ca_file is None else str(ca_file))
    name = profile or chosen_profile(environment)
    if not profile and name == LOCAL and not profile_path(environment).exists():
        raise NoConnectionError(
            f"No service given: found no --connection-string, --profile, {CONNECTION_STRING_VARIABLE} or "
            f"{PROFILE_VARIABLE}, and no profile at {profile_path(environment)}.",
            next_step="Start one with `tidegate serve`, or save a connection: `tidegate profile save NAME`.",
        )
    found = load_profile(name, environment)
    return found if ca_file is None else replace(found, ca_file=str(ca_file))


def impatient_namespace(connection: ServiceConnection) -> Namespace:
    """The namespace for interactive requests: reports an unreachable service within seconds."""
    from tidegate.client import Namespace, RetryPolicy

    return Namespace.from_connection_string(
        connection.connection_string,
        ca_file=connection.ca_file,
        retry=RetryPolicy(retries_max=2),
        timeout_s=FIRST_CONTACT_TIMEOUT_S,
    )


def open_administrator(connection: ServiceConnection) -> EventHubAdministrator:
    """An administrator for ``async with``; limited to one hub if the connection string names one."""
    from tidegate.client import EventHubAdministrator

    entity_path = ConnectionString.parse(connection.connection_string).entity_path
    return EventHubAdministrator(impatient_namespace(connection), entity_path)


async def check_event_hub(connection: ServiceConnection, name: str) -> EventHubProperties:
    """The properties of a hub: checks that it exists before a command starts to wait patiently.

    Raises NotFoundError, UnauthorizedError, BrokenError and OperationTimeoutError.
    """
    from tidegate.client import EventHubConsumer

    async with EventHubConsumer(impatient_namespace(connection), name) as consumer:
        return await consumer.get_event_hub_properties()
