"""Tidegate's SQL store for processors of the official Azure SDK: ``checkpoint_store=SqlCheckpointStore(…)``.

    database = Database.open("postgresql://…")
    client = EventHubConsumerClient.from_connection_string(
        …, consumer_group="$Default", checkpoint_store=SqlCheckpointStore(database)
    )

It uses the same rows as ``SqlStore``, so official processors may share a consumer group with each other and
with hosts whose store has ``has_epochs=False``.

Only this module imports azure-eventhub, which is the user's own dependency. It behaves as the official
BlobCheckpointStore (azure-eventhub-checkpointstoreblob 1.2, ``_blobstoragecs.py``), with one exception: if
the database does not answer, ``claim_ownership`` also fails; the processor reports it, keeps reading its
partitions, and retries. (The blob store returns such a claim as won, even if it was not.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Final, Self, TypeVar

from tidegate.model.times import time_of
from tidegate.processor.checkpoint import ProcessorCheckpoint
from tidegate.processor.lease import GroupKey
from tidegate.sql.core.database import Database
from tidegate.sql.core.values import Checkpoint, ConsumerKey
from tidegate.sql.stores.checkpoint_moves import move_checkpoint
from tidegate.sql.stores.checkpoints import CheckpointReader
from tidegate.sql.stores.leases import LeaseClaim, LeaseTable
from tidegate.sql.stores.processor_store import OneNamespace

try:
    from azure.eventhub import CheckpointStore
    from azure.eventhub.aio import CheckpointStore as AsyncCheckpointStore
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"The module {error.name} is missing: this store is for processors of the official SDK. Install it "
        "with: pip install azure-eventhub",
        name=error.name,
    ) from error

T = TypeVar("T")

Ownership = dict[str, object]
"""The SDK's form: the group's three names, ``partition_id``, ``owner_id``, ``etag`` and
``last_modified_time`` (seconds since 1970-01-01 UTC)."""

_NAMES: Final = ("fully_qualified_namespace", "eventhub_name", "consumer_group")
_THREADS: Final = 4
"""Concurrent calls of an asyncio processor (our choice)."""


class SqlCheckpointStore(CheckpointStore):
    """Ownership in ``tidegate_lease`` and checkpoints in ``tidegate_checkpoint``; for ``azure.eventhub``.

    Processors and threads may share it. The caller closes the database. Every method raises
    DatabaseUnavailableError and DatabaseError, and InvalidArgumentError for a second namespace.
    """

    def __init__(self, database: Database, *, is_rewind_allowed: bool = True) -> None:
        """is_rewind_allowed: True, as in the official stores: the last update wins, even if it moves back.

        False: checkpoints only move forward. Use it if transactional hosts share the group, because a host
        whose checkpoint is moved back would process events again.
        """
        self._database = database
        self._is_rewind_allowed = is_rewind_allowed
        self._leases = LeaseTable(database)
        self._namespace = OneNamespace()

    def list_ownership(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **kwargs: object
    ) -> list[Ownership]:
        """The owner of each partition; released ones have an empty ``owner_id``."""
        names = dict(zip(_NAMES, (fully_qualified_namespace, eventhub_name, consumer_group), strict=True))
        return [
            {
                **names,
                "partition_id": lease.partition_id,
                "owner_id": lease.owner,
                "etag": lease.version,
                "last_modified_time": lease.renewed_at.timestamp(),
            }
            for lease in self._leases.read(self._consumer_of(names)).leases.values()
        ]

    def claim_ownership(
        self, ownership_list: Iterable[Mapping[str, object]], **kwargs: object
    ) -> list[Ownership]:
        """Acquire, renew or (with an empty ``owner_id``) release partitions whose etag has not changed.

        One transaction per consumer group. Returns the partitions won, with new etag and time, in the given
        order; does not change the arguments.
        """
        given = list(ownership_list)
        claims: dict[ConsumerKey, list[LeaseClaim]] = {}
        for ownership in given:
            claim = _claim(ownership)
            if claim is not None:
                claims.setdefault(self._consumer_of(ownership), []).append(claim)
        won = {consumer: self._leases.claim(consumer, claims[consumer]) for consumer in claims}
        answer: list[Ownership] = []
        for ownership in given:
            lease = won.get(self._consumer_of(ownership), {}).get(str(ownership["partition_id"]))
            if lease is not None:
                updated = {"etag": lease.version, "last_modified_time": lease.renewed_at.timestamp()}
                answer.append({**ownership, **updated})
        return answer

    def list_checkpoints(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **kwargs: object
    ) -> list[dict[str, object]]:
        """Where each partition continues; one without a checkpoint is absent.

        The SDK reads only ``offset``, which may have any type that it accepts as a position. A checkpoint
        without an offset has the sequence number (an int) or the enqueued time (a datetime) in its place, or
        ``"-1"``, the start, if it was set to before the first event.
        """
        names = dict(zip(_NAMES, (fully_qualified_namespace, eventhub_name, consumer_group), strict=True))
        answer: list[dict[str, object]] = []
        for row in CheckpointReader(self._database).read(self._consumer_of(names)).values():
            position = _position_of(row)
            if position is None:
                continue
            number = row.next_sequence_number
            answer.append(
                {
                    **names,
                    "partition_id": row.partition_id,
                    "offset": position,
                    "sequence_number": None if number is None else number - 1,
                }
            )
        return answer

    def update_checkpoint(self, checkpoint: Mapping[str, object], **kwargs: object) -> None:
        """Record the event with this ``offset`` and ``sequence_number`` as the last processed one."""
        offset = checkpoint["offset"]
        move_checkpoint(
            self._database,
            self._consumer_of(checkpoint),
            ProcessorCheckpoint(
                str(checkpoint["partition_id"]),
                int(str(checkpoint["sequence_number"])),
                None if offset is None else str(offset),
            ),
            is_rewind_allowed=self._is_rewind_allowed,
        )

    def _consumer_of(self, values: Mapping[str, object]) -> ConsumerKey:
        return self._namespace.consumer_of(GroupKey(*(str(values[name]) for name in _NAMES)))


class AsyncSqlCheckpointStore(AsyncCheckpointStore):
    """As ``SqlCheckpointStore``, for ``azure.eventhub.aio``; the database runs in the store's threads.

    Cancellation: the change may or may not have taken place; the processor reads the state again.
    """

    def __init__(self, database: Database, *, is_rewind_allowed: bool = True) -> None:
        """As ``SqlCheckpointStore``'s."""
        self._store = SqlCheckpointStore(database, is_rewind_allowed=is_rewind_allowed)
        self._threads = ThreadPoolExecutor(_THREADS, "tidegate-checkpoint-store")

    async def list_ownership(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **kwargs: object
    ) -> list[Ownership]:
        """As ``SqlCheckpointStore``'s."""
        names = (fully_qualified_namespace, eventhub_name, consumer_group)
        return await self._run(lambda: self._store.list_ownership(*names))

    async def claim_ownership(
        self, ownership_list: Iterable[Mapping[str, object]], **kwargs: object
    ) -> list[Ownership]:
        """As ``SqlCheckpointStore``'s."""
        # The processor may change its dicts while a thread reads them.
        given = [dict(ownership) for ownership in ownership_list]
        return await self._run(lambda: self._store.claim_ownership(given))

    async def list_checkpoints(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **kwargs: object
    ) -> list[dict[str, object]]:
        """As ``SqlCheckpointStore``'s."""
        names = (fully_qualified_namespace, eventhub_name, consumer_group)
        return await self._run(lambda: self._store.list_checkpoints(*names))

    async def update_checkpoint(self, checkpoint: Mapping[str, object], **kwargs: object) -> None:
        """As ``SqlCheckpointStore``'s."""
        given = dict(checkpoint)
        await self._run(lambda: self._store.update_checkpoint(given))

    async def close(self) -> None:
        """End the store's threads; the database stays open. Idempotent."""
        await asyncio.to_thread(self._threads.shutdown)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _position_of(row: Checkpoint) -> str | int | datetime | None:
    number = row.next_sequence_number
    if number == 0:
        return "-1"
    if row.offset:
        return row.offset
    if number is not None:
        return number - 1 or "0"  # the SDK does not accept the int 0 as a position
    if row.enqueued_time_ms is not None:
        return time_of(row.enqueued_time_ms)
    return None


def _claim(ownership: Mapping[str, object]) -> LeaseClaim | None:
    """The claim; None: it cannot be won, because its etag is not this store's."""
    etag = str(ownership.get("etag") or "")
    if etag and not etag.isdecimal():
        return None
    version = int(etag) if etag else None
    return LeaseClaim(str(ownership["partition_id"]), str(ownership["owner_id"]), version)
