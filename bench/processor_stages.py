"""The Event Processor Host beside the official SDK's processor: 16 partitions, one process, one hub.

Every rate is from the first call of the handler to the last one's end: what a host does once, to get its
leases and attach its receivers, is not in it, neither here nor there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from azure.eventhub import EventData as SdkEventData
from azure.eventhub.aio import EventHubConsumerClient
from azure.eventhub.aio import PartitionContext as SdkPartitionContext

from bench.measure import Measurement, timed
from tidegate.model.events import EventData, ReceivedEvent
from tidegate.processor import (
    DirectoryStore,
    EventProcessorHost,
    PartitionContext,
    TransactionContext,
)
from tidegate.processor.handlers import TransactionalHandler
from tidegate.sql import Database, Pipeline, SqlStore
from tidegate.testing.hub import HubProcess

PARTITIONS: Final = 16
_TIMEOUT_S: Final = 300.0
_LOOK_S: Final = 0.005


class Progress:
    """Counts events from the first call on, and tells when the last one is done. For one event loop."""

    def __init__(self, events: int) -> None:
        self._events = events
        self._done = 0
        self.first = asyncio.Event()
        self.last = asyncio.Event()

    def add(self, count: int) -> None:
        """Count events of a call that has done its work."""
        self._done += count
        self.first.set()
        if self._done >= self._events:
            self.last.set()

    async def measure(self, name: str, service: HubProcess, event_bytes: int) -> Measurement:
        """Wait for the first event, then measure until the last one."""
        async with asyncio.timeout(_TIMEOUT_S):
            await self.first.wait()
            before = self._done
            with timed(name, events=0, payload_bytes=0, service_pid=service.process_id) as measurement:
                await self.last.wait()
        measurement.events = self._done - before
        measurement.payload_bytes = measurement.events * event_bytes
        return measurement


def official_processor(service: HubProcess, hub: str, events: int, event_bytes: int) -> Measurement:
    """The unmodified official ``EventHubConsumerClient.receive_batch``, asyncio, all partitions.

    The asyncio face is the faster of its two here. Its checkpoints go to its own in-memory store, which
    writes nothing anywhere: the fairest to it, because each of its durable stores would cost it more.
    """

    async def run() -> Measurement:
        progress = Progress(events)

        async def on_event_batch(context: SdkPartitionContext, batch: list[SdkEventData]) -> None:
            for event in batch:
                _ = event.sequence_number
            await context.update_checkpoint(batch[-1])
            progress.add(len(batch))

        client = EventHubConsumerClient.from_connection_string(
            service.connection_string, "$Default", eventhub_name=hub
        )
        async with client, asyncio.TaskGroup() as tasks:
            tasks.create_task(
                client.receive_batch(on_event_batch, max_batch_size=300, starting_position="-1")
            )
            measurement = await progress.measure("official processor", service, event_bytes)
            await client.close()
        return measurement

    return asyncio.run(run())


def directory_host(
    service: HubProcess, hub: str, events: int, event_bytes: int, directory: Path
) -> Measurement:
    """Our host with a directory of checkpoints; the handler looks at each number, each batch checkpoints."""

    async def run() -> Measurement:
        progress = Progress(events)

        async def handle(context: PartitionContext, batch: Sequence[ReceivedEvent]) -> None:
            for event in batch:
                _ = event.sequence_number
            await context.checkpoint()
            progress.add(len(batch))

        host = EventProcessorHost(
            "bench", hub, "$Default", service.connection_string, DirectoryStore(directory / "host")
        )
        await host.register(handle)
        try:
            return await progress.measure("host, directory", service, event_bytes)
        finally:
            await host.unregister()

    return asyncio.run(run())


def pipeline_host(
    name: str, service: HubProcess, hub: str, events: int, event_bytes: int, database_url: str
) -> Measurement:
    """Our host in transactions, with a ``Pipeline``: a Python function makes one small row of each event."""
    table = row_table()
    pipeline = Pipeline("bench", hub, table, _row)
    return _transactional_host(name, service, hub, events, event_bytes, database_url, table, pipeline)


def statements_host(
    name: str, service: HubProcess, hub: str, events: int, event_bytes: int, database_url: str
) -> Measurement:
    """Our host in transactions, with a plain handler that inserts its batch's rows by one executemany."""
    table = row_table()
    insert = sa.insert(table)

    def handle(context: TransactionContext, batch: Sequence[ReceivedEvent]) -> None:
        context.connection.execute(insert, [_row(event) for event in batch])

    return _transactional_host(name, service, hub, events, event_bytes, database_url, table, handle)


