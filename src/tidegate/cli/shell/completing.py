"""What a shell completes beside commands and options: names of hubs, groups, policies, pipelines, profiles.

A person has pressed a key and waits: a service that does not answer quickly completes nothing, and neither
does an error, since there is nowhere to print it.

``_TIDEGATE_COMPLETION_S`` in the environment is for tests on busy machines: how long the service has, in
seconds.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import click

from tidegate.model.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.client import EventHubAdministrator

_ANSWER_S_MAX: Final = 1.5
"""Longest wait for the service."""
_ANSWER_VARIABLE: Final = "_TIDEGATE_COMPLETION_S"


def complete_hub(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The event hubs of the service, or the hub that the connection string names."""

    async def names(administrator: EventHubAdministrator) -> list[str]:
        return [hub.name for hub in await administrator.list_event_hubs()]

    return _ask(context, incomplete, names, is_of_hub=True)


def complete_group(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The consumer groups of the event hub that the command names."""
    # While the value of an option is completed, the arguments before it are not assigned yet.
    hub = context.params.get("hub") or next(iter(context.args), None)

    async def names(administrator: EventHubAdministrator) -> list[str]:
        return list(await administrator.list_consumer_groups(hub)) if hub else []

    return _ask(context, incomplete, names)


def complete_policy(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The policies of the namespace, or of the event hub of ``--hub``."""

    async def names(administrator: EventHubAdministrator) -> list[str]:
        return [policy.name for policy in await administrator.list_policies(context.params.get("hub"))]

    return _ask(context, incomplete, names)


def complete_pipeline(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """The pipelines that have run on this machine."""
    from tidegate.transport.status_files import PipelineFiles

    try:
        names = [status.name for status in PipelineFiles.of_user(os.environ).read_all()]
    except (TidegateError, OSError):
        return []
    return [name for name in names if name.startswith(incomplete)]


def _ask(
    context: click.Context,
    incomplete: str,
    names: Callable[[EventHubAdministrator], Awaitable[list[str]]],
    *,
    is_of_hub: bool = False,
) -> list[str]:
    import asyncio

    from tidegate.cli.shell.connection import Service, open_administrator
    from tidegate.model.connection_string import ConnectionString

    try:
        connection = context.ensure_object(Service).connection()
        entity_path = ConnectionString.parse(connection.connection_string).entity_path

        async def answer() -> list[str]:
            wait_s = float(os.environ.get(_ANSWER_VARIABLE) or _ANSWER_S_MAX)
            async with asyncio.timeout(wait_s), open_administrator(connection) as administrator:
                return await names(administrator)

        found = [entity_path] if is_of_hub and entity_path is not None else asyncio.run(answer())
    except (TidegateError, OSError):
        return []
    return [name for name in found if name.startswith(incomplete)]
