"""What a shell completes beside commands and options: names of hubs, groups, policies, pipelines, profiles.

Somebody has pressed a key and waits: a service that does not answer at once completes nothing, and neither
does an error, for there is nowhere to say it.

``_TIDEGATE_COMPLETION_S`` in the environment is for tests on busy machines: how long the service has, in
seconds.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from tidegate.model.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.cli.shell.connection import ServiceConnection
    from tidegate.client import EventHubAdministrator

_ANSWER_S_MAX: Final = 1.5
"""Longest wait for the service."""
_ANSWER_VARIABLE: Final = "_TIDEGATE_COMPLETION_S"


def complete_hub(context: typer.Context, incomplete: str) -> list[str]:
    """The event hubs of the service; the one that the connection string is for, where it is for one."""

    async def names(administrator: EventHubAdministrator) -> list[str]:
        return [hub.name for hub in await administrator.list_event_hubs()]

    return _ask(context, names, is_of_hub=True)


def complete_group(context: typer.Context, incomplete: str) -> list[str]:
    """The consumer groups of the event hub that the command names."""
    # Where the value of an option is completed, arguments before it are not assigned yet.
    hub = context.params.get("hub") or next(iter(context.args), None)

    async def names(administrator: EventHubAdministrator) -> list[str]:
        return list(await administrator.list_consumer_groups(hub)) if hub else []

    return _ask(context, names)


def complete_policy(context: typer.Context, incomplete: str) -> list[str]:
    """The policies of the namespace, or of the event hub of ``--hub``."""
    hub = context.params.get("hub")

    async def names(administrator: EventHubAdministrator) -> list[str]:
        return [policy.name for policy in await administrator.list_policies(hub)]

    return _ask(context, names)


def complete_pipeline(incomplete: str) -> list[str]:
    """The pipelines that ever ran on this machine."""
    from tidegate.transport.status_files import PipelineFiles

    try:
        return [status.name for status in PipelineFiles.of_user(os.environ).read_all()]
    except (TidegateError, OSError):
        return []


def complete_profile(incomplete: str) -> list[str]:
    """The profiles of this user."""
    from tidegate.cli.shell.profiles import profile_names

    return profile_names(os.environ)


def _ask(
    context: typer.Context,
    names: Callable[[EventHubAdministrator], Awaitable[list[str]]],
    *,
    is_of_hub: bool = False,
) -> list[str]:
    import asyncio

    from tidegate.cli.shell.connection import connection_of_profile, resolve_connection
    from tidegate.model.connection_string import ConnectionString

    given = context.params
    ca_file: Path | None = given.get("ca_file")
    try:
        if given.get("profile"):
            connection = connection_of_profile(given["profile"], ca_file, os.environ)
        else:
            connection = resolve_connection(given.get("connection_string"), ca_file, os.environ)
        entity_path = ConnectionString.parse(connection.connection_string).entity_path
        if is_of_hub and entity_path is not None:
            return [entity_path]
        return asyncio.run(_answer(connection, names))
    except (TidegateError, OSError):
        return []


async def _answer(
    connection: ServiceConnection, names: Callable[[EventHubAdministrator], Awaitable[list[str]]]
) -> list[str]:
    import asyncio

    from tidegate.cli.shell.administering import open_administrator

    wait_s = float(os.environ.get(_ANSWER_VARIABLE) or _ANSWER_S_MAX)
    async with asyncio.timeout(wait_s), open_administrator(connection) as administrator:
        return await names(administrator)
