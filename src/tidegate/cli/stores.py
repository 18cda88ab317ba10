"""The database or the store of leases and checkpoints that a command's options name."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.cli.connection import impatient_namespace, resolve_connection
from tidegate.cli.exit_codes import NoConnectionError
from tidegate.cli.options import DATABASE_VARIABLE
from tidegate.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from tidegate.processor.lease import GroupKey
    from tidegate.processor.store import ProcessorStore
    from tidegate.sql import Database

_ANY_NAMESPACE = "localhost"
"""A SQL store keeps no namespaces, so this one serves where nothing says which it is."""


def open_database(url: str | None, environment: Mapping[str, str] = os.environ) -> Database:
    """The database that ``--database`` or the environment names.

    Raises InvalidArgumentError where neither does, DatabaseError and DatabaseUnavailableError.
    """
    from tidegate.sql import Database

    chosen = url or environment.get(DATABASE_VARIABLE)
    if not chosen:
        raise InvalidArgumentError(
            f"No database is named: there is no --database and no {DATABASE_VARIABLE}.",
            next_step="Give the one that the pipeline writes to, e.g. --database sqlite:///flights.db",
        )
    return Database.open(chosen)


@asynccontextmanager
async def open_store(
    database_url: str | None,
    environment: Mapping[str, str] = os.environ,
) -> AsyncIterator[ProcessorStore]:
    """The store of leases and checkpoints that the options name. Raises as ``open_database``."""
    from tidegate.sql import SqlStore

    with open_database(database_url, environment) as database:
        store = SqlStore(database)
        try:
            yield store
        finally:
            await store.close()


def namespace_of(
    connection_string: str | None, ca_file: Path | None, environment: Mapping[str, str] = os.environ
) -> str:
    """The namespace whose checkpoints are meant.

    Without a connection any will do: a SQL store does not keep them apart.
    """
    try:
        connection = resolve_connection(connection_string, ca_file, environment)
    except NoConnectionError:
        return _ANY_NAMESPACE
    return impatient_namespace(connection).host


def group_keys(namespace: str, hub: str, groups: list[str] | None) -> dict[str, GroupKey]:
    """The groups that ``--group`` names, by the name as given; without any, the default group."""
    from tidegate.model.limits import DEFAULT_CONSUMER_GROUP
    from tidegate.processor.lease import GroupKey

    return {name: GroupKey(namespace, hub, name) for name in groups or [DEFAULT_CONSUMER_GROUP]}
