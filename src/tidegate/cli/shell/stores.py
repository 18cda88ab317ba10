"""The database or the store of leases and checkpoints that a command's options name."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidegate.cli.shell.connection import CONNECTION_STRING_VARIABLE, Service, impatient_namespace
from tidegate.cli.shell.decorators import require_at_most_one
from tidegate.cli.shell.interrupt import run_interruptible
from tidegate.cli.shell.profiles import LOCAL, chosen_profile, load_profile
from tidegate.cli.shell.render import remark
from tidegate.model.errors import InvalidArgumentError, NotFoundError, StoreError
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP, spelled_group

if TYPE_CHECKING:
    from tidegate.processor.group_view import GroupView
    from tidegate.processor.lease import GroupKey
    from tidegate.processor.store import ProcessorStore
    from tidegate.processor.stores.blob import BlobStore
    from tidegate.processor.stores.directory import DirectoryStore
    from tidegate.sql import Database, SqlStore

    Store = SqlStore | DirectoryStore | BlobStore

DATABASE_VARIABLE = "TIDEGATE_DATABASE"
STORAGE_VARIABLE = "AZURE_STORAGE_CONNECTION_STRING"
"""The variable of Azure's own command line."""

_ANY_NAMESPACE = "localhost"
"""A database does not record namespaces, so any name will do."""


def database_url(given: str | None) -> str | None:
    """The database to use: the one given, else that of ``--profile``, else the environment's, else that of
    the profile from which the connection is taken; None: there is none."""
    context = click.get_current_context(silent=True)
    if given or context is None:
        return given or os.environ.get(DATABASE_VARIABLE)
    service = context.find_object(Service) or Service()
    named = load_profile(service.profile, os.environ).database if service.profile else None
    url = named or os.environ.get(DATABASE_VARIABLE)
    if url or service.profile or service.connection_string or os.environ.get(CONNECTION_STRING_VARIABLE):
        return url
    name = chosen_profile(os.environ)
    return None if name == LOCAL else load_profile(name, os.environ).database


def open_database(url: str | None, *, may_create: bool = False) -> Database:
    """The database of ``database_url``.

    may_create: create a SQLite file that does not exist yet.
    Raises InvalidArgumentError if there is none, NotFoundError if its file does not exist, DatabaseError
    and DatabaseUnavailableError.
    """
    from tidegate.sql import Database
    from tidegate.sql.core.database import sqlite_file

    chosen = database_url(url)
    if not chosen:
        raise InvalidArgumentError(
            f"No database given: found no --database, no {DATABASE_VARIABLE}, and none in the profile.",
            next_step="Use the database that the pipeline writes to, e.g. --database sqlite:///flights.db",
        )
    file = sqlite_file(chosen)
    if file is not None and not may_create and not file.exists():
        raise NotFoundError(
            f"There is no SQLite database {file}.",
            next_step="Use the database that the hosts or pipelines write to (an absolute path needs four "
            "slashes).",
        )
    return Database.open(chosen)


