"""The SQL store under the official SDK's processors: the store's rules, then real clients sharing a hub."""

from __future__ import annotations

import asyncio
import importlib
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from azure.eventhub import EventData
from tests.interop.support import SdkTarget, target_of
from tests.needs import some_have
from tests.sql.support import CONSUMER
from tests.support.sqlserver import SQL_SERVERS

from tidegate.model.errors import DatabaseUnavailableError, InvalidArgumentError
from tidegate.processor.checkpoint import ProcessorCheckpoint
from tidegate.processor.lease import GroupKey
from tidegate.sql import CheckpointReader, ConsumerKey, Database, SqlStore, UnitOfWork, read_group_view
from tidegate.sql.core.schema import lease, of_consumer
from tidegate.sql.stores.azure_checkpoint_store import AsyncSqlCheckpointStore, Ownership, SqlCheckpointStore
from tidegate.sql.stores.checkpoint_moves import move_checkpoint
from tidegate.testing.hub import HubService

NAMES = {"fully_qualified_namespace": "LocalHost", "eventhub_name": "Flights", "consumer_group": "$default"}
PLACE = (NAMES["fully_qualified_namespace"], NAMES["eventhub_name"], NAMES["consumer_group"])
GROUP = GroupKey(*PLACE)
WAIT_S = 60.0
"""Longest wait for something that must happen; reached only when a test fails."""
INTERVAL_S = 0.2
"""How often the SDK's processors balance here; by default every 30 s."""


@pytest.fixture
def store(database: Database) -> SqlCheckpointStore:
    """A store on each database."""
    return SqlCheckpointStore(database)


def wanted(partition_id: str, owner: str, etag: str | None = None) -> Ownership:
    """What the SDK hands to ``claim_ownership``."""
    ownership: Ownership = {**NAMES, "partition_id": partition_id, "owner_id": owner}
    return ownership if etag is None else {**ownership, "etag": etag}


def claim(store: SqlCheckpointStore, ownership: Ownership) -> Ownership:
    """A claim that must be won."""
    (won,) = store.claim_ownership([ownership])
    return won


def test_a_claim_is_listed_as_it_was_won(store: SqlCheckpointStore) -> None:
    """The keys, the names as they were given, and seconds as a float, which the SDK computes with."""
    assert store.list_ownership(*PLACE) == []
    given = wanted("3", "a") | {"of the user": 1}
    before = dict(given)
    won = claim(store, given)
    assert given == before
    assert won["of the user"] == 1
    assert isinstance(won["etag"], str)
    assert isinstance(won["last_modified_time"], float)
    assert abs(won["last_modified_time"] - time.time()) < WAIT_S  # noqa: TID251 (as the SDK does)
    del won["of the user"]
    assert store.list_ownership(*PLACE) == [won]
    assert store.list_ownership(PLACE[0], PLACE[1], "other") == []


def test_only_who_knows_the_etag_changes_an_ownership(store: SqlCheckpointStore) -> None:
    """A stale etag, none, and one that this store never gave win nothing, and say so by being absent."""
    first = claim(store, wanted("0", "a"))
    second = claim(store, first)
    assert second["etag"] != first["etag"]
    for etag in (None, str(first["etag"]), "99", '"0x8D"'):
        assert store.claim_ownership([wanted("0", "b", etag)]) == []
    assert store.claim_ownership([wanted("1", "b", "1")]) == []
    claims = [wanted("2", "b"), wanted("0", "b", str(second["etag"])), wanted("1", "b", "5")]
    assert [won["partition_id"] for won in store.claim_ownership(claims)] == ["2", "0"]
    owners = {row["partition_id"]: row["owner_id"] for row in store.list_ownership(*PLACE)}
    assert owners == {"0": "b", "2": "b"}


