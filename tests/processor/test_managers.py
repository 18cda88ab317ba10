"""Leases, checkpoints and dead letters apart: a host on managers of different kinds, and the kit for each."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, insert, select
from tests.processor.hosts import PLAIN, QUICK, Journal, Recorder, checkpoint_all, publish, until
from tests.sql.support import events_between
from tests.sql.used_databases import UsedDatabases
from tests.support.blob_storage import OwnStorage

from tidegate.client import EventHubConsumer, EventHubProducer
from tidegate.model.errors import (
    ClosedError,
    EventHubReplacedError,
    FencedError,
    InvalidArgumentError,
    StoreUnavailableError,
)
from tidegate.model.events import EventData, ReceivedEvent
from tidegate.model.position import EventPosition
from tidegate.processor import (
    CheckpointManager,
    CloseReason,
    DeadLetterManager,
    DirectoryStore,
    EventProcessorHost,
    FailedEvent,
    FailureAction,
    FailurePolicy,
    GroupKey,
    HubDeadLetters,
    Lease,
    LeaseManager,
    MemoryStore,
    PartitionContext,
    ProcessorCheckpoint,
    TransactionContext,
)
from tidegate.processor.pump.context import OwnedPartitionContext
from tidegate.processor.stores.blob import BlobStore
from tidegate.sql import Database, DeadLetters, Pipeline, SqlStore
from tidegate.testing.checkpoints import CheckpointManagerConformance
from tidegate.testing.dead_letters import DeadLetterManagerConformance, make_failed
from tidegate.testing.groups import make_group
from tidegate.testing.hub import HubService
from tidegate.testing.leases import LeaseManagerConformance
from tidegate.transport.clock import SystemClock

pytestmark = pytest.mark.usefixtures("forked_python")

seen = Table(
    "seen",
    MetaData(),
    Column("partition_id", String(20), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
)


class Queue:
    """A dead letter manager of a user's, which can be away."""

    def __init__(self, log: list[str] | None = None) -> None:
        self.letters: list[FailedEvent] = []
        self.failures = 0
        """So many calls fail."""
        self.log = [] if log is None else log

    async def add_failed_events(self, failed: Sequence[FailedEvent]) -> None:
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise OSError("the queue is away")
        self.letters += failed
        self.log += [f"letter {each.event.sequence_number}" for each in failed]

    @property
    def numbers(self) -> list[int]:
        return [letter.event.sequence_number for letter in self.letters]


class LoggingStore(MemoryStore):
    """Notes when checkpoints move."""

    def __init__(self, log: list[str]) -> None:
        super().__init__(SystemClock())
        self.log = log

    async def update_checkpoint(self, group: GroupKey, checkpoint: ProcessorCheckpoint, **named: Any) -> None:
        await super().update_checkpoint(group, checkpoint, **named)
        self.log.append(f"checkpoint {checkpoint.sequence_number}")


def _host(service: HubService, hub: str, **arguments: Any) -> EventProcessorHost:
    given: dict[str, Any] = {"manager_options": QUICK, "options": PLAIN, **arguments}
    return EventProcessorHost(connection_string=service.hub_connection_string(hub), **given)


@pytest.fixture
def database(database_url: str, used_databases: UsedDatabases) -> Any:
    with used_databases.opened(database_url) as database:
        database.ensure_table(seen)
        yield database


def _rows(database: Database) -> list[tuple[str, int]]:
    with database.read() as connection:
        return [(row[0], row[1]) for row in connection.execute(select(seen).order_by(*seen.c))]


