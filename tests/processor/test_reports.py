"""A host reports to the service: owners and lag of its group are known there, wherever its store is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.processor.hosts import PLAIN, QUICK, checkpoint_all, delete_hub, publish, until

from tidegate.client import EventHubAdministrator, EventHubConsumer
from tidegate.model.errors import BrokenError, InvalidArgumentError
from tidegate.processor import (
    EventProcessorHost,
    PartitionManagerOptions,
    PositionLostPolicy,
    ProcessorCheckpoint,
)
from tidegate.processor.host.reports import ServiceReports
from tidegate.processor.stores.directory import DirectoryStore
from tidegate.testing.hub import HubService
from tidegate.transport.tasks import TaskOwner

_Row = tuple[str, str, int | None, int | None]


@pytest.mark.slow
async def test_owners_and_lag_are_known_in_the_service(
    hub_service: HubService, hub: str, tmp_path: Path
) -> None:
    """Its name, its checkpoint and the lag, and nothing of its store; when it has ended, no owner."""
    connection_string = hub_service.hub_connection_string(hub)
    await publish(hub_service, hub, 5)
    host = EventProcessorHost(
        "first",
        connection_string=connection_string,
        store=DirectoryStore(tmp_path / "secret-place"),
        manager_options=QUICK,
        options=PLAIN,
    )
    async with EventHubAdministrator.from_connection_string(connection_string) as administrator:

        async def rows() -> list[_Row]:
            found = await administrator.list_consumers(hub)
            assert "secret-place" not in repr(found)
            return [(each.partition_id, each.owner, each.sequence_number, each.lag_events) for each in found]

        async def wait_for(wanted: list[_Row]) -> None:
            async with asyncio.timeout(60):
                while await rows() != wanted:  # noqa: ASYNC110 - asks the service, which tells only who asks
                    await asyncio.sleep(0.05)

        async with host.running(checkpoint_all):
            await wait_for([("0", "first", 4, 0)])
            await publish(hub_service, hub, 2)
            await until(lambda: host.statistics().events_processed == 7)
        await wait_for([("0", "", 6, 0)])
        await publish(hub_service, hub, 3)
        await wait_for([("0", "", 6, 3)])


@pytest.mark.slow
async def test_a_hub_that_is_created_again_is_reported_too(
    hub_service: HubService, hub: str, tmp_path: Path
) -> None:
    """The host goes on with the new hub's events, and reports its checkpoints."""
    connection_string = hub_service.hub_connection_string(hub)
    await publish(hub_service, hub, 5)
    host = EventProcessorHost(
        connection_string=connection_string,
        store=DirectoryStore(tmp_path),
        manager_options=PartitionManagerOptions(lease_duration_s=2.0, renew_interval_s=0.2),
        options=replace(PLAIN, on_position_lost=PositionLostPolicy.EARLIEST),
    )
    async with EventHubAdministrator.from_connection_string(connection_string) as administrator:

        async def wait_for(number: int) -> None:
            async with asyncio.timeout(60):
                found: list[int | None] = []
                while found != [number]:
                    await asyncio.sleep(0.1)
                    found = [each.sequence_number for each in await administrator.list_consumers(hub)]

        async with host.running(checkpoint_all):
            await wait_for(4)
            delete_hub(hub_service, hub)
            hub_service.create_hub(hub, partition_count=1)
            await publish(hub_service, hub, 2)
            await wait_for(1)


class _Consumer:
    """Notes what is reported, or fails."""

    def __init__(self) -> None:
        self.reported: list[tuple[dict[str, int | None], list[str]]] = []
        self.error: Exception | None = None

    async def report(
        self, owner: str, sequence_numbers: dict[str, int | None], *, released: list[str]
    ) -> None:
        if sequence_numbers or released:
            self.reported.append((sequence_numbers, released))
        if self.error is not None:
            raise self.error


class _Checkpoints:
    """The group's; of the hub that was created at 50 and of an earlier one."""

    async def read(self) -> dict[str, ProcessorCheckpoint]:
        return {
            "0": ProcessorCheckpoint("0", 5, "5", event_hub_created_at_ms=50),
            "1": ProcessorCheckpoint("1", 6, "6", event_hub_created_at_ms=49),
            "2": ProcessorCheckpoint("2", 7, "7"),
        }


