"""The SQL database as a store of hosts: the conformance suite, and what only a database can get wrong."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text
from tests.needs import PRODUCT
from tests.sql.lease_race import win
from tests.sql.support import CONSUMER
from tests.support.forked import Forked
from tests.support.sqlserver import SQL_SERVERS

from tidegate.model.errors import (
    ClosedError,
    DatabaseUnavailableError,
    EventHubReplacedError,
    FencedError,
    InvalidArgumentError,
    NotFoundError,
)
from tidegate.processor.checkpoint import ProcessorCheckpoint
from tidegate.processor.lease import GroupKey, Lease
from tidegate.processor.store import ProcessorStore, TransactionalStore
from tidegate.sql import (
    CheckpointReader,
    ConsumerKey,
    Database,
    SqlStore,
    UnitOfWork,
    move_checkpoint,
    read_group_view,
    read_group_views,
)
from tidegate.sql.core import schema
from tidegate.sql.stores.leases import LeaseTable
from tidegate.testing.stores import ProcessorStoreConformance

ROOT = Path(__file__).parents[2]
GROUP = GroupKey("localhost", CONSUMER.event_hub, CONSUMER.consumer_group)
WAIT_S = 60.0
"""Longest wait for something that must happen; reached only when a test fails."""


class TestSqlStore(ProcessorStoreConformance):
    """All that a host relies on, on each database."""

    has_namespaces = False
    has_epochs = True

    @pytest.fixture(autouse=True)
    def _place(self, database: Database) -> None:
        self.database = database

    async def make_store(self) -> ProcessorStore:
        """A store object of its own on the test's database."""
        return SqlStore(self.database, has_epochs=self.has_epochs)


@pytest.mark.parametrize(
    "database_url",
    [
        *("sqlite", *SQL_SERVERS),
        *(pytest.param(each, marks=PRODUCT) for each in ("postgresql", "mariadb")),
    ],
    indirect=True,
)
class TestSqlStoreSharedWithOfficialProcessors(TestSqlStore):
    """The same where receivers have owner level 0: leases have epochs that fence nevertheless."""

    has_epochs = False
    has_lease_epochs = True


def test_it_is_a_store_for_transactions(database: Database) -> None:
    """A host asks the type whether it can work in transactions."""
    store: TransactionalStore = SqlStore(database)
    assert isinstance(store, TransactionalStore)


@pytest.fixture
async def store(database: Database) -> AsyncIterator[SqlStore]:
    """A store on each database."""
    store = SqlStore(database)
    yield store
    await store.close()


async def have(store: SqlStore, owner: str = "host-a", expected: Lease | None = None) -> Lease:
    """The lease of partition 0, which must be had."""
    lease = await store.acquire(GROUP, "0", owner, expected=expected)
    assert lease is not None
    return lease


async def position(store: SqlStore) -> ProcessorCheckpoint | None:
    """The checkpoint of partition 0."""
    return (await store.list_checkpoints(GROUP)).get("0")


def commit_as_pipeline(database: Database, until: int, lease_epoch: int | None = None) -> None:
    """Move the checkpoint of partition 0 in a transaction, as pipelines and Spark do."""
    with UnitOfWork(database, CONSUMER, owner="pipeline", lease_epoch=lease_epoch) as unit:
        unit.advance("0", unit.lock("0"), until, offset=str(until - 1), enqueued_time_ms=until)


