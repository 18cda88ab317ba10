"""Hosts whose handlers publish: the relay runs with the host, says what waits, and ends last."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.processor.hosts import PLAIN, QUICK, delete_hub, publish, until

from tidegate.cli.hosts.report import HostReport
from tidegate.client import BlockingConsumer
from tidegate.model.events import EventData, ReceivedEvent
from tidegate.processor import EventProcessorHost, RelayStatistics, TransactionContext
from tidegate.sql import Database, SqlStore
from tidegate.sql.outbox import relay
from tidegate.testing.hub import HubService


def make_host(service: HubService, hub: str, store: SqlStore) -> EventProcessorHost:
    """A host of this process."""
    return EventProcessorHost(
        event_hub=hub,
        connection_string=service.connection_string,
        store=store,
        options=PLAIN,
        manager_options=QUICK,
        transactional=True,
    )


def bodies(service: HubService, hub: str) -> list[bytes]:
    """Of all events of a hub of one partition."""
    with BlockingConsumer(service.connection_string, hub) as consumer:
        numbers = range(consumer.get_partition_properties("0").next_sequence_number)
        return [event.body for event in consumer.read_events(hub, "0", numbers)]


@pytest.mark.slow
async def test_a_host_publishes_and_reports_it(
    hub_service: HubService, hub: str, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit wakes its relay; a hub that is gone is reported, and the others are not affected."""
    monkeypatch.setattr(relay, "_POLL_S", 1000.0)
    targets = [hub_service.create_hub(partition_count=1) for _ in range(2)]

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        for event in events:
            for target in targets:
                context.publish(target, EventData(event.body))

    with Database.open(sqlite_url) as database:
        store = SqlStore(database)
        host = make_host(hub_service, hub, store)

        def report() -> HostReport:
            return HostReport.of(host)

        async with host.running(handle):
            await publish(hub_service, hub, 100)
            await until(lambda: host.statistics().published == RelayStatistics(0, 200, None))
            delete_hub(hub_service, targets[0])
            await publish(hub_service, hub, 50)
            await until(lambda: report().outbox_events == 50)
            assert report().relayed_total == 250
            assert targets[0] in (report().outbox_error or "")
            assert bodies(hub_service, targets[1])[100:] == [b"%d" % number for number in range(50)]
        await store.close()


@pytest.mark.slow
async def test_a_host_that_ends_sends_what_it_has_stored(
    hub_service: HubService, hub: str, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if its relay had no turn since the commit."""
    target = hub_service.create_hub(partition_count=1)
    monkeypatch.setattr(relay.OutboxRelay, "wake", lambda self: None)
    monkeypatch.setattr(relay, "_POLL_S", 1000.0)

    def handle(context: TransactionContext, events: Sequence[ReceivedEvent]) -> None:
        for event in events:
            context.publish(target, EventData(event.body))

    with Database.open(sqlite_url) as database:
        store = SqlStore(database)
        host = make_host(hub_service, hub, store)
        async with host.running(handle):
            await publish(hub_service, hub, 100)
            await until(lambda: host.statistics().events_total == 100)
            assert bodies(hub_service, target) == []
        assert bodies(hub_service, target) == [b"%d" % number for number in range(100)]
        await store.close()
