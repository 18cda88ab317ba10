"""The database or the store of leases and checkpoints that a command's options name."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.cli.connection import impatient_namespace, resolve_connection
from tidegate.cli.exit_codes import NoConnectionError
from tidegate.cli.options import DATABASE_VARIABLE
from tidegate.model.errors import InvalidArgumentError, NotFoundError
from tidegate.model.limits import DEFAULT_CONSUMER_GROUP

if TYPE_CHECKING:
    from tidegate.processor.checkpoint import ProcessorCheckpoint
    from tidegate.processor.lease import Lease, LeaseSnapshot
    from tidegate.processor.store import ProcessorStore
    from tidegate.sql import Database

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_ANY_NAMESPACE = "localhost"
"""A SQL store keeps no namespaces, so this one serves where nothing says which it is."""


def open_database(url: str | None) -> Database:
    """The database that ``--database`` or the environment names.

    Raises InvalidArgumentError where neither does, DatabaseError and DatabaseUnavailableError.
    """
    from tidegate.sql import Database

    chosen = url or os.environ.get(DATABASE_VARIABLE)
    if not chosen:
        raise InvalidArgumentError(
            f"No database is named: there is no --database and no {DATABASE_VARIABLE}.",
            next_step="Give the one that the pipeline writes to, e.g. --database sqlite:///flights.db",
        )
    return Database.open(chosen)


@dataclass(frozen=True, slots=True)
class StoreChoice:
    """Which store of leases and checkpoints the options name; ``open`` it."""

    database_url: str | None
    """None: the environment's database, unless there is a directory."""
    directory: Path | None

    def __post_init__(self) -> None:
        if self.database_url and self.directory is not None:
            raise InvalidArgumentError(
                "--database and --checkpoint-dir exclude each other.", next_step="Give one of them."
            )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ProcessorStore]:
        """The store, for as long as the context lasts. Raises as ``open_database``; NotFoundError."""
        if self.directory is not None:
            from tidegate.processor.directory_store import DirectoryStore

            if not self.directory.is_dir():
                raise NotFoundError(
                    f"There is no directory {self.directory}.",
                    next_step="Name the one that the hosts' DirectoryStore was given.",
                )
            directory_store = DirectoryStore(self.directory)
            try:
                yield directory_store
            finally:
                await directory_store.close()
            return
        from tidegate.sql import SqlStore

        with open_database(self.database_url) as database:
            store = SqlStore(database)
            try:
                yield store
            finally:
                await store.close()

    def namespace(self, connection_string: str | None, ca_file: Path | None) -> str:
        """The namespace whose leases and checkpoints are meant; nothing is asked of its service.

        A SQL store does not keep namespaces apart, so there it may be that nothing says which it is.
        Raises NoConnectionError where something must.
        """
        try:
            connection = resolve_connection(connection_string, ca_file, os.environ)
        except NoConnectionError:
            if self.directory is not None:
                raise
            return _ANY_NAMESPACE
        return impatient_namespace(connection).host


@dataclass(frozen=True, slots=True)
class GroupView:
    """What a store has of one consumer group at one moment."""

    name: str
    """As it was given."""
    leases: LeaseSnapshot
    checkpoints: Mapping[str, ProcessorCheckpoint]

    @property
    def partition_ids(self) -> list[str]:
        """Those with a lease or a checkpoint; 2 before 10."""
        return sorted({*self.leases.leases, *self.checkpoints}, key=lambda each: (len(each), each))

    def lease_record(self, partition_id: str) -> dict[str, object]:
        """A partition's row of the lease table; a released lease has no owner."""
        lease, checkpoint = self.leases.leases.get(partition_id), self.checkpoints.get(partition_id)
        is_owned = lease is not None and bool(lease.owner)
        return {
            "consumer_group": self.name,
            "partition": partition_id,
            "owner": lease.owner if lease is not None and is_owned else None,
            "acquired": lease.acquired_at if lease is not None and is_owned else None,
            "offset": None if checkpoint is None else checkpoint.offset,
            "lease_age_s": self.lease_age_s(lease) if lease is not None and is_owned else None,
            "epoch": None if lease is None else lease.epoch,
        }

    def lease_age_s(self, lease: Lease) -> float:
        """Seconds since it was renewed, by the store's clock."""
        return max(0.0, (self.leases.now - lease.renewed_at).total_seconds())


LEASE_COLUMNS = ("consumer_group", "partition", "owner", "acquired", "offset", "lease_age_s", "epoch")


async def view_groups(
    store: ProcessorStore, namespace: str, hub: str, groups: Sequence[str] | None
) -> list[GroupView]:
    """The groups that ``--group`` names; without any, the default group."""
    from tidegate.processor.lease import GroupKey

    views = []
    for name in groups or [DEFAULT_CONSUMER_GROUP]:
        key = GroupKey(namespace, hub, name)
        # Checkpoints first: one that is older than its lease is at least a consistent one.
        checkpoints = await store.list_checkpoints(key)
        views.append(GroupView(name, await store.list_leases(key), checkpoints))
    return views


def time_of(milliseconds: int | None) -> datetime | None:
    """The aware time so many milliseconds after 1970-01-01 UTC; None: none is known."""
    return None if milliseconds is None else EPOCH + timedelta(milliseconds=milliseconds)


def milliseconds_of(time: datetime) -> int:
    """Milliseconds since 1970-01-01 UTC of an aware time."""
    return (time - EPOCH) // timedelta(milliseconds=1)