async def test_leases_of_version_5_are_kept(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their owners are of a release that knows no requests."""
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:5])
        with (
            Database.open(database_url) as database,
            database.writing() as connection,
            connection.begin(),
        ):
            for column in ("requested_by", "requested_at"):
                connection.execute(text(f"ALTER TABLE tidegate_lease DROP COLUMN {column}"))
            connection.execute(
                text(
                    "INSERT INTO tidegate_lease (event_hub, consumer_group, partition_id, owner, epoch, "
                    "acquired_at, renewed_at, version) VALUES (:hub, :group, '0', 'host-a', 7, "
                    "'2026-11-20 12:00:00', '2026-11-20 12:00:00', 3)"
                ),
                {"hub": CONSUMER.event_hub, "group": CONSUMER.consumer_group},
            )
    with Database.open(database_url) as database:
        store = SqlStore(database)
        old = (await store.list_leases(GROUP)).leases["0"]
        assert (old.owner, old.epoch, old.version, old.requested_by) == ("host-a", 7, "3", None)
        await store.request(GROUP, old, "host-b")
        assert (await store.list_leases(GROUP)).leases["0"] == old
        assert (await have(store, "host-b", old)).requested_by == ""
        await store.close()


async def test_an_epoch_is_above_who_moved_the_checkpoint_before(database: Database, store: SqlStore) -> None:
    """A host that takes over from a Spark driver shuts its tasks out, whatever the lease's epoch was."""
    first = await have(store)
    assert first.epoch == 1
    commit_as_pipeline(database, 3, lease_epoch=41)
    second = await have(store, expected=first)
    assert second.epoch == 42
    await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 5), lease=second)
    with pytest.raises(FencedError, match="epoch 42"):
        commit_as_pipeline(database, 9, lease_epoch=41)
    assert (await have(store, expected=second)).epoch == 43


async def test_a_new_lease_is_above_the_checkpoint_too(database: Database, store: SqlStore) -> None:
    """The same where no host ever had the partition."""
    commit_as_pipeline(database, 3, lease_epoch=5)
    assert (await have(store)).epoch == 6


async def test_hosts_and_pipelines_share_a_checkpoint(database: Database, store: SqlStore) -> None:
    """A group may change from one to the other: the last processed event is one before the next."""
    assert await position(store) is None
    commit_as_pipeline(database, 8)
    assert await position(store) == ProcessorCheckpoint("0", 7, "7", 8, None)
    lease = await have(store, "host-é\0")
    await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 9, "1234", 17, 99), lease=lease)
    row = CheckpointReader(database).read(CONSUMER)["0"]
    assert (row.next_sequence_number, row.offset, row.enqueued_time_ms) == (10, "1234", 17)
    assert (row.event_hub_created_at_ms, row.owner, row.lease_epoch) == (99, lease.owner, 1)
    assert row.transaction_token


async def test_a_row_that_was_only_locked_is_no_checkpoint(database: Database, store: SqlStore) -> None:
    """Who locks first and commits nothing has processed nothing."""
    with UnitOfWork(database, CONSUMER) as unit:
        unit.lock("0")
    assert await position(store) is None
    assert CheckpointReader(database).read_all() == []
    await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", -1), lease=None)
    assert await position(store) == ProcessorCheckpoint("0", -1)
    assert len(CheckpointReader(database).read_all()) == 1


async def test_a_replaced_hub_is_refused_until_told_otherwise(store: SqlStore) -> None:
    """Sequence numbers of a hub that was made anew are not compared with those of the old one."""
    await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 9, None, None, 1000), lease=None)
    anew = ProcessorCheckpoint("0", 12, None, None, 2000)
    with pytest.raises(EventHubReplacedError, match="created at 1000 ms"):
        await store.update_checkpoint(GROUP, anew, lease=None)
    await store.update_checkpoint(GROUP, anew, lease=None, is_rewind_allowed=True)
    assert await position(store) == anew


