"""The SQL store of Event Processor Hosts: leases, checkpoints, and transactions with both.

Pipelines and Spark move the same checkpoints, so a consumer group can switch between them. The database runs
in the store's own threads; leases have separate ones, so that a renewal never waits for this process's
batches. ``leases`` describes what it may still wait for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from tidegate.client import Namespace
from tidegate.model.errors import ClosedError, InvalidArgumentError, StoreUnavailableError
from tidegate.processor.checkpoint import ProcessorCheckpoint
from tidegate.processor.dead_letters import DeadLetterManager, FailedEvent, store_failed
from tidegate.processor.handlers import PartitionContext
from tidegate.processor.lease import GroupKey, Lease, LeaseSnapshot
from tidegate.processor.policies import FailurePolicy
from tidegate.sql.commit.transactions import SqlTransactions, StoreFailed
from tidegate.sql.core.database import Database
from tidegate.sql.core.values import ConsumerKey, NewDeadLetter, place_of
from tidegate.sql.dead_letters.dead_letters import DeadLetters
from tidegate.sql.dead_letters.own_table import DeadLetterTable
from tidegate.sql.handlers.forms import HandlerForm, form_of
from tidegate.sql.outbox.relay import OutboxRelay
from tidegate.sql.outbox.writer import OUTBOX_BYTES_MAX, Outbox
from tidegate.sql.stores.checkpoint_moves import claim_checkpoint, move_checkpoint
from tidegate.sql.stores.checkpoints import CheckpointReader, processor_checkpoints
from tidegate.sql.stores.group_views import read_group_views
from tidegate.sql.stores.leases import LeaseTable

T = TypeVar("T")

_STORE_FAILED_S: Final = 30.0
"""How long a transaction waits, with its locks, for dead letters that are stored elsewhere (our choice:
``close_timeout_s``)."""
_READ_THREADS: Final = 2
"""Readers never wait for writers, so they have separate threads (our choice)."""
_LEASE_THREADS: Final = 2
"""Hosts of one process rarely change leases simultaneously (our choice)."""
_CHECKPOINT_THREADS: Final = 4
"""Checkpoints of different partitions do not wait for each other on PostgreSQL (our choice)."""


class SqlStore:
    """Leases and checkpoints in ``tidegate_lease`` and ``tidegate_checkpoint``; a ``TransactionalStore``.

    Any number of hosts in one process may share it; hosts of one consumer group must use the same database. A
    database does not store namespaces, so a store serves one and refuses a second. (Hubs of the same name in
    two namespaces have different creation times, and are refused as replaced.)
    """

    def __init__(
        self, database: Database, *, has_epochs: bool = True, outbox_bytes_max: int = OUTBOX_BYTES_MAX
    ) -> None:
        """database: closed by the caller.

        has_epochs: False if official processors share the group through ``azure_checkpoint_store``: receivers
        are then opened with owner level 0, like theirs. Leases still have rising epochs, which fence commits
        and checkpoints. outbox_bytes_max: how much a partition's handler may publish that is not in its hubs
        yet; beyond, the partition pauses.
        """
        if not isinstance(database, Database):
            raise InvalidArgumentError(
                f"A SqlStore needs a Database, not {type(database).__name__}.",
                next_step="Write SqlStore(Database.open(URL)).",
            )
        self.database: Database = database
        """The database that holds everything."""
        self.has_epochs: bool = has_epochs
        """Whether receivers are opened with the lease's epoch as their owner level."""
        self._outbox = Outbox(database, outbox_bytes_max)
        self._leases = LeaseTable(database)
        self._checkpoints = CheckpointReader(database)
        self._read_threads = ThreadPoolExecutor(_READ_THREADS, "tidegate-reads")
        self._lease_threads = ThreadPoolExecutor(_LEASE_THREADS, "tidegate-leases")
        self._checkpoint_threads = ThreadPoolExecutor(_CHECKPOINT_THREADS, "tidegate-checkpoints")
        self._namespace = OneNamespace()
        self._is_closed = False

    async def list_leases(self, group: GroupKey) -> LeaseSnapshot:
        """As in ``LeaseManager``; does not wait for writers."""
        consumer = self._consumer(group)
        return await self._run(self._read_threads, lambda: self._leases.read(consumer))

    async def acquire(
        self, group: GroupKey, partition_id: str, owner: str, *, expected: Lease | None
    ) -> Lease | None:
        """As in ``LeaseManager``. The epoch also exceeds the checkpoint's, whichever owner moved that."""
        if not owner:
            raise InvalidArgumentError("A lease needs the name of its owner.")
        consumer = self._consumer(group)
        return await self._run(
            self._lease_threads,
            lambda: self._leases.acquire(consumer, partition_id, owner, expected=expected),
        )

    async def request(self, group: GroupKey, lease: Lease, requester: str) -> None:
        """As in ``LeaseManager``."""
        consumer = self._consumer(group)
        await self._run(self._lease_threads, lambda: self._leases.request(consumer, lease, requester))

    async def renew(self, group: GroupKey, leases: Sequence[Lease]) -> Mapping[str, Lease]:
        """As in ``LeaseManager``, with one statement for all."""
        consumer = self._consumer(group)
        return await self._run(self._lease_threads, lambda: self._leases.renew(consumer, leases))

    async def release(self, group: GroupKey, leases: Sequence[Lease]) -> None:
        """As in ``LeaseManager``, with one statement for all."""
        consumer = self._consumer(group)
        await self._run(self._lease_threads, lambda: self._leases.release(consumer, leases))

    async def create_checkpoint(self, group: GroupKey, lease: Lease) -> int:
        """As in ``CheckpointManager``."""
        consumer = self._consumer(group)
        return await self._run(
            self._checkpoint_threads, lambda: claim_checkpoint(self.database, consumer, lease)
        )

    async def list_checkpoints(self, group: GroupKey) -> Mapping[str, ProcessorCheckpoint]:
        """As in ``CheckpointManager``; does not wait for writers."""
        consumer = self._consumer(group)
        rows = await self._run(self._read_threads, lambda: self._checkpoints.read(consumer))
        return processor_checkpoints(rows.values())

    async def update_checkpoint(
        self,
        group: GroupKey,
        checkpoint: ProcessorCheckpoint,
        *,
        lease: Lease | None,
        is_rewind_allowed: bool = False,
    ) -> None:
        """As in ``CheckpointManager``.

        Also raises EventHubReplacedError if the checkpoint belongs to another hub of this name, unless a
        rewind is allowed; and InvalidArgumentError for one without a sequence number if one is stored.
        """
        consumer = self._consumer(group)
        await self._run(
            self._checkpoint_threads,
            lambda: move_checkpoint(
                self.database,
                consumer,
                checkpoint,
                owner=None if lease is None else lease.owner,
                lease_epoch=None if lease is None else lease.epoch,
                is_rewind_allowed=is_rewind_allowed,
            ),
        )

    def form_of(self, group: GroupKey, handler: object) -> HandlerForm:
        """As in ``TransactionalStore``; also accepts a ``Pipeline`` or ``TransactionalPipeline``."""
        # The group may be asked about before the hub has reported its namespace's id.
        return form_of(handler, ConsumerKey(group.event_hub, group.consumer_group))

    def open_transactions(
        self,
        group: GroupKey,
        lease: Lease,
        form: object,
        context: PartitionContext,
        *,
        policy: FailurePolicy,
        event_hub_created_at_ms: int | None,
        max_batch_size: int | None = None,
        dead_letters: DeadLetterManager | None = None,
    ) -> SqlTransactions:
        """As in ``TransactionalStore``; dead letters that are of this database join the transaction."""
        assert isinstance(form, HandlerForm)
        return SqlTransactions(
            self.database,
            self._consumer(group),
            lease,
            form,
            context,
            policy=policy,
            event_hub_created_at_ms=event_hub_created_at_ms,
            store_failed=self._storing(dead_letters),
            outbox=self._outbox,
            max_batch_size=max_batch_size,
        )

    def open_relay(
        self,
        group: GroupKey,
        namespace: Namespace,
        owned: Callable[[], Collection[str]],
        report: Callable[[Exception, str | None], None],
    ) -> OutboxRelay:
        """As in ``PublishingStore``."""
        return OutboxRelay(self._outbox, self._consumer(group), namespace, owned, report)

    def _storing(self, manager: DeadLetterManager | None) -> StoreFailed | None:
        """How transactions store dead letters; None: in this database's own table."""
        if isinstance(manager, (DeadLetterTable, SqlStore)) and manager.database.url == self.database.url:
            return manager.insert if isinstance(manager, DeadLetterTable) else None
        if manager is None:
            return None
        loop = asyncio.get_running_loop()
        return lambda _, failed: _store_within(_STORE_FAILED_S, manager, failed, loop)

    async def add_failed_events(self, failed: Sequence[FailedEvent]) -> None:
        """As in ``DeadLetterManager``, into ``tidegate_dead_letter``: a known one gets one more attempt."""
        if failed:
            consumer, partition_id = self._consumer(failed[0].group), failed[0].event.partition_id
            letters = [
                NewDeadLetter.at_place(
                    each.event.sequence_number, place_of(each.event), each.error, error_type=each.error_type
                )
                for each in failed
            ]
            add = DeadLetters(self.database).add
            await self._run(self._checkpoint_threads, lambda: add(consumer, partition_id, letters))

    async def groups_of(self, event_hub: str) -> list[GroupKey]:
        """The groups of a hub of this name that have a lease or a checkpoint here; a database stores no
        namespace, so they have any."""
        views = await self._run(self._read_threads, lambda: read_group_views(self.database))
        return [
            GroupKey("localhost", each.event_hub, each.consumer_group)
            for each in views
            if each.event_hub == event_hub.lower()
        ]

    async def close(self) -> None:
        """End the store's threads after their current work; the database stays open. Idempotent."""
        self._is_closed = True
        for threads in (self._read_threads, self._lease_threads, self._checkpoint_threads):
            await asyncio.to_thread(threads.shutdown)

    def __repr__(self) -> str:
        return f"<SqlStore {self.database.url}>"

    async def _run(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        if self._is_closed:
            raise ClosedError(f"The store {self.database.url} is closed.")
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    def _consumer(self, group: GroupKey) -> ConsumerKey:
        return self._namespace.consumer_of(group)


def _store_within(
    timeout_s: float,
    manager: DeadLetterManager,
    failed: Sequence[FailedEvent],
    loop: asyncio.AbstractEventLoop,
) -> None:
    """Store failed events elsewhere, from a transaction's thread. Raises StoreUnavailableError."""
    storing = asyncio.run_coroutine_threadsafe(store_failed(manager, failed), loop)
    try:
        storing.result(timeout_s)
    except TimeoutError as error:
        storing.cancel()
        raise StoreUnavailableError(
            f"The dead letters of partition {failed[0].event.partition_id} of {failed[0].group} were not "
            f"stored within {timeout_s:g} s: {type(manager).__name__} does not return.",
            next_step="The transaction is rolled back, and the batch comes again: check what the manager "
            "waits for, and give it a time-out.",
        ) from error


class OneNamespace:
    """The one namespace whose hubs a store serves: the first one used. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._name: str | None = None

    def consumer_of(self, group: GroupKey) -> ConsumerKey:
        """The database's key for ``group``. Raises InvalidArgumentError for a second namespace."""
        with self._lock:
            if self._name is None:
                self._name = group.namespace
            if self._name != group.namespace:
                raise InvalidArgumentError(
                    f"This store keeps the leases and checkpoints of the namespace {self._name}, and was "
                    f"asked for {group} of {group.namespace}: hubs of the same name would be "
                    "confused.",
                    next_step="Use a database for each namespace, and one name for each service.",
                )
        return ConsumerKey(group.event_hub, group.consumer_group)
