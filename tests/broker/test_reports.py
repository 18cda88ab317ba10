"""Reports of hosts whose stores are elsewhere: kept as official processors keep theirs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping

import pytest
from tests.storage.engines import Memory, MemoryEngine
from tests.support.clocks import SetClock

from tidegate.broker import Broker, EventHub
from tidegate.broker.blobs import store as stores
from tidegate.broker.blobs.accounts import DEVELOPMENT_ACCOUNT_ID, NAMESPACE_ACCOUNT_ID
from tidegate.broker.blobs.blob import NO_CONDITIONS
from tidegate.broker.blobs.groups import OWNER_CHARACTERS_MAX, REPORTS
from tidegate.broker.blobs.reports import Change
from tidegate.model.errors import NotFoundError, QuotaExceededError


class _World:
    """A broker over memory with a hub of three partitions and a group."""

    memory: Memory
    clock: SetClock
    broker: Broker
    steps = 0
    """Of the last report."""

    @property
    def hub(self) -> EventHub:
        return self.broker.event_hub("Hub")

    async def open(self) -> None:
        self.broker = await Broker.open(MemoryEngine(self.memory), clock=self.clock)

    async def report(
        self, owner: str, numbers: Mapping[str, int | None], *released: str, group: str = "Group"
    ) -> None:
        async def collect(steps: Iterator[Change | None]) -> list[Change]:
            made = [*steps]
            self.steps = len(made)
            return [*filter(None, made)]

        await self.broker.keep_report(
            self.hub, group, owner=owner, sequence_numbers=numbers, released=released, collect=collect
        )

    def shown(self) -> dict[str, tuple[str, int | None]]:
        """By partition of the group: owner and checkpoint."""
        groups = {
            each.consumer_group: each for each in self.broker.kept_groups(self.hub, is_newest_only=True)
        }
        found = groups["group"].partitions if "group" in groups else {}
        return {id_: (each.owner, each.sequence_number) for id_, each in found.items()}

    def etags(self) -> dict[str, str]:
        """Of all blobs of reports, by kind and partition."""
        account = self.hub.description.hub_id
        page = self.broker.blobs.page(account, REPORTS, prefix="", delimiter="", start="", count=100)
        blobs = [each.blob for each in page if not isinstance(each, str)]
        return {"/".join(each.name.split("/")[3:]): each.etag for each in blobs}


@pytest.fixture
async def world() -> AsyncIterator[_World]:
    """An open one."""
    world = _World()
    world.memory, world.clock = Memory(), SetClock()
    await world.open()
    hub = await world.broker.create_event_hub("Hub", partition_count=3)
    await hub.create_consumer_group("Group")
    yield world
    await world.broker.close()


async def test_a_group_is_shown_as_reported_also_after_a_restart(world: _World) -> None:
    """Owners and checkpoints by partition; partitions that do not exist are passed over."""
    await world.report("one", {"0": 7, "1": None, "3": 5, "x": 1})
    expected = {"0": ("one", 7), "1": ("one", None)}
    assert world.shown() == expected
    await world.broker.close()
    await world.open()
    assert world.shown() == expected


async def test_partitions_that_change_hands(world: _World) -> None:
    """A host releases what it has lost, but never what another one has reported meanwhile."""
    await world.report("one", {"0": 7, "1": 8, "2": 9})
    await world.report("two", {"1": 20})
    await world.report("one", {"0": 10}, "1", "2", "3", "x")
    assert world.shown() == {"0": ("one", 10), "1": ("two", 20), "2": ("", 9)}
    await world.report("one", {}, "0")
    assert world.shown() == {"0": ("", 10), "1": ("two", 20), "2": ("", 9)}


async def test_what_has_not_changed_is_not_written(world: _World) -> None:
    """But an owner once in half a minute, so that its age tells whether it lives."""
    await world.report("one", {"0": 7, "1": 8})
    before = world.etags()
    assert before.keys() == {"ownership/0", "ownership/1", "checkpoint/0", "checkpoint/1"}
    await world.report("one", {"0": 7, "1": 9})
    changed = {name for name, etag in world.etags().items() if etag != before[name]}
    assert changed == {"checkpoint/1"}
    before = world.etags()
    world.clock.advance(31)
    await world.report("one", {"0": 7, "1": 9})
    changed = {name for name, etag in world.etags().items() if etag != before[name]}
    assert changed == {"ownership/0", "ownership/1"}


async def test_each_partition_is_a_step(world: _World) -> None:
    """Also those of which nothing is written: 100 connections that reported 1,000 of them again and again
    kept others waiting for a second."""
    for _ in range(2):
        await world.report("one", {"0": 7, "1": None}, "2")
        assert world.steps >= 3


async def test_a_group_with_a_store_in_the_service_is_shown_from_there(world: _World) -> None:
    """Reports are passed over while it moves there, and counted again a minute after its last move."""
    account, blobs = world.hub.description.hub_id, world.broker.blobs
    await blobs.create_container(account, "store", {})
    name = "localhost/hub/group/checkpoint/0"
    await blobs.put(
        account, "store", name, NO_CONDITIONS, lease_id=None, content=b"", metadata={"sequencenumber": "3"}
    )
    world.clock.advance(59)
    await world.report("one", {"0": 4})
    assert world.shown() == {"0": ("", 3)}
    world.clock.advance(2)
    await world.report("one", {"0": 4})
    assert world.shown() == {"0": ("one", 4)}


async def test_the_development_account_silences_no_host(world: _World) -> None:
    """Its key is public: with a blob a minute, its holders had the reports of a group ignored for ever."""
    blobs, name = world.broker.blobs, "localhost/hub/group/checkpoint/0"
    await blobs.create_container(DEVELOPMENT_ACCOUNT_ID, "store", {})
    values = {"sequencenumber": "5"}
    await blobs.put(
        DEVELOPMENT_ACCOUNT_ID, "store", name, NO_CONDITIONS, lease_id=None, content=b"", metadata=values
    )
    assert world.shown() == {"0": ("", 5)}
    await world.report("one", {"0": 4})
    assert world.shown() == {"0": ("one", 4)}


async def test_a_group_that_leaves_for_the_account_of_the_namespace_is_shown_from_there(
    world: _World,
) -> None:
    """Old reports do not hide it; but the development account, whose key is public, does not hide them."""
    blobs, name = world.broker.blobs, "localhost/hub/group/checkpoint/0"
    await world.report("one", {"0": 4})
    for account, number, expected in (
        (DEVELOPMENT_ACCOUNT_ID, "5", ("one", 4)),
        (NAMESPACE_ACCOUNT_ID, "6", ("", 6)),
    ):
        world.clock.advance(61)
        await blobs.create_container(account, "store", {})
        values = {"sequencenumber": number}
        await blobs.put(account, "store", name, NO_CONDITIONS, lease_id=None, content=b"", metadata=values)
        assert world.shown() == {"0": expected}
    await world.report("one", {"0": 7})
    assert world.shown() == {"0": ("", 6)}
    world.clock.advance(61)
    await world.report("one", {"0": 7})
    assert world.shown() == {"0": ("one", 7)}


async def test_reports_of_many_hosts_at_once_are_kept(world: _World) -> None:
    """They take turns: together, their changes would be more than may wait in an account."""
    hub = await world.broker.create_event_hub("Large", partition_count=32)
    numbers = dict.fromkeys(hub.description.partition_ids, 1)

    async def collect(steps: Iterator[Change | None]) -> list[Change]:
        return [*filter(None, steps)]

    reports = (
        world.broker.keep_report(
            hub, "$Default", owner=f"host {host}", sequence_numbers=numbers, collect=collect
        )
        for host in range(10)
    )
    await asyncio.gather(*reports)
    (shown,) = world.broker.kept_groups(hub)
    assert {each.owner for each in shown.partitions.values()} == {"host 9"}


async def test_names_are_kept_short_and_printable(world: _World) -> None:
    """Whatever a client calls itself."""
    await world.report("Öl\n" + "x" * 10_000, {"0": 1})
    ((owner, _),) = world.shown().values()
    assert owner.startswith("\\xd6l\\nx")
    assert len(owner) == OWNER_CHARACTERS_MAX


async def test_an_owner_that_a_blob_names_is_kept_short(world: _World) -> None:
    """Pages repeat it in each row, five times as long where it is escaped."""
    account, blobs = world.hub.description.hub_id, world.broker.blobs
    await blobs.create_container(account, "store", {})
    name = "localhost/hub/group/ownership/0"
    metadata = {"ownerid": '"' * 8_000}
    await blobs.put(account, "store", name, NO_CONDITIONS, lease_id=None, content=b"", metadata=metadata)
    assert world.shown() == {"0": ('"' * OWNER_CHARACTERS_MAX, None)}


async def test_limits(world: _World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports count in the hub's account."""
    with pytest.raises(NotFoundError):
        await world.report("one", {"0": 7}, group="none")
    monkeypatch.setattr(stores, "BLOBS_MAX", 3)  # a report that waits counts as one
    await world.report("one", {"0": 7})
    with pytest.raises(QuotaExceededError):
        await world.report("one", {"0": 7, "1": 8})