def test_epochs_rise_with_owners_only(database: Database, store: SqlCheckpointStore) -> None:
    """Renewing is no new epoch, nor is releasing; the next owner's is above the checkpoint's, too."""

    def epoch() -> int:
        return read_group_view(database, CONSUMER).leases.leases["0"].epoch

    first = claim(store, wanted("0", "a"))
    assert epoch() == 1
    first = claim(store, first)
    assert epoch() == 1
    stolen = claim(store, first | {"owner_id": "b"})
    assert epoch() == 2
    released = claim(store, stolen | {"owner_id": ""})
    assert (epoch(), store.list_ownership(*PLACE)[0]["owner_id"]) == (2, "")
    with UnitOfWork(database, CONSUMER, lease_epoch=7) as unit:
        unit.advance("0", unit.lock("0"), 5)
    claim(store, released | {"owner_id": "b"})
    assert epoch() == 8


@pytest.mark.slow
def test_claimers_that_race_win_each_etag_once(store: SqlCheckpointStore) -> None:
    """Processors that claim the same partitions, in any order, neither share one nor lock each other up."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    wins: Counter[tuple[object, object]] = Counter()
    lock = threading.Lock()
    errors: list[Exception] = []

    def race(owner: str) -> None:
        source = random.Random(f"{seed} {owner}")
        try:
            for _ in range(15):
                seen = {str(row["partition_id"]): str(row["etag"]) for row in store.list_ownership(*PLACE)}
                partitions = source.sample(["0", "1", "2", "3"], 3)
                for won in store.claim_ownership([wanted(key, owner, seen.get(key)) for key in partitions]):
                    with lock:
                        wins[won["partition_id"], won["etag"]] += 1
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=race, args=(f"owner-{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert errors == []
    assert set(wins.values()) == {1}
    for row in store.list_ownership(*PLACE):
        won = [int(str(etag)) for partition, etag in wins if partition == row["partition_id"]]
        assert sorted(won) == list(range(1, int(str(row["etag"])) + 1))


def test_a_claim_outlasts_a_deadlock(mariadb_url: str) -> None:
    """MariaDB ends the transaction that has changed less; the claim is made again."""
    with Database.open(mariadb_url) as database, Database.open(mariadb_url) as others:
        store = SqlCheckpointStore(database)
        held = store.claim_ownership([wanted("0", "a"), wanted("1", "a")])
        won: list[Ownership] = []
        rows = lease.select().where(of_consumer(lease, CONSUMER))
        with others.writing() as connection, connection.begin():
            row = dict(
                connection.execute(rows.where(lease.c.partition_id == "1").with_for_update()).one()._mapping
            )
            connection.execute(lease.insert(), [row | {"consumer_group": f"other {n}"} for n in range(50)])
            claiming = threading.Thread(
                target=lambda: won.extend(store.claim_ownership([{**each, "owner_id": "b"} for each in held]))
            )
            claiming.start()
            deadline = time.monotonic() + WAIT_S
            while not is_locked(mariadb_url, "0"):
                assert time.monotonic() < deadline
            connection.execute(rows.where(lease.c.partition_id == "0").with_for_update()).one()
        claiming.join(WAIT_S)
    assert [each["partition_id"] for each in won] == ["0", "1"]


def is_locked(url: str, partition_id: str) -> bool:
    """Whether a transaction has locked a partition's lease."""
    row = lease.select().where(of_consumer(lease, CONSUMER, partition_id))
    with Database.open(url) as looking, looking.writing() as connection:
        try:
            with connection.begin():
                connection.execute(row.with_for_update(nowait=True)).one()
        except sa.exc.OperationalError:
            return True
    return False


def test_checkpoints_come_back_as_given(database: Database, store: SqlCheckpointStore) -> None:
    """Offset as text, number as int; the last one given counts, and hosts go on from it."""
    assert store.list_checkpoints(*PLACE) == []
    first = {**NAMES, "partition_id": "0", "offset": "4294967296", "sequence_number": 41}
    store.update_checkpoint(first)
    assert store.list_checkpoints(*PLACE) == [first]
    assert CheckpointReader(database).read(CONSUMER)["0"].next_sequence_number == 42
    back = first | {"offset": "17", "sequence_number": 3}
    store.update_checkpoint(back)
    assert store.list_checkpoints(*PLACE) == [back]