def _reports(consumer: Any, owned: Callable[[], set[str]]) -> ServiceReports:
    checkpoints: Any = _Checkpoints()
    return ServiceReports("host", consumer, checkpoints, owned, lambda: 50, interval_s=0.01)


async def test_checkpoints_of_an_earlier_hub_are_not_reported() -> None:
    """What the host has lost is released once, and the rest at its end."""
    consumer, owned = _Consumer(), {"0", "1", "2"}
    reports = _reports(consumer, lambda: owned)
    async with TaskOwner("host") as tasks:
        tasks.start(reports.run(), name="reports")
        await until(lambda: bool(consumer.reported))
        assert consumer.reported[-1] == ({"0": 5, "1": None, "2": 7}, [])
        owned.remove("1")
        await until(lambda: consumer.reported[-1] == ({"0": 5, "2": 7}, ["1"]))
        await until(lambda: consumer.reported[-1] == ({"0": 5, "2": 7}, []))
    await reports.end()
    assert consumer.reported[-1] == ({"0": 5, "2": 7}, ["0", "2"])


async def test_a_report_that_fails_is_made_again() -> None:
    """An outage is waited for; an earlier version of the service, which knows no reports, is left alone."""
    consumer = _Consumer()
    consumer.error = BrokenError("away")
    async with TaskOwner("host") as tasks:
        running = tasks.start(_reports(consumer, lambda: {"0"}).run(), name="reports")
        await until(lambda: len(consumer.reported) >= 3)
        consumer.error = InvalidArgumentError("$management has no operation 'reportConsumer'.")
        await asyncio.wait_for(running, 60)


@pytest.mark.parametrize("namespace_id", [None, "id"])
@pytest.mark.slow
async def test_a_service_without_an_identity_gets_no_report(
    hub_service: HubService,
    hub: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    namespace_id: str | None,
) -> None:
    """Azure has none, and does not know the request."""
    reported, options = asyncio.Event(), replace(QUICK, renew_interval_s=0.2)
    properties_of = EventHubConsumer.get_event_hub_properties

    async def without_id(consumer: EventHubConsumer) -> object:
        found = await properties_of(consumer)
        object.__setattr__(found, "namespace_id", namespace_id)
        return found

    async def note(consumer: EventHubConsumer, owner: str, numbers: object, *, released: object) -> None:
        reported.set()

    monkeypatch.setattr(EventHubConsumer, "get_event_hub_properties", without_id)
    monkeypatch.setattr(EventHubConsumer, "report", note)
    host = EventProcessorHost(
        connection_string=hub_service.hub_connection_string(hub),
        store=DirectoryStore(tmp_path),
        manager_options=options,
        options=PLAIN,
    )
    async with host.running(checkpoint_all):
        if namespace_id is not None:
            await asyncio.wait_for(reported.wait(), 60)
        else:
            await until(lambda: bool(host.statistics().partitions))
            await asyncio.sleep(3 * options.renew_interval_s)
    assert reported.is_set() == (namespace_id is not None)


@pytest.mark.slow
async def test_a_host_with_all_partitions_of_a_large_hub(hub_service: HubService) -> None:
    """A request may have few thousand values, and a hub a thousand partitions."""
    hub = hub_service.create_hub(partition_count=1024)
    connection_string = hub_service.hub_connection_string(hub)
    numbers: dict[str, int | None] = {str(each): each for each in range(1024)}
    async with (
        EventHubConsumer.from_connection_string(connection_string) as consumer,
        EventHubAdministrator.from_connection_string(connection_string) as administrator,
    ):
        await consumer.report("large", numbers)
        found = await administrator.list_consumers(hub)
        assert {each.partition_id: each.sequence_number for each in found} == numbers
        assert {each.owner for each in found} == {"large"}
        last: dict[str, int | None] = {each: int(each) + 1 for each in numbers}
        await consumer.report("another", {}, released=numbers)
        await consumer.report("large", last, released=numbers)
        found = await administrator.list_consumers(hub)
        assert {each.owner for each in found} == {""}
        assert {each.partition_id: each.sequence_number for each in found} == last
