"""A pump against the real service and a SQL store: batches as transactions."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, insert, select
from tests.processor.hosts import (
    STALLING,
    Subject,
    delete_hub,
    publish,
    until,
)

from tidegate.client import PartitionReceiver
from tidegate.model.errors import (
    BrokenError,
    DatabaseUnavailableError,
    EventHubReplacedError,
    PartitionPausedError,
    PartitionStoppedError,
)
from tidegate.model.events import ReceivedEvent
from tidegate.model.position import EventPosition
from tidegate.processor import (
    FailureAction,
    FailurePolicy,
    GroupKey,
    PartitionState,
    PositionLostPolicy,
    ProcessorCheckpoint,
    TransactionalProcessor,
    TransactionContext,
)
from tidegate.sql import Database, DeadLetters, SqlStore
from tidegate.testing.hub import HubService

metadata = MetaData()
seen_table = Table("seen", metadata, Column("number", Integer, primary_key=True))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(f"sqlite:///{tmp_path}/host.db") as database:
        database.ensure_table(seen_table)
        yield database


def _rows(database: Database) -> list[int]:
    with database.read() as connection:
        return sorted(connection.execute(select(seen_table.c.number)).scalars())


def _forget_rows(database: Database) -> None:
    with database.writing() as connection, connection.begin():
        connection.execute(seen_table.delete())


def _write(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
    context.connection.execute(insert(seen_table), [{"number": event.sequence_number} for event in events])


class _Duck:
    def process_events(self, context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        _write(context, events)


class _Face(TransactionalProcessor):
    def process_events(self, context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        _write(context, events)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "is_given"),
    [
        ({"handler": _Face}, False),
        ({"handler": _Duck}, True),
        ({"handler": _write}, True),
        ({"factory": lambda context: _Face()}, True),
    ],
)
async def test_rows_and_checkpoint_are_committed_together(
    hub_service: HubService, hub: str, database: Database, arguments: dict[str, Any], is_given: bool
) -> None:
    """Every kind of transactional handler; the next host goes on where the last transaction ended."""
    store = SqlStore(database)
    try:
        for round_ in (1, 2):
            await publish(hub_service, hub, 10)
            subject = Subject(hub_service, hub, store, transactional=is_given, max_batch_size=3)
            async with subject.host.running(**arguments):
                await until(lambda: _rows(database) == list(range(10 * round_)))  # noqa: B023
                await until(lambda: subject.host.statistics().events_processed == 10)  # noqa: B023
            assert subject.reported == []
    finally:
        await store.close()


@pytest.mark.parametrize(("events_max", "transaction_count"), [(8000, 1), (1, 3)])
@pytest.mark.slow
async def test_calls_of_a_partition_that_is_behind_share_a_transaction(
    hub_service: HubService, hub: str, database: Database, events_max: int, transaction_count: int
) -> None:
    """Up to ``max_transaction_events``; a call still gets no more than ``max_batch_size``."""
    calls: list[int] = []
    transactions: list[object] = []

    def write(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        calls.append(len(events))
        transactions.append(context.connection.get_transaction())
        _write(context, events)

    store = SqlStore(database)
    await publish(hub_service, hub, 10)
    subject = Subject(
        hub_service, hub, store, transactional=True, max_batch_size=4, max_transaction_events=events_max
    )
    async with subject.host.running(write):
        await until(lambda: _rows(database) == list(range(10)))
    assert (calls, len(set(transactions))) == ([4, 4, 2], transaction_count)
    await store.close()


@pytest.mark.slow
async def test_an_outage_of_what_a_handler_calls_pauses_its_partition(
    hub_service: HubService, hub: str, database: Database
) -> None:
    """Nobody listens, for a while: the partition says so, makes no dead letter, and continues by itself."""
    service = socket.create_server(("127.0.0.1", 0))
    address = service.getsockname()

    def call(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        for event in events:
            _write(context, [event])
            socket.create_connection(address, timeout=30).close()

    store = SqlStore(database)
    subject = Subject(hub_service, hub, store, transactional=True)
    service.close()
    await publish(hub_service, hub, 500)
    try:
        async with subject.host.running(call):
            await until(lambda: subject.state is PartitionState.PAUSED)
            (found,) = subject.host.statistics().partitions.values()
            assert isinstance(found.error, PartitionPausedError)
            async with await asyncio.start_server(lambda reader, writer: writer.close(), *address):
                await until(lambda: _rows(database) == list(range(500)))
                await until(lambda: subject.state is PartitionState.RUNNING)
        assert [type(error) for error in subject.reported] == [PartitionPausedError]
        assert DeadLetters(database).list() == []
    finally:
        await store.close()


@pytest.mark.parametrize("position", [EventPosition.latest(), EventPosition.from_offset("3")])
@pytest.mark.slow
async def test_a_transaction_starts_at_the_initial_position(
    hub_service: HubService, hub: str, database: Database, position: EventPosition
) -> None:
    """It needs a number to start from, however the position is given."""
    store = SqlStore(database)
    await publish(hub_service, hub, 6)
    subject = Subject(hub_service, hub, store, transactional=True, initial_position=position)
    first = 4 if position.value else 6
    async with subject.host.running(_write):
        await until(lambda: subject.state is PartitionState.RUNNING)
        await publish(hub_service, hub, 2)
        await until(lambda: _rows(database) == list(range(first, 8)))
    await store.close()


@pytest.mark.slow
async def test_the_threads_of_sessions_that_ended_are_gone(
    hub_service: HubService, hub: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition that is opened anew again and again, and a host that ended, leave none to the collector."""
    receive, failures = PartitionReceiver.receive, iter([BrokenError("Cut."), BrokenError("Cut again.")])

    async def break_twice(
        self: PartitionReceiver, max_events: int = 1000, max_wait_s: float | None = None, **named: Any
    ) -> list[ReceivedEvent]:
        for failure in failures:
            raise failure
        return await receive(self, max_events, max_wait_s)

    others = set(threading.enumerate())  # of other tests, which the collector has not come to yet

    def threads() -> list[str]:
        mine = set(threading.enumerate()) - others
        return [each.name for each in mine if each.name.startswith("tidegate partition")]

    monkeypatch.setattr(PartitionReceiver, "receive", break_twice)
    store = SqlStore(database)
    await publish(hub_service, hub, 1)
    subject = Subject(hub_service, hub, store, transactional=True)
    gc.disable()
    try:
        async with subject.host.running(_write):
            await until(lambda: _rows(database) == [0])
            await until(lambda: len(threads()) == 1)
        await until(lambda: not threads())
    finally:
        gc.enable()
    await store.close()