@pytest.mark.parametrize(
    ("first", "second", "is_moved"),
    [
        (ProcessorCheckpoint("0", None, "900"), ProcessorCheckpoint("0", None, "1000"), True),
        (ProcessorCheckpoint("0", None, "900"), ProcessorCheckpoint("0", None, "80"), False),
        (ProcessorCheckpoint("0", None, "geo:9"), ProcessorCheckpoint("0", None, "80"), True),
        (ProcessorCheckpoint("0", None, None, 5), ProcessorCheckpoint("0", None, None, 4), False),
        (ProcessorCheckpoint("0", None, "900"), ProcessorCheckpoint("0", 3, "1000"), True),
        (ProcessorCheckpoint("0", 5, "900"), ProcessorCheckpoint("0", 4, "1000"), False),
    ],
)
@pytest.mark.slow
async def test_checkpoints_without_numbers_are_compared_as_far_as_that_goes(
    store: SqlStore, first: ProcessorCheckpoint, second: ProcessorCheckpoint, is_moved: bool
) -> None:
    """Somebody who has only an offset or a time can go on from it."""
    await store.update_checkpoint(GROUP, first, lease=None)
    await store.update_checkpoint(GROUP, second, lease=None)
    assert await position(store) == (second if is_moved else first)


async def test_a_vague_position_does_not_replace_a_number(store: SqlStore) -> None:
    """Transactions start from the number; it is given up only by who says so."""
    await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 5), lease=None)
    vague = ProcessorCheckpoint("0", None, "900")
    with pytest.raises(InvalidArgumentError, match="without sequence number"):
        await store.update_checkpoint(GROUP, vague, lease=None)
    await store.update_checkpoint(GROUP, vague, lease=None, is_rewind_allowed=True)
    assert await position(store) == vague


@pytest.mark.parametrize("checkpoint", [ProcessorCheckpoint("0", -2), ProcessorCheckpoint("0", None)])
async def test_a_checkpoint_that_is_no_position_is_refused(
    store: SqlStore, checkpoint: ProcessorCheckpoint
) -> None:
    """Neither a number below "nothing processed" nor nothing at all is kept."""
    with pytest.raises(InvalidArgumentError):
        await store.update_checkpoint(GROUP, checkpoint, lease=None)
    assert await position(store) is None


async def test_an_epoch_fences_although_its_checkpoint_was_left(store: SqlStore) -> None:
    """A new owner whose first checkpoint lies behind shuts the old owner out all the same."""
    old = await have(store)
    await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 9), lease=old)
    new = await have(store, "host-b", expected=old)
    await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 4), lease=new)
    with pytest.raises(FencedError, match="host-b under lease epoch 2"):
        await store.update_checkpoint(GROUP, ProcessorCheckpoint("0", 10), lease=old)
    assert await position(store) == ProcessorCheckpoint("0", 9)


async def test_a_lease_of_another_store_is_refused(store: SqlStore) -> None:
    """A version that this store never gave is a mix-up, not a lost race; so is a lease for nobody."""
    lease = await have(store)
    foreign = Lease("0", "a", 1, None, lease.renewed_at, '"0x8DE"')
    with pytest.raises(InvalidArgumentError, match="0x8DE"):
        await store.renew(GROUP, [foreign])
    with pytest.raises(InvalidArgumentError, match="owner"):
        await store.acquire(GROUP, "1", "", expected=None)


async def test_leases_do_not_wait_for_batches_on_a_server(server_url: str) -> None:
    """Handlers that hold more transactions than a pool has connections do not cost anybody a lease."""
    with Database.open(server_url, lock_wait_s=1.0) as database, ExitStack() as batches:
        store = SqlStore(database)
        lease = await have(store)
        for number in range(20):
            batches.enter_context(UnitOfWork(database, CONSUMER)).lock(str(number))
        async with asyncio.timeout(WAIT_S):
            assert "0" in await store.renew(GROUP, [lease])
            assert "0" in (await store.list_leases(GROUP)).leases
            assert await store.acquire(GROUP, "1", "host-b", expected=None) is not None
        await store.close()


async def test_batches_leave_connections_for_leases(server_url: str) -> None:
    """More busy partitions than the server takes connections: batches are tried again, leases are kept."""
    with Database.open(server_url) as database, ExitStack() as batches:
        store = SqlStore(database)
        lease = await store.acquire(GROUP, "0", "host-a", expected=None)
        assert lease is not None
        with pytest.raises(DatabaseUnavailableError, match=r"too many clients|Too many connections"):
            _use_up_connections(database, batches)
        renewed = await store.renew(GROUP, [lease])
        assert set(renewed) == set((await store.list_leases(GROUP)).leases) == {"0"}
        await store.close()


