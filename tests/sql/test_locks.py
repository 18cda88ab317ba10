"""What a handler's transaction locks: the relay passes by, and a deadlock is no fault of the handler."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress

import pytest
import sqlalchemy as sa
from tests.sql.support import CONSUMER, events_between, flights, rows_in
from tests.sql.test_outbox import KEYS, Bench, expected, run, work_off
from tests.sql.test_transactions import process
from tests.sql.transaction_support import transactions_of
from tests.support.mariadb import MariadbServer

from tidegate.model.errors import DatabaseUnavailableError
from tidegate.model.events import EventData, ReceivedEvent
from tidegate.processor.handlers import TransactionContext
from tidegate.sql import Database
from tidegate.sql.outbox import relay as relay_module
from tidegate.sql.outbox.lanes import LaneStep, read_lanes, take_steps
from tidegate.sql.outbox.relay import OutboxRelay
from tidegate.testing.hub import HubService

WAIT_S = 20.0


@pytest.fixture
def bench(server_url: str, hub_service: HubService) -> Iterator[Bench]:
    """With a target of two partitions, and a server that locks rows."""
    with Database.open(server_url) as database:
        yield Bench(database, hub_service, hub_service.create_hub(partition_count=2))


def test_a_relay_and_savepoints_cannot_deadlock(bench: Bench) -> None:
    """A handler locks lanes in the order of its savepoints; the relay does not wait for them."""
    noted: list[set[str]] = []

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        low, high = read_lanes(bench.database, CONSUMER, ["0"])
        steps = [LaneStep(each.lane_id, each.producer_epoch, sent_until=1) for each in (low, high)]
        with ThreadPoolExecutor(1) as threads:
            for lane in (high, low):
                with context.connection.begin_nested():
                    context.publish(bench.target, EventData(b"7"), partition_id=lane.target_partition_id)
                noted.append(threads.submit(take_steps, bench.database, steps).result(WAIT_S))
        noted.append({low.lane_id})

    async def work() -> None:
        relay = bench.relay()
        await bench.publish(0, 20)
        await bench.process(handle, 20, 21)
        await relay.finish([], WAIT_S)

    run(work())
    assert noted == [noted[-1], set(), noted[-1]]


def test_a_long_transaction_holds_up_its_own_lane_only(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are sent meanwhile, and that one when it has ended."""
    monkeypatch.setattr(relay_module, "_LOCKED_S", 600.0)
    is_locked, may_end = threading.Event(), threading.Event()

    def hold(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        with context.connection.begin_nested():
            context.publish(bench.target, EventData(b"700"), partition_key=KEYS[0])
        is_locked.set()
        assert may_end.wait(WAIT_S)

    async def relay_meanwhile(relay: OutboxRelay) -> None:
        assert await asyncio.to_thread(is_locked.wait, WAIT_S)
        try:
            async with asyncio.timeout(WAIT_S):
                await work_off(relay)
            found = bench.found()
            assert found
            assert KEYS[0] not in found
        finally:
            may_end.set()

    async def work() -> None:
        relay = bench.relay()
        await bench.publish(0, 100)
        await asyncio.gather(bench.process(hold, 100, 101), relay_meanwhile(relay))
        await relay.finish(["0"], WAIT_S)

    run(work())
    keyed = expected(100)
    keyed[KEYS[0]].append(700)
    assert bench.found() == keyed
    assert bench.counts() == (0, 0)
    assert bench.reported == []


@pytest.mark.parametrize("is_swallowed", [False, True], ids=["raised", "swallowed"])
def test_a_deadlock_is_no_misuse_of_savepoints(mariadb: MariadbServer, *, is_swallowed: bool) -> None:
    """MariaDB ends the whole transaction, savepoints included: the batch comes again, and succeeds."""
    has_one, has_others = threading.Event(), threading.Event()

    def delay(connection: sa.Connection, where: sa.ColumnElement[bool]) -> None:
        connection.execute(sa.update(flights).values(delay=flights.c.delay + 1).where(where))

    def one(number: int) -> sa.ColumnElement[bool]:
        # By its whole key: a scan would lock the row behind it as well.
        return sa.and_(flights.c.sequence_number == number, flights.c.partition_id == "0")

    def compete(database: Database) -> None:
        with database.writing() as connection, connection.begin():
            delay(connection, flights.c.sequence_number > 0)  # so many rows that the handler's is ended
            has_others.set()
            assert has_one.wait(WAIT_S)
            delay(connection, one(0))

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        swallowed = suppress(sa.exc.DBAPIError) if is_swallowed else nullcontext()
        with swallowed, context.connection.begin_nested():
            delay(context.connection, one(0))
            has_one.set()
            assert has_others.wait(WAIT_S)
            delay(context.connection, one(1))

    with Database.open(mariadb.create_schema()) as database, ThreadPoolExecutor(1) as threads:
        database.ensure_table(flights)
        with database.writing() as connection, connection.begin():
            rows = [{"sequence_number": number, "partition_id": "0", "delay": 0} for number in range(50)]
            connection.execute(sa.insert(flights), rows)
        transactions = transactions_of(database, handle)
        competing = threads.submit(compete, database)
        with pytest.raises(DatabaseUnavailableError):
            process(transactions, events_between(0, 1))
        competing.result(WAIT_S)
        process(transactions, events_between(0, 1))
        transactions.close()
        assert [row[2] for row in rows_in(database)] == [2, 2, *[1] * 48]