@pytest.mark.slow
async def test_a_stop_by_policy_keeps_the_partition_stopped(
    hub_service: HubService, hub: str, database: Database
) -> None:
    """Everything before the event is committed; the lease is kept, so no other host meets the same event."""

    class Picky(_Face):
        def process_events(self, context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
            if any(event.sequence_number == 4 for event in events):
                raise ValueError("not this one")
            super().process_events(context, events)

    store = SqlStore(database)
    await publish(hub_service, hub, 10)
    subject = Subject(hub_service, hub, store, failure_policy=FailurePolicy(FailureAction.STOP))
    other = Subject(hub_service, hub, store)
    async with subject.host.running(Picky):
        await until(lambda: subject.state is PartitionState.STOPPED)
        assert _rows(database) == [0, 1, 2, 3]
        async with other.host.running(Picky):
            await _see_renewals(store, subject.host.group, 2)
            assert other.host.statistics().partitions == {}
        found = subject.host.statistics().partitions["0"]
        assert isinstance(found.error, PartitionStoppedError)
        assert (found.state, found.epoch) == (PartitionState.STOPPED, 1)
        assert (found.next_sequence_number, found.events_processed) == (4, 4)
    assert [type(error) for error in subject.reported] == [PartitionStoppedError]
    await store.close()


async def test_a_host_counts_the_dead_letters_that_it_writes(
    hub_service: HubService, hub: str, database: Database
) -> None:
    """Those of batches that were committed, and those before a pause: a rate can be made of them."""

    def write(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        _write(context, events)
        if any(event.sequence_number in (2, 5, 6) for event in events):
            raise ValueError("not these")

    store = SqlStore(database)
    await publish(hub_service, hub, 10)
    policy = FailurePolicy(dead_letters_per_minute=2)
    subject = Subject(hub_service, hub, store, transactional=True, failure_policy=policy)
    async with subject.host.running(write):
        await until(lambda: subject.state is PartitionState.PAUSED)
        found = subject.host.statistics()
        assert found.partitions["0"].next_sequence_number == 6
        assert (found.dead_letters_total, len(DeadLetters(database).list())) == (2, 2)
    await store.close()


async def test_what_a_checkpoint_leaves_comes_again(
    hub_service: HubService, hub: str, database: Database
) -> None:
    """Each event is written once, wherever the handler checkpoints, and the host knows where it is."""
    calls: list[list[int]] = []

    def write_some(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        calls.append([event.sequence_number for event in events])
        _write(context, events[:3])
        context.checkpoint(events[min(2, len(events) - 1)])
        if events[3:]:
            _write(context, events[3:])  # undone

    store = SqlStore(database)
    await publish(hub_service, hub, 10)
    subject = Subject(hub_service, hub, store, transactional=True)
    async with subject.host.running(write_some):
        await until(lambda: _rows(database) == list(range(10)))
        await until(lambda: subject.host.statistics().events_processed == 10)
        assert subject.host.statistics().partitions["0"].next_sequence_number == 10
    assert subject.reported == []
    assert any(earlier[3:] == later for earlier, later in pairwise(calls))
    await store.close()


async def _see_renewals(store: SqlStore, group: GroupKey, count: int) -> None:
    """Return once the lease of partition 0 was seen renewed so often; every host looks once per renewal."""
    seen: set[datetime] = set()
    async with asyncio.timeout(60):
        while len(seen) <= count:
            seen.add((await store.list_leases(group)).leases["0"].renewed_at)
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_a_database_that_is_away_costs_no_batch(
    hub_service: HubService, hub: str, database: Database
) -> None:
    """It is reported, and the same batch runs again."""
    failures = 2

    class Away(SqlStore):
        """Its first transactions meet a database that does not answer."""

        def open_transactions(self, *arguments: Any, **named: Any) -> Any:
            transactions = super().open_transactions(*arguments, **named)
            process = transactions.process

            async def process_or_fail(*given: Any, **values: Any) -> Any:
                nonlocal failures
                if failures:
                    failures -= 1
                    raise DatabaseUnavailableError("The database is away.")
                return await process(*given, **values)

            transactions.process = process_or_fail  # type: ignore[method-assign]
            return transactions

    store = Away(database)
    await publish(hub_service, hub, 5)
    subject = Subject(hub_service, hub, store, transactional=True)
    async with subject.host.running(_write):
        await until(lambda: _rows(database) == list(range(5)))
    assert [type(error) for error in subject.reported] == [DatabaseUnavailableError] * 2
    await store.close()


@pytest.mark.slow
async def test_a_checkpoint_that_a_person_moves_is_gone_on_from(
    hub_service: HubService, hub: str, database: Database
) -> None:
    """The running transaction is fenced, and the host begins anew from where the checkpoint is now."""
    store = SqlStore(database)
    await publish(hub_service, hub, 4)
    subject = Subject(hub_service, hub, store, transactional=True)
    async with subject.host.running(_write):
        await until(lambda: _rows(database) == [0, 1, 2, 3])
        _forget_rows(database)
        await store.update_checkpoint(
            subject.host.group, ProcessorCheckpoint("0", 1), lease=None, is_rewind_allowed=True
        )
        await publish(hub_service, hub, 2)
        await until(lambda: _rows(database) == [2, 3, 4, 5])
    await store.close()


@pytest.mark.slow
@pytest.mark.parametrize("policy", list(PositionLostPolicy))
async def test_a_hub_made_anew_is_told_apart_in_transactions(
    hub_service: HubService, hub: str, database: Database, policy: PositionLostPolicy
) -> None:
    """The old hub's checkpoint is neither used nor silently overwritten."""
    store = SqlStore(database)
    await publish(hub_service, hub, 4)
    first = Subject(hub_service, hub, store, transactional=True)
    async with first.host.running(_write):
        await until(lambda: _rows(database) == [0, 1, 2, 3])
    delete_hub(hub_service, hub)
    hub_service.create_hub(hub, partition_count=1)
    await publish(hub_service, hub, 6)
    _forget_rows(database)
    second = Subject(hub_service, hub, store, transactional=True, on_position_lost=policy)
    async with second.host.running(_write):
        if policy is PositionLostPolicy.STOP:
            await until(lambda: second.state is PartitionState.STOPPED)
            expected = []
        else:
            await until(lambda: second.state is PartitionState.RUNNING)
            await publish(hub_service, hub, 1)
            expected = list(range(7)) if policy is PositionLostPolicy.EARLIEST else [6]
            await until(lambda: _rows(database) == expected)
    assert _rows(database) == expected
    assert [type(error) for error in second.reported] == [EventHubReplacedError]
    await store.close()


@pytest.mark.slow
async def test_a_transaction_that_hangs_is_fenced_by_the_next_epoch(
    hub_service: HubService, hub: str, database: Database
) -> None:
    """The hanging thread cannot be ended; when it goes on, what it wrote is rolled back."""
    release, hanging = threading.Event(), threading.Event()

    def hang_once(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        if not hanging.is_set():
            hanging.set()
            release.wait(30)
        _write(context, events)

    store = SqlStore(database)
    await publish(hub_service, hub, 5)
    subject = Subject(
        hub_service, hub, store, transactional=True, manager_options=STALLING, close_timeout_s=0.1
    )
    try:
        async with subject.host.running(hang_once):
            await until(lambda: "PartitionStalledError" in [type(each).__name__ for each in subject.reported])
            release.set()
            await until(lambda: _rows(database) == list(range(5)))
            await until(lambda: subject.state is PartitionState.RUNNING)
    finally:
        release.set()
    await store.close()
    assert _rows(database) == list(range(5))


@pytest.mark.slow
async def test_a_transaction_that_hangs_for_ever_holds_up_nobody(
    hub_service: HubService, database: Database
) -> None:
    """It is undone from outside and reported: both partitions go on although the call never returns."""
    hub = hub_service.create_hub(partition_count=2)
    release, hanging = threading.Event(), threading.Event()

    def hang_once(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        first = 100 * int(context.partition_id)
        numbers = [{"number": first + event.sequence_number} for event in events]
        context.connection.execute(insert(seen_table), numbers)
        if context.partition_id == "0" and not hanging.is_set():
            hanging.set()
            release.wait(60)

    store = SqlStore(database)
    subject = Subject(
        hub_service, hub, store, transactional=True, manager_options=STALLING, close_timeout_s=0.1
    )
    try:
        async with subject.host.running(hang_once):
            await publish(hub_service, hub, 5)
            await until(hanging.is_set)
            await publish(hub_service, hub, 4, partition_id="1")
            await until(lambda: len(_rows(database)) == 9)
            assert not release.is_set()
            assert "PartitionStalledError" in [type(each).__name__ for each in subject.reported]
    finally:
        release.set()
    await store.close()
    assert _rows(database) == [0, 1, 2, 3, 4, 100, 101, 102, 103]