def inserting_host(
    name: str, service: HubProcess, hub: str, events: int, event_bytes: int, database_url: str
) -> Measurement:
    """The same, which inserts them by ``context.insert``."""
    table = row_table()

    def handle(context: TransactionContext, batch: Sequence[ReceivedEvent]) -> None:
        context.insert(table, [_row(event) for event in batch])

    return _transactional_host(name, service, hub, events, event_bytes, database_url, table, handle)


def publishing_host(
    name: str, service: HubProcess, hub: str, events: int, event_bytes: int, database_url: str, target: str
) -> Measurement:
    """The same, which also publishes each event to ``target``: the last one counts when all are there."""
    table = row_table()
    insert = sa.insert(table)

    def handle(context: TransactionContext, batch: Sequence[ReceivedEvent]) -> None:
        context.connection.execute(insert, [_row(event) for event in batch])
        for event in batch:
            context.publish(target, EventData(event.body), partition_key=context.partition_id)

    def done(host: EventProcessorHost) -> int:
        found = host.statistics()
        is_there = found.published is not None and found.published.relayed_total >= events
        return found.events_processed if is_there else min(found.events_processed, events - 1)

    return _transactional_host(name, service, hub, events, event_bytes, database_url, table, handle, done)


def _committed(host: EventProcessorHost) -> int:
    return host.statistics().events_processed


def _transactional_host(
    name: str,
    service: HubProcess,
    hub: str,
    events: int,
    event_bytes: int,
    database_url: str,
    table: sa.Table,
    handler: Pipeline | TransactionalHandler,
    done_by: Callable[[EventProcessorHost], int] = _committed,
) -> Measurement:
    """An event counts when it is done; the database counts the rows afterwards."""

    async def run(store: SqlStore) -> Measurement:
        progress = Progress(events)
        host = EventProcessorHost(
            "bench", hub, "$Default", service.connection_string, store, transactional=True
        )

        async def watch() -> None:
            seen = 0
            while seen < events:
                done = done_by(host)
                if done > seen:
                    progress.add(done - seen)
                    seen = done
                await asyncio.sleep(_LOOK_S)

        await host.register(handler)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(watch())
                return await progress.measure(name, service, event_bytes)
        finally:
            await host.unregister()
            await store.close()

    with Database.open(database_url) as database:
        database.ensure_table(table)
        measurement = asyncio.run(run(SqlStore(database)))
        with database.read() as connection:
            rows = connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
    assert rows == events, f"{rows} rows of {events} events"
    return measurement


def row_table() -> sa.Table:
    """The table of small rows, without any row-by-row type."""
    return sa.Table(
        "bench_row",
        sa.MetaData(),
        sa.Column("partition_id", sa.String(8), primary_key=True),
        sa.Column("sequence_number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("device", sa.String(16)),
        sa.Column("body_bytes", sa.Integer),
        sa.Column("enqueued_time_ms", sa.BigInteger),
    )


def _row(event: ReceivedEvent) -> dict[str, object]:
    return {
        "partition_id": event.partition_id,
        "sequence_number": event.sequence_number,
        "device": event.properties.get("device"),
        "body_bytes": len(event.body),
        "enqueued_time_ms": event.enqueued_time_ms,
    }
