"""Hosts that join and leave in order, on every store: no event is handled twice, and none is lost."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, select
from tests.processor.hosts import PLAIN, QUICK, publish, until
from tests.support.azurite import AzuriteServer

from tidegate.model.events import ReceivedEvent
from tidegate.processor import (
    DirectoryStore,
    EventProcessorHost,
    MemoryStore,
    PartitionContext,
    ProcessorStore,
    TransactionContext,
)
from tidegate.sql import Database, SqlStore
from tidegate.testing.hub import HubService
from tidegate.transport.clock import SystemClock

SMALL = replace(PLAIN, max_batch_size=4)
"""Many calls, so that a partition is never asked for between two of them alone."""
ROUNDS = 7
EACH = 25
"""Events of a partition and round."""


@pytest.fixture(params=["memory", "directory", "sqlite", "postgresql", "blob"])
async def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ProcessorStore]:
    """A store of each kind."""
    async with AsyncExitStack() as stack:
        store: ProcessorStore
        if request.param == "memory":
            store = MemoryStore(SystemClock())
        elif request.param == "directory":
            store = DirectoryStore(tmp_path / "store")
        elif request.param == "blob":
            from tidegate.processor.stores.blob import BlobStore

            azurite: AzuriteServer = request.getfixturevalue("azurite")
            place = (azurite.connection_string(), azurite.create_container())
            store = BlobStore.from_connection_string(*place)
        else:
            url: str = request.getfixturevalue(f"{request.param}_url")
            store = SqlStore(stack.enter_context(Database.open(url)))
        stack.push_async_callback(store.close)
        yield store


def _host(service: HubService, hub: str, store: ProcessorStore, name: str) -> EventProcessorHost:
    return EventProcessorHost(
        name,
        hub,
        connection_string=service.hub_connection_string(hub),
        store=store,
        options=SMALL,
        manager_options=QUICK,
    )


def _is_even(hosts: Sequence[EventProcessorHost], partition_count: int) -> bool:
    counts = [len(host.statistics().partitions) for host in hosts]
    return sum(counts) == partition_count and max(counts) - min(counts) <= 1


@pytest.mark.slow
async def test_hosts_that_join_and_leave_in_order_handle_each_event_once(
    hub_service: HubService, any_store: ProcessorStore
) -> None:
    """700 events, while hosts come and go: the calls checkpoint, and none is repeated by the next owner."""
    hub = hub_service.create_hub(partition_count=4)
    handled: Counter[tuple[str, int]] = Counter()
    running: Counter[str] = Counter()
    overlaps: list[str] = []

    async def handle(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        running[context.partition_id] += 1
        overlaps.extend([context.partition_id] if running[context.partition_id] > 1 else [])
        handled.update((context.partition_id, event.sequence_number) for event in events)
        await asyncio.sleep(0.02)
        await context.checkpoint()
        running[context.partition_id] -= 1

    hosts: list[EventProcessorHost] = []
    try:
        for number in range(ROUNDS):
            if number % 3 == 2:
                await hosts.pop(0).unregister()
            else:
                hosts.append(_host(hub_service, hub, any_store, f"host-{number}"))
                await hosts[-1].register(handle)
            for partition in range(4):
                await publish(hub_service, hub, EACH, partition_id=str(partition))
            await until(lambda: _is_even(hosts, 4))
        await until(lambda: len(handled) == 4 * ROUNDS * EACH)
    finally:
        for host in hosts:
            await host.unregister()
    assert [(event, count) for event, count in handled.items() if count > 1] == []
    assert overlaps == []


@pytest.mark.slow
async def test_the_next_owner_waits_for_the_call_and_its_checkpoint(
    hub_service: HubService, any_store: ProcessorStore
) -> None:
    """A call that runs when another host asks is finished first."""
    hub = hub_service.create_hub(partition_count=2)
    begun, may_end = Counter[str](), asyncio.Event()
    numbers: dict[str, list[int]] = {"first": [], "second": []}

    async def slowly(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        begun[context.partition_id] += 1
        await may_end.wait()
        numbers["first"] += [event.sequence_number for event in events]
        await context.checkpoint()

    async def at_once(context: PartitionContext, events: Sequence[ReceivedEvent]) -> None:
        numbers["second"] += [event.sequence_number for event in events]
        await context.checkpoint()

    async def is_asked() -> bool:
        leases = (await any_store.list_leases(first.group)).leases
        return any(lease.requested_by == "second" for lease in leases.values())

    for partition in "01":
        await publish(hub_service, hub, 4, partition_id=partition)
    first, second = (_host(hub_service, hub, any_store, name) for name in ("first", "second"))
    async with first.running(slowly):
        await until(lambda: len(begun) == 2)
        async with second.running(at_once):
            async with asyncio.timeout(30):
                while not await is_asked():  # noqa: ASYNC110 - a store reports nothing
                    await asyncio.sleep(0.05)
            assert numbers == {"first": [], "second": []}
            may_end.set()
            await until(lambda: _is_even([first, second], 2))
            for partition in "01":
                await publish(hub_service, hub, 4, partition_id=partition)
            await until(lambda: len(numbers["first"]) + len(numbers["second"]) >= 16)
    assert sorted(numbers["first"]) == sorted([*range(8), *range(4)])
    assert numbers["second"] == [4, 5, 6, 7]


sink = Table(
    "sink",
    MetaData(),
    Column("partition_id", String, nullable=False),
    Column("sequence_number", Integer, nullable=False),
)


async def test_an_owner_that_hangs_is_overtaken_and_nothing_is_there_twice(
    hub_service: HubService, postgresql_url: str
) -> None:
    """Both hosts run a transaction for the same events, as the first does not answer: one of them commits."""
    hub = hub_service.create_hub(partition_count=2)
    may_end = threading.Event()
    calls: list[tuple[str, str]] = []

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        calls.append((context.owner, context.partition_id))
        if context.owner == "hanging":
            assert may_end.wait(60)
        rows = [
            {"partition_id": context.partition_id, "sequence_number": event.sequence_number}
            for event in events
        ]
        context.connection.execute(sink.insert(), rows)

    for partition in "01":
        await publish(hub_service, hub, 4, partition_id=partition)
    with Database.open(postgresql_url) as database:
        database.ensure_table(sink)
        store = SqlStore(database)
        options = replace(QUICK, lease_duration_s=3.0, renew_interval_s=1.0)
        first, second = (
            EventProcessorHost(
                name,
                hub,
                connection_string=hub_service.hub_connection_string(hub),
                store=store,
                options=replace(SMALL, close_timeout_s=60.0),
                manager_options=options,
                transactional=True,
            )
            for name in ("hanging", "second")
        )
        async with AsyncExitStack() as stack:
            stack.push_async_callback(store.close)
            await stack.enter_async_context(first.running(handle))
            stack.callback(may_end.set)
            await until(lambda: len(calls) == 2)
            await stack.enter_async_context(second.running(handle))
            await until(lambda: len(second.statistics().partitions) == 1)
            may_end.set()
            await until(lambda: _is_even([first, second], 2))
            for partition in "01":
                await publish(hub_service, hub, 4, partition_id=partition)
            await until(lambda: len(_rows(database)) >= 16)
        assert _rows(database) == [(partition, number) for partition in "01" for number in range(8)]


def _rows(database: Database) -> list[tuple[str, int]]:
    with database.read() as connection:
        return sorted((row.partition_id, row.sequence_number) for row in connection.execute(select(sink)))