def _use_up_connections(database: Database, batches: ExitStack) -> None:
    while True:
        batches.enter_context(database.writing())


async def test_leases_are_read_while_a_batch_is_written(database: Database, store: SqlStore) -> None:
    """A long batch in SQLite makes renewals wait, but nobody goes blind; the renewal counts afterwards."""
    lease = await have(store)
    with UnitOfWork(database, CONSUMER) as unit:
        unit.lock("0")
        renewal = asyncio.ensure_future(store.renew(GROUP, [lease]))  # noqa: TID251 (awaited below)
        async with asyncio.timeout(WAIT_S):
            assert (await store.list_leases(GROUP)).leases["0"].owner == "host-a"
            assert await store.list_checkpoints(GROUP) == {}
    async with asyncio.timeout(WAIT_S):
        renewed = (await renewal)["0"]
    assert renewed.renewed_at >= lease.renewed_at
    assert (await store.list_leases(GROUP)).leases["0"] == renewed


async def test_a_database_that_is_busy_for_too_long_is_a_retry(sqlite_url: str) -> None:
    """A host learns that its leases were not renewed, and may try again."""
    with Database.open(sqlite_url, lock_wait_s=0.1) as database:
        store = SqlStore(database)
        lease = await have(store)
        with UnitOfWork(database, CONSUMER), pytest.raises(DatabaseUnavailableError, match=r"0\.1 s"):
            await store.renew(GROUP, [lease])
        assert "0" in await store.renew(GROUP, [lease])
        await store.close()


async def test_a_closed_store_says_so(database: Database) -> None:
    """Nobody waits for threads that have ended; the database is still its owner's."""
    store = SqlStore(database)
    await have(store)
    await store.close()
    await store.close()
    with pytest.raises(ClosedError):
        await store.list_leases(GROUP)
    assert LeaseTable(database).read(CONSUMER).leases["0"].owner == "host-a"


async def test_people_read_leases_in_order(database: Database, store: SqlStore) -> None:
    """Lists show every consumer's leases, partition 10 after 9, with their age by the database's clock."""
    for partition in ("10", "9"):
        await store.acquire(GROUP, partition, "host-a", expected=None)
    other = GroupKey("localhost", "a-hub", "$Default")
    lease = await store.acquire(other, "0", "host-b", expected=None)
    assert lease is not None
    await store.release(other, [lease])
    views = read_group_views(database)
    assert [
        (consumer.event_hub, lease.partition_id, lease.owner)
        for consumer, view in views.items()
        for lease in view.leases.leases.values()
    ] == [
        ("a-hub", "0", ""),
        (CONSUMER.event_hub, "9", "host-a"),
        (CONSUMER.event_hub, "10", "host-a"),
    ]
    assert ConsumerKey("a-hub", "$Default") in views
    for lease in views[CONSUMER].leases.leases.values():
        assert views[CONSUMER].lease_age_s(lease.partition_id) >= 0
        assert lease.acquired_at is not None
        assert lease.acquired_at.utcoffset() == timedelta(0)
    assert read_group_view(database, CONSUMER).leases.leases == views[CONSUMER].leases.leases
    assert read_group_view(database, ConsumerKey("unknown")).partition_ids == []


