"""One request of a command to the service that it administers, and the arguments that such commands share."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tidegate.cli.shell.connection import ServiceConnection, impatient_namespace, resolve_connection
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from tidegate.client import EventHubAdministrator

T = TypeVar("T")

OFF = "off"
"""Said in place of a number, to take a limit away."""


def administer(
    act: Callable[[EventHubAdministrator], Awaitable[T]],
    connection_string: str | None,
    ca_file: Path | None,
) -> T:
    """What ``act`` returns, done with an administrator of the service that the options lead to.

    Raises NoConnectionError, ConnectionStringError and whatever ``act`` raises.
    """
    from tidegate.cli.shell.interrupt import run_interruptible

    connection = resolve_connection(connection_string, ca_file, os.environ)

    async def work() -> T:
        async with open_administrator(connection) as administrator:
            return await act(administrator)

    return run_interruptible(work())


def open_administrator(connection: ServiceConnection) -> EventHubAdministrator:
    """An administrator for ``async with``; of one hub only where that is all that the policy allows."""
    from tidegate.client import EventHubAdministrator

    entity_path = ConnectionString.parse(connection.connection_string).entity_path
    return EventHubAdministrator(impatient_namespace(connection), entity_path)


def number_or_off(option: str, text: str) -> int | None:
    """The number that was given, or None for ``off``. Raises InvalidArgumentError naming the option."""
    if text.lower() == OFF:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidArgumentError(
            f"Invalid value {text[:40]!r} for {option}.", next_step=f"Use an integer, or {OFF}."
        )
    return int(text)