@dataclass(frozen=True, slots=True)
class StoreChoice:
    """The store of leases and checkpoints that the options name; ``open`` it."""

    database_url: str | None
    """None: as ``database_url``, unless a directory or a container is given."""
    directory: Path | None = None
    blob_container: str | None = None
    """The URL of a container, or its name in the environment's storage account."""
    namespace: str | None = None
    """As in the store; None: the service's."""

    def __post_init__(self) -> None:
        options = ("--database", "--checkpoint-dir", "--blob-container")
        values = (self.database_url, self.directory, self.blob_container)
        require_at_most_one(dict(zip(options, values, strict=True)))

    @property
    def is_given(self) -> bool:
        """Whether the options, the environment or the profile name one."""
        return any((self.directory, self.blob_container, database_url(self.database_url)))

    @property
    def is_named(self) -> bool:
        """Whether a namespace's name is part of what is kept in it."""
        return self.directory is not None or self.blob_container is not None

    @property
    def kind(self) -> str:
        """For messages; without an address, which may have a password."""
        if self.blob_container is not None:
            return "the container"
        return "the database" if self.directory is None else "the directory"

    @property
    def is_offset_needed(self) -> bool:
        """Whether every checkpoint in the store needs an offset."""
        return self.blob_container is not None

    @asynccontextmanager
    async def open(self, *, may_create: bool = False) -> AsyncIterator[Store]:
        """The store, open while the context lasts.

        may_create: create a file or directory that does not exist yet.
        Raises as ``open_database``; NotFoundError for a missing directory; InvalidArgumentError and
        StoreError for an invalid container, or if the package for it is not installed.
        """
        with ExitStack() as stack:
            store: Store
            if self.blob_container is not None:
                store = _blob_store(self.blob_container)
            elif self.directory is not None:
                store = _directory_store(self.directory, may_create=may_create)
            else:
                from tidegate.sql import SqlStore

                database = open_database(self.database_url, may_create=may_create)
                store = SqlStore(stack.enter_context(database))
            try:
                yield store
            finally:
                await store.close()

    async def key(self, service: Service, hub: str, group: str = DEFAULT_CONSUMER_GROUP) -> GroupKey:
        """The key of a group in the store.

        Asks the service for the namespace's id, unless the store is a database (which has one namespace) or
        the namespace is given. Raises NoConnectionError, and as ``get_event_hub_properties``.
        """
        from tidegate.client import EventHubConsumer
        from tidegate.processor.lease import GroupKey

        if self.namespace is not None:
            return GroupKey(self.namespace, hub, group)
        if self.directory is None and self.blob_container is None:
            return GroupKey(_ANY_NAMESPACE, hub, group)
        namespace = impatient_namespace(service.connection())
        async with EventHubConsumer(namespace, hub) as consumer:
            found = await consumer.get_event_hub_properties()
        return GroupKey.of(found, group, host=namespace.host, authority=namespace.authority)

    def read(self, service: Service, hub: str, groups: Sequence[str]) -> list[tuple[str, GroupView]]:
        """See ``view_groups``; opens the store and closes it. Remarks which of them are not there."""

        async def work() -> list[tuple[str, GroupView]]:
            key = await self.key(service, hub)
            async with self.open() as store:
                views = await view_groups(store, key, groups)
                if missing := [name for name, view in views if not view.partition_ids]:
                    there = [spelled_group(each.consumer_group) for each in await store.groups_of(hub)]
                    remark(missing_words(self.kind, missing, hub, there))
                return views

        return run_interruptible(work())


def _directory_store(directory: Path, *, may_create: bool) -> DirectoryStore:
    from tidegate.processor.stores.directory import DirectoryStore

    if not may_create and not directory.is_dir():
        raise NotFoundError(
            f"There is no directory {directory}.",
            next_step="Use the directory given to the hosts' DirectoryStore.",
        )
    return DirectoryStore(directory)


def _blob_store(container: str) -> BlobStore:
    try:
        from tidegate.processor.stores.blob import BlobStore
    except ModuleNotFoundError as error:
        raise StoreError(str(error)) from error
    if "://" in container:
        return BlobStore.from_container_url(container)
    account = os.environ.get(STORAGE_VARIABLE)
    if not account:
        raise InvalidArgumentError(
            f"Unknown storage account for the container {container}.",
            next_step=f"Set {STORAGE_VARIABLE}, or use the container's URL with a shared access signature.",
        )
    return BlobStore.from_connection_string(account, container)


async def view_groups(
    store: ProcessorStore, key: GroupKey, groups: Sequence[str]
) -> list[tuple[str, GroupView]]:
    """The groups named by ``--group``, each with its name; without any, the default group. key: of any."""
    from tidegate.processor.group_view import view_group

    names = groups or [DEFAULT_CONSUMER_GROUP]
    return [(name, await view_group(store, replace(key, consumer_group=name))) for name in names]


def missing_words(where: str, missing: Sequence[str], hub: str, there: Sequence[str]) -> str:
    """Which groups are not in a place, and which are."""
    what = f"has no lease and no checkpoint of {', '.join(missing)} of {hub}"
    return f"{where[0].upper()}{where[1:]} {what}" + (f", but of {', '.join(there)}." if there else ".")


def default_actor() -> str:
    """``user@host``: the name recorded in a database's audit trail."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a user without a name, as in containers
        user = str(os.getuid()) if hasattr(os, "getuid") else "?"
    return f"{user}@{socket.gethostname()}"