def test_a_person_sets_a_checkpoint_and_looks_first(database: Database) -> None:
    """A dry run says what would happen and changes nothing; backwards is only for who says so."""
    commit_as_pipeline(database, 8, lease_epoch=3)
    back, on = ProcessorCheckpoint("0", 1), ProcessorCheckpoint("0", 19)
    for is_dry_run in (True, False):
        left = move_checkpoint(database, CONSUMER, back, is_dry_run=is_dry_run)
        assert (left.is_moved, left.next_sequence_number) == (False, 8)
    plan = move_checkpoint(database, CONSUMER, back, is_rewind_allowed=True, is_dry_run=True)
    assert plan.before is not None
    assert (plan.before.next_sequence_number, plan.next_sequence_number, plan.is_moved) == (8, 2, True)
    assert CheckpointReader(database).read(CONSUMER)["0"] == plan.before
    assert move_checkpoint(database, CONSUMER, back, is_rewind_allowed=True) == plan
    assert move_checkpoint(database, CONSUMER, on, owner="a person").next_sequence_number == 20
    row = CheckpointReader(database).read(CONSUMER)["0"]
    assert (row.next_sequence_number, row.offset, row.owner, row.lease_epoch) == (20, None, "a person", 3)

    def refuse() -> None:
        raise NotFoundError("its hub is gone")

    with pytest.raises(NotFoundError):
        move_checkpoint(database, CONSUMER, back, is_rewind_allowed=True, check=refuse)
    assert CheckpointReader(database).read(CONSUMER)["0"] == row
    with pytest.raises(FencedError, match="epoch 3; this owner's is 2"):
        move_checkpoint(database, CONSUMER, on, lease_epoch=2, is_dry_run=True)
    first = move_checkpoint(database, CONSUMER, ProcessorCheckpoint("9", 4), is_dry_run=True)
    assert (first.before, first.next_sequence_number) == (None, 5)
    assert sorted(CheckpointReader(database).read(CONSUMER)) == ["0"]


def test_a_worker_that_was_overtaken_by_a_person_is_fenced(database: Database) -> None:
    """A batch that began before the checkpoint was set cannot commit after it."""
    commit_as_pipeline(database, 8)
    move_checkpoint(database, CONSUMER, ProcessorCheckpoint("0", 1), is_rewind_allowed=True)
    with UnitOfWork(database, CONSUMER) as unit:
        unit.lock("0")
        with pytest.raises(FencedError, match="moved it to 2"):
            unit.advance("0", 8, 12)
    assert CheckpointReader(database).read(CONSUMER)["0"].next_sequence_number == 2


@pytest.mark.slow
def test_threads_that_race_win_each_version_once(database: Database) -> None:
    """One winner per version, so the epochs that all of them won are 1, 2, 3 … without a repetition."""
    table, epochs = LeaseTable(database), list[int]()

    def race(name: str) -> None:
        epochs.extend(win(table, name, 8))

    threads = [threading.Thread(target=race, args=(f"host-{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert sorted(epochs) == list(range(1, 65))


@pytest.mark.slow
def test_processes_that_race_win_each_version_once(database_url: str) -> None:
    """The same for hosts that are processes of their own."""
    with Database.open(database_url) as database:
        words = [sys.executable, "-m", "tests.sql.lease_race", database_url]
        processes = [
            Forked([*words, f"host-{number}"], cwd=ROOT, stdout=subprocess.PIPE) for number in range(4)
        ]
        outputs = [process.communicate(timeout=WAIT_S)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * 4
        epochs = [epoch for output in outputs for epoch in json.loads(output)]
        assert sorted(epochs) == list(range(1, 41))
        assert LeaseTable(database).read(CONSUMER).leases["0"].epoch == 40


def test_a_shadow_is_no_group_that_lags(database: Database) -> None:
    """Nothing processes it: `tidegate lag` and the console do not list it; its own name finds it."""
    shadow = ConsumerKey(CONSUMER.event_hub, f"{CONSUMER.consumer_group}~v2")
    for consumer in (CONSUMER, shadow):
        with UnitOfWork(database, consumer) as unit:
            unit.advance("0", unit.lock("0"), 5)
    assert set(read_group_views(database)) == {CONSUMER}
    assert set(read_group_view(database, shadow).checkpoints) == {"0"}