def test_checkpoints_of_a_careful_store_move_forward_only(database: Database) -> None:
    """A slow processor does not make transactional hosts of its group process events again."""
    store = SqlCheckpointStore(database, is_rewind_allowed=False)
    first = {**NAMES, "partition_id": "0", "offset": "41", "sequence_number": 41}
    store.update_checkpoint(first)
    store.update_checkpoint(first | {"offset": "3", "sequence_number": 3})
    assert store.list_checkpoints(*PLACE) == [first]


def test_checkpoints_of_others_are_positions_too(database: Database, store: SqlCheckpointStore) -> None:
    """Who moved a checkpoint without an offset left a number, and 0 is the start; a mere lock left none."""
    for partition, until in (("0", 0), ("1", 1), ("2", 8)):
        with UnitOfWork(database, CONSUMER) as unit:
            unit.advance(partition, unit.lock(partition), until)
    with UnitOfWork(database, CONSUMER) as unit:
        unit.lock("3")
    listed = {row["partition_id"]: row["offset"] for row in store.list_checkpoints(*PLACE)}
    assert listed == {"0": "-1", "1": "0", "2": 7}


def test_checkpoints_that_a_person_set_are_gone_on_from(
    database: Database, store: SqlCheckpointStore
) -> None:
    """An offset or a time alone, and the start: else the SDK would begin at its own starting position."""
    for target in (
        ProcessorCheckpoint("0", None, offset="4294967296"),
        ProcessorCheckpoint("1", None, enqueued_time_ms=1_500),
        ProcessorCheckpoint("2", -1),
    ):
        move_checkpoint(database, CONSUMER, target, is_rewind_allowed=True)
    listed = {row["partition_id"]: row["offset"] for row in store.list_checkpoints(*PLACE)}
    assert listed == {"0": "4294967296", "1": datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC), "2": "-1"}


def test_a_second_namespace_is_refused(store: SqlCheckpointStore) -> None:
    """The database does not know namespaces, so hubs of one name would be taken for one."""
    claim(store, wanted("0", "a"))
    with pytest.raises(InvalidArgumentError, match="localhost"):
        store.list_ownership("other.servicebus.windows.net", *PLACE[1:])


def test_a_database_that_does_not_answer_is_an_error(sqlite_url: str) -> None:
    """The processor reports it and keeps reading; no claim is taken for won that is not in the database."""
    with Database.open(sqlite_url, lock_wait_s=0.1) as database:
        store = SqlCheckpointStore(database)
        with UnitOfWork(database, CONSUMER), pytest.raises(DatabaseUnavailableError):
            store.claim_ownership([wanted("0", "a")])
        assert store.list_ownership(*PLACE) == []


async def test_hosts_and_official_processors_see_each_other(database: Database) -> None:
    """One table: a host's lease is an ownership, an ownership is a lease, and each can take the other's."""
    host = SqlStore(database, has_epochs=False)
    async with AsyncSqlCheckpointStore(database) as store:
        lease = await host.acquire(GROUP, "0", "host", expected=None)
        assert lease is not None
        (seen,) = await store.list_ownership(*PLACE)
        assert (seen["owner_id"], seen["last_modified_time"]) == ("host", lease.renewed_at.timestamp())
        (stolen,) = await store.claim_ownership([seen | {"owner_id": "official"}])
        assert await host.renew(GROUP, [lease]) == {}
        snapshot = await host.list_leases(GROUP)
        assert (snapshot.leases["0"].owner, snapshot.leases["0"].epoch) == ("official", 2)
        assert snapshot.leases["0"].requested_by is None
        await store.update_checkpoint({**NAMES, "partition_id": "0", "offset": "9", "sequence_number": 9})
        assert await host.list_checkpoints(GROUP) == {"0": ProcessorCheckpoint("0", 9, "9")}
        assert [row["offset"] for row in await store.list_checkpoints(*PLACE)] == ["9"]
        assert await host.acquire(GROUP, "0", "host", expected=snapshot.leases["0"]) is not None
        assert await store.claim_ownership([stolen]) == []
    await host.close()