def _write(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
    rows = [{"partition_id": each.partition_id, "number": each.sequence_number} for each in events]
    context.connection.execute(insert(seen), rows)


@pytest.fixture
async def blobs(hub_service: HubService) -> AsyncIterator[Callable[[], BlobStore]]:
    """Stores on one container of the service's own account."""
    storage = OwnStorage(hub_service)
    container, made = storage.create_container(), list[BlobStore]()

    def make() -> BlobStore:
        made.append(BlobStore.from_connection_string(storage.connection_string(), container))
        return made[-1]

    yield make
    for store in made:
        await store.close()


# --- leases here, checkpoints there -----------------------------------------------------------------------


@pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.slow
async def test_hosts_share_leases_in_blobs_and_commit_to_a_database(
    hub_service: HubService, database: Database, blobs: Callable[[], BlobStore]
) -> None:
    """Two hosts balance four partitions, one leaves, and each event has one row."""
    hub = hub_service.create_hub(partition_count=4)
    stores = [SqlStore(database) for _ in range(2)]
    hosts = [
        _host(hub_service, hub, leases=blobs(), checkpoints=store, transactional=True) for store in stores
    ]

    def are_balanced() -> bool:
        return [len(host.statistics().partitions) for host in hosts] == [2, 2]

    async with hosts[0].running(_write):
        async with hosts[1].running(_write):
            await until(are_balanced)
            for partition in range(4):
                await publish(hub_service, hub, 20, partition_id=str(partition))
            await until(lambda: len(_rows(database)) == 80)
        for partition in range(4):
            await publish(hub_service, hub, 5, partition_id=str(partition))
        await until(lambda: len(_rows(database)) == 100)
    assert _rows(database) == [(str(part), number) for part in range(4) for number in range(25)]
    assert not (await stores[0].list_leases(hosts[0].group)).leases
    assert not await blobs().list_checkpoints(hosts[0].group)
    for store in stores:
        await store.close()


@pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.slow
async def test_a_transaction_is_fenced_although_its_leases_have_no_epochs(
    hub_service: HubService, hub: str, database: Database, blobs: Callable[[], BlobStore]
) -> None:
    """Another owner has opened the partition and committed nothing yet, so the position alone would let the
    transaction through. The lease is still the host's own, which therefore opens the partition again."""
    store = SqlStore(database)
    reported: list[Exception] = []
    options = replace(PLAIN, on_exception=lambda error, _: reported.append(error))
    await publish(hub_service, hub, 5)
    host = _host(hub_service, hub, leases=blobs(), checkpoints=store, transactional=True, options=options)
    async with host.running(_write):
        await until(lambda: len(_rows(database)) == 5)
        assert await store.create_checkpoint(host.group, _lease("late")) == 2
        await publish(hub_service, hub, 5)
        await until(lambda: len(_rows(database)) == 10)
    assert [type(error) for error in reported] == [FencedError]
    assert _rows(database) == [("0", number) for number in range(10)]
    await store.close()


@pytest.mark.parametrize("kind", ["memory", "directory"])
async def test_a_checkpoint_is_fenced_by_its_own_manager(
    hub_service: HubService, hub: str, kind: str, tmp_path: Path
) -> None:
    """The leases' epochs begin at 1 and the checkpoint's is higher: that is no reason to stop. Who opened the
    partition last moves the checkpoint, and the batch of the other comes again."""
    clock = SystemClock()
    store = MemoryStore(clock) if kind == "memory" else DirectoryStore(tmp_path)
    journal = Journal()
    await publish(hub_service, hub, 5)
    host = _host(hub_service, hub, leases=MemoryStore(clock), checkpoints=store)

    async def handle(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        await context.checkpoint()

    async def position() -> int | None:
        found = (await store.list_checkpoints(host.group)).get("0")
        return None if found is None else found.sequence_number

    async def opened_elsewhere(epoch: int) -> None:
        assert await store.create_checkpoint(host.group, replace(_lease("late"), epoch=epoch)) == epoch

    async with host.running(factory=lambda context: Recorder(journal, handle)):
        await _until(position, 4)
        await opened_elsewhere(40)
        await publish(hub_service, hub, 5)
        await _until(position, 9)
    assert journal.error_types() == ["FencedError"]
    assert journal.numbers["0"] == [*range(10), *range(5, 10)]
    whole = await store.acquire(host.group, "0", "whole", expected=None)
    assert whole is not None
    assert whole.epoch == 42  # one store for both again: its own leases count on
    await store.close()


@pytest.mark.slow
async def test_a_lost_lease_opens_no_checkpoint(hub_service: HubService, hub: str) -> None:
    """A host that was paused between lease and checkpoint gets the highest epoch, and must not use it."""
    leases, store = MemoryStore(SystemClock()), MemoryStore(SystemClock())
    journal = Journal()
    host = _host(hub_service, hub, leases=leases, checkpoints=store)
    created = store.create_checkpoint

    async def create(group: GroupKey, lease: Lease) -> int:
        known = (await leases.list_leases(group)).leases["0"]
        assert await leases.acquire(group, "0", "other", expected=known) is not None
        return await created(group, lease)

    store.create_checkpoint = create  # type: ignore[method-assign]
    await publish(hub_service, hub, 5)
    async with host.running(factory=lambda context: Recorder(journal)):
        await until(lambda: journal.of("0") == ["open", "close ownership_lost"])
        await until(lambda: not host.statistics().partitions)
    assert journal.numbers == {}


def _lease(owner: str) -> Lease:
    now = SystemClock().now_utc()
    return Lease("0", owner, 0, now, now, "1")


async def _until(look: Callable[[], Awaitable[object]], wanted: object) -> None:
    async with asyncio.timeout(60):
        while await look() != wanted:  # noqa: ASYNC110 - a store reports nothing
            await asyncio.sleep(0.02)


def test_a_host_needs_both(hub_service: HubService, hub: str) -> None:
    """What no manager is given for is the store's."""
    store, other = MemoryStore(SystemClock()), MemoryStore(SystemClock())
    for given in ({"leases": store}, {"checkpoints": store}, {}):
        with pytest.raises(InvalidArgumentError, match="No store given"):
            _host(hub_service, hub, **given)
    host = _host(hub_service, hub, store=store, leases=other)
    assert (host.leases, host.checkpoints) == (other, store)
    host = _host(hub_service, hub, store=store, checkpoints=other)
    assert (host.leases, host.checkpoints) == (store, other)


# --- dead letters, at least once --------------------------------------------------------------------------


async def test_dead_letters_are_stored_before_the_checkpoint_moves(hub_service: HubService, hub: str) -> None:
    """By the call of ``checkpoint``, and at the end of the handler's call; while the manager is away, the
    checkpoint waits and the batch comes again."""
    log: list[str] = []
    queue, store = Queue(log), LoggingStore(log)
    queue.failures = 2

    async def handle(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        for event in events:
            if event.sequence_number % 3 == 0:
                try:
                    raise ValueError(f"bad {event.body.decode()}")
                except ValueError as error:
                    context.dead_letter(event, error)
        if events[-1].sequence_number < 8:
            await context.checkpoint()

    await publish(hub_service, hub, 8)
    host = _host(hub_service, hub, store=store, dead_letters=queue)
    async with host.running(handle):
        await until(lambda: log[-1:] == ["checkpoint 7"])
        await publish(hub_service, hub, 2)
        await until(lambda: queue.numbers[-1:] == [9])
        await until(lambda: host.statistics().dead_letters_total == 4)
    assert log == ["letter 0", "letter 3", "letter 6", "checkpoint 7", "letter 9"]
    letter = queue.letters[1]
    assert (letter.error_type, letter.reason, letter.event.body) == ("ValueError", "bad 3", b"3")
    assert letter.failed_at.tzinfo is not None
    assert len({each.id for each in queue.letters}) == 4


async def test_what_cannot_be_kept_is_refused(hub_service: HubService, hub: str) -> None:
    """A dead letter that the checkpoint has passed could be lost; without a manager, or later, every one."""
    refusals: list[tuple[str, str]] = []
    queue, store = Queue(), MemoryStore(SystemClock())
    journal = Journal()

    async def handle(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        context.dead_letter(events[0], "first")
        if len(journal.of("0")) < 3:
            context.dead_letter(events[1], "away")
            raise OSError("away")  # the event comes again, and is no dead letter now
        await context.checkpoint(events[1])
        for event in (events[1], replace_number(events[0], 77)):
            try:
                context.dead_letter(event, "late")
            except InvalidArgumentError as error:
                refusals.append((error.message, str(error.next_step)))
        context.dead_letter(events[2], "")

    await publish(hub_service, hub, 3)
    host = _host(hub_service, hub, store=store, dead_letters=queue)
    async with host.running(factory=lambda context: Recorder(journal, handle)):
        await until(lambda: len(queue.letters) == 2)
    assert [(each.event.sequence_number, each.reason) for each in queue.letters] == [
        (0, "first"),
        (2, "RejectedByHandler"),
    ]
    assert "has passed event 1" in refusals[0][0]
    assert "before the call of checkpoint" in refusals[0][1]
    assert "77 of partition 0 was not passed" in refusals[1][0]
    with pytest.raises(ClosedError):
        journal.contexts[-1].dead_letter(queue.letters[0].event, "later")

    async def report(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        context.dead_letter(events[0], "kept by nobody")

    journal = Journal()
    async with _host(hub_service, hub, store=store).running(
        factory=lambda context: Recorder(journal, report)
    ):
        await until(lambda: bool(journal.errors))
    assert "dead_letters=" in str(journal.errors[0])


def replace_number(event: ReceivedEvent, number: int) -> ReceivedEvent:
    """The event under another number."""
    return ReceivedEvent(
        event.partition_id, number, event.offset, event.enqueued_time_ms, body=b"", contents=event.contents
    )


async def test_a_sql_store_keeps_the_dead_letters_of_a_plain_host(
    hub_service: HubService, hub: str, sqlite_url: str
) -> None:
    """In the table that ``tidegate dlq`` reads, without a manager of their own."""
    with Database.open(sqlite_url) as database:
        store = SqlStore(database)

        async def handle(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
            for event in events:
                context.dead_letter(event, LookupError("nowhere"))
            await context.checkpoint()

        await publish(hub_service, hub, 2)
        async with _host(hub_service, hub, store=store).running(handle):
            await until(lambda: DeadLetters(database).count() == 2)
        letters = DeadLetters(database).list()
        assert [(each.sequence_number, each.error_type, each.reason) for each in letters] == [
            (0, "LookupError", "nowhere"),
            (1, "LookupError", "nowhere"),
        ]
        await store.close()


# --- dead letters of transactions, elsewhere --------------------------------------------------------------


def _refuse_odd(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
    for event in events:
        if event.sequence_number == 4:
            context.dead_letter(event, "four")
        elif event.sequence_number % 2:
            raise ValueError("odd")
        else:
            _write(context, [event])


@pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.slow
async def test_a_transaction_commits_after_its_dead_letters_are_stored(
    hub_service: HubService, hub: str, database: Database
) -> None:
    """Failed and reported events go to the manager. While that is away, nothing is committed."""
    store, queue = SqlStore(database), Queue()
    queue.failures = 3
    reported: list[Exception] = []
    rows_at_failure: list[int] = []

    def report(error: Exception, partition_id: str | None) -> None:
        reported.append(error)
        rows_at_failure.append(len(_rows(database)))

    await publish(hub_service, hub, 7)
    options = replace(PLAIN, on_exception=report)
    host = _host(hub_service, hub, store=store, dead_letters=queue, transactional=True, options=options)
    async with host.running(_refuse_odd):
        await until(lambda: len(_rows(database)) == 3)
        await until(lambda: host.statistics().dead_letters_total == 4)
    assert queue.numbers == [1, 3, 4, 5]
    assert [each.reason for each in queue.letters] == ["odd", "odd", "four", "odd"]
    assert isinstance(queue.letters[0].error, ValueError)
    assert [type(error) for error in reported] == [StoreUnavailableError] * 3
    assert rows_at_failure == [0, 0, 0]
    assert DeadLetters(database).count() == 0
    await store.close()


async def test_a_pipelines_dead_letters_go_there_as_well(
    hub_service: HubService, hub: str, sqlite_url: str
) -> None:
    """Its rows are otherwise committed by another path, without a call in the transaction."""

    def read(event: ReceivedEvent) -> dict[str, object]:
        return {"partition_id": event.partition_id, "number": 6 // event.sequence_number}

    with Database.open(sqlite_url) as database:
        database.ensure_table(seen)
        store, queue = SqlStore(database), Queue()
        pipeline = Pipeline("sixths", event_hub=hub, table=seen, handler=read)
        await publish(hub_service, hub, 4)
        host = _host(hub_service, hub, store=store, dead_letters=queue, transactional=True)
        async with host.running(pipeline):
            await until(lambda: _rows(database) == [("0", 2), ("0", 3), ("0", 6)])
        assert [(each.event.sequence_number, each.error_type) for each in queue.letters] == [
            (0, "ZeroDivisionError")
        ]
        assert DeadLetters(database).count() == 0
        await store.close()


@pytest.mark.slow
async def test_parking_needs_the_databases_own_dead_letters(
    hub_service: HubService, hub: str, sqlite_url: str
) -> None:
    """Earlier events of a key are looked for there; the host ends with an error that says it."""
    with Database.open(sqlite_url) as database:
        store = SqlStore(database)
        options = replace(PLAIN, failure_policy=FailurePolicy(FailureAction.PARK_KEY))
        host = _host(hub_service, hub, store=store, dead_letters=Queue(), transactional=True, options=options)
        with pytest.raises(InvalidArgumentError, match="PARK_KEY"):
            async with host.running(_refuse_odd), asyncio.timeout(60):
                await host.wait()
        # The database's own table is no other place.
        host = _host(
            hub_service,
            hub,
            store=store,
            dead_letters=SqlStore(database),
            transactional=True,
            options=options,
        )
        database.ensure_table(seen)
        await publish(hub_service, hub, 2)
        async with host.running(_refuse_odd):
            await until(lambda: DeadLetters(database).count() == 1)
        await store.close()


_PROGRAM = """
import asyncio, os, signal, sys
from tidegate import EventHubProducer
from tidegate.processor import EventProcessorHost, HubDeadLetters
from tidegate.sql import Database, SqlStore
from tests.processor.test_managers import _refuse_odd

source, sink, url = sys.argv[1:]

class Killed(HubDeadLetters):
    async def add_failed_events(self, failed):
        await super().add_failed_events(failed)
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    with Database.open(url) as database:
        letters = Killed(EventHubProducer.from_connection_string(sink))
        store = SqlStore(database)
        host = EventProcessorHost(
            connection_string=source, store=store, dead_letters=letters, transactional=True
        )
        async with host.running(_refuse_odd):
            await host.wait()

asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_dead_letter_outlives_a_kill_between_manager_and_commit(
    hub_service: HubService, hub: str, sqlite_url: str
) -> None:
    """A process is killed when a hub has the dead letters, and the next one goes on: a reader that drops
    known ids has each once, and each row is there once."""
    sink = hub_service.create_hub(partition_count=2)
    await publish(hub_service, hub, 7)
    texts = [hub_service.hub_connection_string(each) for each in (hub, sink)]
    with Database.open(sqlite_url) as database:
        database.ensure_table(seen)
        command = [sys.executable, "-c", _PROGRAM, *texts, sqlite_url]
        killed = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=120)
        assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
        assert _rows(database) == []
        assert len(await _read(hub_service, sink, 4)) == 4
        letters, store = HubDeadLetters(EventHubProducer.from_connection_string(texts[1])), SqlStore(database)
        leases = MemoryStore(SystemClock())  # those in the database have to expire first
        host = _host(hub_service, hub, store=store, leases=leases, dead_letters=letters, transactional=True)
        async with host.running(_refuse_odd):
            await until(lambda: len(_rows(database)) == 3)
        assert _rows(database) == [("0", 0), ("0", 2), ("0", 6)]
        await letters.close()
        await store.close()
    found = await _read(hub_service, sink, 8)
    first = {event.contents.message_id: event for event in found}
    assert len(first) == 4
    assert sorted(str(event.properties["DeadLetterSequenceNumber"]) for event in first.values()) == list(
        "1345"
    )
    (four,) = (event for event in first.values() if event.properties["DeadLetterSequenceNumber"] == 4)
    assert four.body == b"4"
    assert four.properties["DeadLetterReason"] == "RejectedByHandler"
    assert four.properties["DeadLetterErrorDescription"] == "four"
    assert four.properties["DeadLetterSource"] == f"{hub}/$default/0"


async def _read(service: HubService, hub: str, count: int) -> list[ReceivedEvent]:
    """So many events of a hub, from its beginning."""
    events: list[ReceivedEvent] = []
    text = service.hub_connection_string(hub)
    async with EventHubConsumer.from_connection_string(text) as consumer, asyncio.timeout(60):
        for partition_id in (await consumer.get_event_hub_properties()).partition_ids:
            receiver = await consumer.open_receiver(partition_id, EventPosition.earliest())
            ends = await consumer.get_partition_properties(partition_id)
            missing = ends.next_sequence_number
            while missing:
                found = await receiver.receive(missing, 1.0)
                events += found
                missing -= len(found)
            receiver.close_nowait()
    assert len(events) == count
    return events


class _Producer:
    """Of one hub, which refuses the event of number 0; ``flush`` raises what failed since the last one."""

    def __init__(self) -> None:
        self.failed: list[object] = []
        self.sent: list[object] = []

    async def enqueue(self, event: EventData, *, partition_key: str | None) -> None:
        await asyncio.sleep(0)
        number = event.properties["DeadLetterSequenceNumber"]
        (self.sent if number else self.failed).append(number)

    async def flush(self) -> None:
        await asyncio.sleep(0)
        if self.failed:
            self.failed.clear()
            raise OSError("refused")


async def test_partitions_that_share_a_producer_get_their_own_failures() -> None:
    """Else the checkpoint of the one whose dead letter was refused would move."""
    manager, group = HubDeadLetters(cast(EventHubProducer, _Producer())), make_group()
    calls = [manager.add_failed_events([make_failed(group, number)]) for number in (1, 0, 2)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in answers] == [type(None), OSError, type(None)]


# --- the kit ----------------------------------------------------------------------------------------------


class TestMemoryCheckpoints(CheckpointManagerConformance):
    """Without leases of its own, in memory."""

    @pytest.fixture(autouse=True)
    def _one_place(self) -> None:
        self.store = MemoryStore(SystemClock())

    async def make_store(self) -> CheckpointManager:
        """The same object each time."""
        return self.store


class TestDirectoryCheckpoints(CheckpointManagerConformance):
    """Without leases of its own, in files."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "store"

    async def make_store(self) -> CheckpointManager:
        """A store of its own on the test's directory."""
        return DirectoryStore(self.path)


class TestSqlCheckpoints(CheckpointManagerConformance):
    """Without leases of its own, on each database."""

    has_namespaces = False

    @pytest.fixture(autouse=True)
    def _place(self, database: Database) -> None:
        self.database = database

    async def make_store(self) -> CheckpointManager:
        """A store object of its own on the test's database."""
        return SqlStore(self.database)


class _OwnCheckpoints:
    """Three methods and nothing else, as somebody writes them who knows only the Protocol."""

    def __init__(self) -> None:
        self.rows: dict[tuple[GroupKey, str], tuple[int, ProcessorCheckpoint | None]] = {}
        """The highest epoch and the checkpoint of each partition."""

    async def create_checkpoint(self, group: GroupKey, lease: Lease) -> int:
        known, checkpoint = self.rows.get((group, lease.partition_id), (0, None))
        epoch = max(lease.epoch, known + 1)
        self.rows[group, lease.partition_id] = (epoch, checkpoint)
        return epoch

    async def list_checkpoints(self, group: GroupKey) -> Mapping[str, ProcessorCheckpoint]:
        return {
            partition_id: checkpoint
            for (owner, partition_id), (_, checkpoint) in self.rows.items()
            if owner == group and checkpoint is not None
        }

    async def update_checkpoint(
        self,
        group: GroupKey,
        checkpoint: ProcessorCheckpoint,
        *,
        lease: Lease | None,
        is_rewind_allowed: bool = False,
    ) -> None:
        epoch, current = self.rows.get((group, checkpoint.partition_id), (0, None))
        if lease is not None and lease.epoch < epoch:
            raise FencedError(f"Partition {checkpoint.partition_id} has a later owner than {lease.owner}.")
        epoch = epoch if lease is None else lease.epoch
        if current is not None and not is_rewind_allowed:
            if current.event_hub_created_at_ms != checkpoint.event_hub_created_at_ms:
                raise EventHubReplacedError("The hub was created again.")
            checkpoint = current if checkpoint.is_behind(current) else checkpoint
        self.rows[group, checkpoint.partition_id] = (epoch, checkpoint)


class TestOwnCheckpoints(CheckpointManagerConformance):
    """A user's own, with three methods."""

    @pytest.fixture(autouse=True)
    def _one_place(self) -> None:
        self.store = _OwnCheckpoints()

    async def make_store(self) -> CheckpointManager:
        """The same object each time."""
        return self.store


async def test_a_host_runs_on_a_users_own_manager(hub_service: HubService, hub: str) -> None:
    """It goes on where another stopped."""
    own, journal = _OwnCheckpoints(), Journal()
    for round_ in (1, 2):
        await publish(hub_service, hub, 5)
        host = _host(hub_service, hub, leases=MemoryStore(SystemClock()), checkpoints=own)
        async with host.running(factory=lambda context: Recorder(journal, checkpoint_all)):
            await until(lambda: journal.count == 5 * round_)  # noqa: B023
    assert journal.numbers["0"] == list(range(10))


class TestHubDeadLetters(DeadLetterManagerConformance):
    """On a hub of the service."""

    @pytest.fixture(autouse=True)
    async def _place(self, hub_service: HubService) -> AsyncIterator[None]:
        self.service, self.hub = hub_service, hub_service.create_hub(partition_count=2)
        self.ids: dict[str, list[str]] = {}
        self.made: list[HubDeadLetters] = []
        yield
        for manager in self.made:
            await manager.close()

    async def make_manager(self) -> DeadLetterManager:
        """With a producer of its own."""
        text = self.service.hub_connection_string(self.hub)
        self.made.append(HubDeadLetters(EventHubProducer.from_connection_string(text)))
        return self.made[-1]

    async def stored_ids(self, group: GroupKey) -> Sequence[str]:
        """The message ids of the events whose source is the group."""
        async with EventHubConsumer.from_connection_string(
            self.service.hub_connection_string(self.hub)
        ) as consumer:
            ends = [await consumer.get_partition_properties(each) for each in ("0", "1")]
        events = await _read(self.service, self.hub, sum(each.next_sequence_number for each in ends))
        return [
            str(event.contents.message_id)
            for event in events
            if str(event.properties["DeadLetterSource"]).startswith(f"{group}/")
        ]


class TestQueue(DeadLetterManagerConformance):
    """A list in memory, as the simplest manager."""

    kind: type[Queue] = Queue

    @pytest.fixture(autouse=True)
    def _one_place(self) -> None:
        self.queue = self.kind()

    async def make_manager(self) -> DeadLetterManager:
        """The same object each time."""
        return self.queue

    async def stored_ids(self, group: GroupKey) -> Sequence[str]:
        """Those of the group."""
        return [each.id for each in self.queue.letters if each.group == group]


class _Unfenced(MemoryStore):
    async def update_checkpoint(self, group: GroupKey, checkpoint: Any, **named: Any) -> None:
        await super().update_checkpoint(group, checkpoint, **{**named, "lease": None})


class _Rewound(MemoryStore):
    async def update_checkpoint(self, group: GroupKey, checkpoint: Any, **named: Any) -> None:
        await super().update_checkpoint(group, checkpoint, **{**named, "is_rewind_allowed": True})


class _LeasesEpoch(MemoryStore):
    async def create_checkpoint(self, group: GroupKey, lease: Lease) -> int:
        await super().create_checkpoint(group, lease)
        return lease.epoch


class _ReadThenWritten(MemoryStore):
    async def create_checkpoint(self, group: GroupKey, lease: Lease) -> int:
        epoch = max(lease.epoch, self._group(group).checkpoint_epochs.get(lease.partition_id, 0) + 1)
        await asyncio.sleep(0)
        self._group(group).checkpoint_epochs[lease.partition_id] = epoch
        return epoch


class _Begun(MemoryStore):
    async def create_checkpoint(self, group: GroupKey, lease: Lease) -> int:
        await self.update_checkpoint(group, ProcessorCheckpoint(lease.partition_id, -1), lease=None)
        return await super().create_checkpoint(group, lease)


class _Confused(MemoryStore):
    async def list_checkpoints(self, group: GroupKey) -> Mapping[str, ProcessorCheckpoint]:
        return {name: each for found in self._groups.values() for name, each in found.checkpoints.items()}


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (_Unfenced, "test_an_old_owner_is_fenced"),
        (_Unfenced, "test_one_epoch_has_one_owner"),
        (_Rewound, "test_a_checkpoint_moves_forward_only"),
        (_Rewound, "test_the_furthest_of_many_checkpoints_stays"),
        (_LeasesEpoch, "test_one_epoch_has_one_owner"),
        (_LeasesEpoch, "test_an_old_owner_is_fenced"),
        (_ReadThenWritten, "test_one_epoch_has_one_owner"),
        (_Begun, "test_one_epoch_has_one_owner"),
        (_Confused, "test_checkpoints_of_groups_do_not_meet"),
    ],
)
async def test_a_broken_checkpoint_manager_fails(broken: type[MemoryStore], test: str) -> None:
    """Each defect that would repeat, skip or mix events is found by its test."""
    suite = TestMemoryCheckpoints()
    suite.store = broken(SystemClock())
    with pytest.raises((AssertionError, FencedError)):
        await getattr(suite, test)()


class _Given(MemoryStore):
    async def acquire(self, group: GroupKey, partition_id: str, owner: str, **named: Any) -> Lease | None:
        known = (await self.list_leases(group)).leases.get(partition_id)
        return await super().acquire(group, partition_id, owner, expected=known)


class _Kept(MemoryStore):
    async def renew(self, group: GroupKey, leases: Sequence[Lease]) -> Mapping[str, Lease]:
        return {each.partition_id: each for each in leases}


class _NotReleased(MemoryStore):
    async def release(self, group: GroupKey, leases: Sequence[Lease]) -> None:
        pass


class _SameEpoch(MemoryStore):
    async def acquire(self, group: GroupKey, partition_id: str, owner: str, **named: Any) -> Lease | None:
        lease = await super().acquire(group, partition_id, owner, **named)
        if lease is not None:
            lease = self._group(group).leases[partition_id] = replace(lease, epoch=1)
        return lease


class MemoryLeases(LeaseManagerConformance):
    """Of one store; not collected."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store

    async def make_store(self) -> LeaseManager:
        """The same object each time."""
        return self.store


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (_Given, "test_a_lease_that_is_there_is_not_new"),
        (_Given, "test_one_of_many_gets_a_new_partition"),
        (_Kept, "test_a_stolen_lease_is_lost"),
        (_NotReleased, "test_a_released_lease_is_free_at_once"),
        (_SameEpoch, "test_an_owner_may_acquire_its_own_lease_anew"),
    ],
)
async def test_a_broken_lease_manager_fails(broken: type[MemoryStore], test: str) -> None:
    """Each defect that would give a partition to two hosts, or to none, is found by its test."""
    await getattr(MemoryLeases(MemoryStore(SystemClock())), test)()
    with pytest.raises(AssertionError):
        await getattr(MemoryLeases(broken(SystemClock())), test)()


class _Later(Queue):
    async def add_failed_events(self, failed: Sequence[FailedEvent]) -> None:
        last, self.last = getattr(self, "last", ()), failed
        await super().add_failed_events(last)


class _Once(Queue):
    async def add_failed_events(self, failed: Sequence[FailedEvent]) -> None:
        assert not {each.id for each in failed} & {each.id for each in self.letters}
        await super().add_failed_events(failed)


class _Decoding(Queue):
    async def add_failed_events(self, failed: Sequence[FailedEvent]) -> None:
        await super().add_failed_events([each for each in failed if each.contents.partition_key])


class _Paged(Queue):
    async def add_failed_events(self, failed: Sequence[FailedEvent]) -> None:
        await super().add_failed_events(failed[:1000])


class _ByNumber(Queue):
    async def add_failed_events(self, failed: Sequence[FailedEvent]) -> None:
        known = set(self.numbers)
        await super().add_failed_events([each for each in failed if each.event.sequence_number not in known])


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (_Later, "test_failed_events_are_stored_when_the_call_returns"),
        (_Once, "test_an_event_may_be_added_again"),
        (_Decoding, "test_no_event_is_too_odd"),
        (_Paged, "test_no_event_is_too_odd"),
        (_ByNumber, "test_groups_do_not_meet"),
    ],
)
async def test_a_broken_dead_letter_manager_fails(broken: type[Queue], test: str) -> None:
    """Each defect that would lose dead letters, or stop a partition for good, is found by its test."""
    suite = TestQueue()
    suite.queue = broken()
    with pytest.raises(AssertionError):
        await getattr(suite, test)()


async def test_a_late_call_of_a_lost_partition_stores_nothing() -> None:
    """Its events come to the next owner, which may process them: a dead letter would be one too many."""
    group, stored = make_group(), list[FailedEvent]()

    async def store(failed: Sequence[FailedEvent]) -> None:
        stored.extend(failed)

    now = datetime(2026, 1, 1, tzinfo=UTC)
    context = OwnedPartitionContext(
        group=group,
        event_hub=group.event_hub,
        consumer_group=group.consumer_group,
        lease=Lease("0", "host", 1, now, now, "1"),
        checkpoints=MemoryStore(SystemClock()),
        event_hub_created_at_ms=1,
        is_transactional=False,
        add_dead_letters=store,
        clock=SystemClock(),
    )
    (event,) = events_between(0, 1)
    context.begin_call(event)
    context.dead_letter(event, "bad")
    context.end(CloseReason.OWNERSHIP_LOST)
    with pytest.raises(FencedError):
        await context.store_dead_letters()
    assert stored == []