def test_the_sdk_is_the_users_own_dependency(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it everything else works, and this module says what to install."""
    code = "import sys, tidegate.sql; assert not [name for name in sys.modules if name.startswith('azure')]"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
    name = "tidegate.sql.stores.azure_checkpoint_store"
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "azure.eventhub", None)
    with pytest.raises(ModuleNotFoundError, match="pip install azure-eventhub"):
        importlib.import_module(name)


# With real clients of the official SDK.


@pytest.fixture
def hub(hub_service: HubService) -> str:
    """A hub of four partitions, to be shared."""
    return hub_service.create_hub(partition_count=4)


@pytest.fixture
def target(hub_service: HubService) -> SdkTarget:
    """How the clients reach the service."""
    return target_of(hub_service, "plain")


def send(target: SdkTarget, hub: str, bodies: list[str]) -> None:
    """Send each body to each partition."""
    with target.producer(hub) as producer:
        for partition in "0123":
            producer.send_batch([EventData(body) for body in bodies], partition_id=partition)


class Seen:
    """What the processors of a test received, in order, by partition."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.bodies: dict[str, list[str]] = {partition: [] for partition in "0123"}
        self.errors: list[str] = []

    def report(self, error: Exception) -> None:
        """One error more, unless it is how the SDK tells a processor that another one has the partition."""
        if "New receiver" not in str(error):
            self.errors.append(repr(error))

    def check(self, bodies: dict[str, list[str]]) -> None:
        """Nothing went wrong, and these events came, in this order."""
        assert self.errors == []
        assert self.bodies == bodies

    def add(self, partition: str, body: str) -> None:
        """One event more."""
        with self._lock:
            self.bodies[partition].append(body)

    def has(self, bodies: list[str]) -> bool:
        """Whether each partition has come to the last of ``bodies``."""
        with self._lock:
            return all(set(bodies) <= set(seen) for seen in self.bodies.values())


def owners(database: Database, hub: str) -> Counter[str]:
    """How many partitions each processor has; released ones under the empty name."""
    leases = read_group_view(database, ConsumerKey(hub)).leases.leases
    return Counter(lease.owner for lease in leases.values())


def is_even(database: Database, hub: str) -> bool:
    """Whether two processors have two partitions each."""
    return sorted(owners(database, hub).values()) == [2, 2] and "" not in owners(database, hub)


def is_at(database: Database, hub: str, next_sequence_number: int) -> bool:
    """Whether the checkpoints of all four partitions lie there."""
    rows = CheckpointReader(database).read(ConsumerKey(hub)).values()
    return [row.next_sequence_number for row in rows] == [next_sequence_number] * 4


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Look again until it holds; fails after ``WAIT_S``."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come about in {WAIT_S} s"
        time.sleep(0.02)


async def wait_until_async(condition: Callable[[], bool], what: str) -> None:
    """The same without holding the loop up."""
    await asyncio.to_thread(wait_until, condition, what)


class Processor:
    """An official synchronous consumer that reads all partitions it gets, in a thread until ``close``."""

    def __init__(self, target: SdkTarget, hub: str, store: SqlCheckpointStore, seen: Seen) -> None:
        self._seen = seen
        self._client = target.consumer(
            hub, checkpoint_store=store, load_balancing_interval=INTERVAL_S, retry_total=3
        )
        self._thread = threading.Thread(
            target=self._client.receive,
            kwargs={"on_event": self._on_event, "on_error": self._on_error, "starting_position": "-1"},
        )
        self._thread.start()

    def _on_event(self, context: Any, event: Any) -> None:
        self._seen.add(context.partition_id, event.body_as_str())
        context.update_checkpoint(event)

    def _on_error(self, context: Any, error: Exception) -> None:
        self._seen.report(error)

    def close(self) -> None:
        """Stop, give the partitions back, end the thread."""
        self._client.close()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


@pytest.mark.sdk
@some_have("database_url", ["sqlite", "postgresql"], ["mariadb", *SQL_SERVERS])
def test_official_processors_balance_checkpoint_and_resume(
    database: Database, target: SdkTarget, hub: str
) -> None:
    """Two share a hub evenly; what one gives back the other takes; a third goes on where they were."""
    seen = Seen()
    first = Processor(target, hub, SqlCheckpointStore(database), seen)
    second = None
    try:
        wait_until(lambda: owners(database, hub).total() == 4, "one that has all partitions")
        second = Processor(target, hub, SqlCheckpointStore(database), seen)
        wait_until(lambda: is_even(database, hub), "an even share")
        send(target, hub, ["a", "b", "c"])
        wait_until(lambda: seen.has(["a", "b", "c"]), "all events")
        wait_until(lambda: is_at(database, hub, 3), "a checkpoint of the last event")
        first.close()
        wait_until(lambda: list(owners(database, hub).values()) == [4], "one that has all partitions again")
        assert "" not in owners(database, hub)
    finally:
        first.close()
        if second is not None:
            second.close()
    # The SDK gives partitions back unless it is renewing them at that moment; those run out.
    send(target, hub, ["d", "e"])
    later = Seen()
    third = Processor(target, hub, SqlCheckpointStore(database), later)
    try:
        wait_until(lambda: later.has(["d", "e"]), "the new events")
    finally:
        third.close()
    assert seen.errors == []
    later.check({partition: ["d", "e"] for partition in "0123"})


@pytest.mark.sdk
@some_have("database_url", ["mariadb"], ["sqlite", "postgresql", *SQL_SERVERS])
async def test_official_asyncio_processors_balance_checkpoint_and_resume(
    database: Database, target: SdkTarget, hub: str
) -> None:
    """The same with the SDK's asyncio clients."""
    seen = Seen()

    async def process(share: Seen) -> None:
        async def on_event(context: Any, event: Any) -> None:
            share.add(context.partition_id, event.body_as_str())
            await context.update_checkpoint(event)

        async def on_error(context: Any, error: Exception) -> None:
            share.report(error)

        async with AsyncSqlCheckpointStore(database) as store:
            client = target.async_consumer(
                hub, checkpoint_store=store, load_balancing_interval=INTERVAL_S, retry_total=3
            )
            async with client:
                await client.receive(on_event, on_error=on_error, starting_position="-1")

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(process(seen))]
        await wait_until_async(lambda: owners(database, hub).total() == 4, "one that has all partitions")
        tasks.append(group.create_task(process(seen)))
        await wait_until_async(lambda: is_even(database, hub), "an even share")
        await asyncio.to_thread(send, target, hub, ["a", "b", "c"])
        await wait_until_async(lambda: seen.has(["a", "b", "c"]), "all events")
        await wait_until_async(lambda: is_at(database, hub, 3), "a checkpoint of the last event")
        for task in tasks:
            task.cancel()
    await asyncio.to_thread(send, target, hub, ["d", "e"])
    later = Seen()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(process(later))
        await wait_until_async(lambda: later.has(["d", "e"]), "the new events")
        task.cancel()
    assert seen.errors == []
    later.check({partition: ["d", "e"] for partition in "0123"})


@pytest.mark.sdk
def test_an_official_processor_goes_on_where_a_pipeline_stopped(
    database: Database, target: SdkTarget, hub: str
) -> None:
    """A checkpoint that has a number and no offset is a position for the SDK, too."""
    send(target, hub, ["a", "b", "c", "d"])
    consumer = SqlStore(database)
    group = GroupKey("localhost", hub, "$Default")
    asyncio.run(_set_checkpoints(consumer, group, {"0": 0, "1": 1, "2": 2}))
    seen = Seen()
    processor = Processor(target, hub, SqlCheckpointStore(database), seen)
    try:
        wait_until(lambda: seen.has(["d"]), "the last event of each partition")
    finally:
        processor.close()
    seen.check({"0": ["b", "c", "d"], "1": ["c", "d"], "2": ["d"], "3": ["a", "b", "c", "d"]})


async def _set_checkpoints(store: SqlStore, group: GroupKey, last: dict[str, int]) -> None:
    for partition, number in last.items():
        await store.update_checkpoint(group, ProcessorCheckpoint(partition, number), lease=None)
    await store.close()
