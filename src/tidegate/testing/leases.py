"""The conformance suite of lease managers: what a host relies on; run as ``tidegate.testing.stores`` says."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from typing import Final

from tidegate.model.errors import AlreadyExistsError, InvalidArgumentError
from tidegate.processor.host.name_claim import NameClaim
from tidegate.processor.lease import GroupKey, Lease, LeaseManager, LeaseState
from tidegate.processor.options import PartitionManagerOptions
from tidegate.testing.groups import HOSTS, Suite, is_refused, make_group, open_group, other_groups
from tidegate.transport.clock import SystemClock
from tidegate.transport.tasks import TaskOwner

_LEASE_DURATION_S: Final = 2.0
"""Longer than one second, the precision of some stores' clocks."""
_NAME_DURATION_S: Final = 4.0
"""Of the lease that is a host's name, which is renewed while others run."""
_WAIT_S_MAX: Final = 30.0


class LeaseManagerConformance(Suite, ABC):
    """Leases: one winner, versions, epochs, renewal, release, expiry."""

    walk_steps: int = 150
    """Operations of the random walk; lower it for a slow store."""

    @abstractmethod
    async def make_store(self) -> LeaseManager:
        """Create a store object; all those of one test use the same location.

        A store that exists only in its object returns the same one each time. The suite closes each returned
        object that has ``close`` once, at the end of the test.
        """

    async def pass_time(self, store: LeaseManager, seconds: float) -> None:
        """Wait until the store's clock has advanced by ``seconds``; override it for a simulated clock."""
        group = make_group()
        until = (await store.list_leases(group)).now.timestamp() + seconds
        async with asyncio.timeout(_WAIT_S_MAX):
            # Polled: a store's clock reports nothing.
            while (await store.list_leases(group)).now.timestamp() < until:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    def next_epoch(self, store: LeaseManager, lease: Lease) -> int:
        """The epoch of the next owner of the partition after ``lease``."""
        return lease.epoch + 1 if self.are_epochs_kept(store) else 0

    async def test_a_new_group_has_no_leases(self) -> None:
        """The first host finds no leases, and the time against which leases are judged."""
        async with open_group(self.make_store) as (group, store, _):
            snapshot = await store.list_leases(group)
            assert dict(snapshot.leases) == {}
            assert snapshot.now.tzinfo is not None

    async def test_an_acquired_lease_is_listed(self) -> None:
        """Every host sees the winner's lease, with times of the store's clock."""
        async with open_group(self.make_store) as (group, store, other):
            before = (await store.list_leases(group)).now
            lease = await store.acquire(group, "3", "host-a", expected=None)
            assert lease is not None
            assert (lease.partition_id, lease.owner) == ("3", "host-a")
            assert lease.epoch == (1 if self.are_epochs_kept(store) else 0)
            assert lease.acquired_at is None or lease.acquired_at == lease.renewed_at
            snapshot = await other.list_leases(group)
            assert dict(snapshot.leases) == {"3": lease}
            assert before <= lease.renewed_at <= snapshot.now

    async def test_a_hosts_name_has_one_live_instance(self) -> None:
        """A second instance gets an error while the first one lives, its successor the name once the claim of
        a killed one has expired, or at once if it was released."""
        async with open_group(self.make_store) as (group, store, other), TaskOwner("hosts") as tasks:
            first, second, third, fourth = (
                _name_claim(group, each, number) for number, each in enumerate((store, other) * 2)
            )
            await first.take()
            living = tasks.start(first.keep(), name="first")
            assert await is_refused(second.take(), AlreadyExistsError)
            living.cancel()
            successor = tasks.start(third.take(), name="third")
            await self.pass_time(store, _NAME_DURATION_S)
            await successor
            assert await is_refused(first.keep(), AlreadyExistsError)
            await third.release()
            await fourth.take()
            assert dict((await store.list_leases(group)).leases) == {}

    async def test_one_of_many_gets_a_new_partition(self) -> None:
        """Hosts that start simultaneously do not get the same partition twice."""
        async with open_group(self.make_store) as (group, *stores):
            answers = await asyncio.gather(
                *(
                    stores[host % 2].acquire(group, "0", f"host-{host}", expected=None)
                    for host in range(HOSTS)
                )
            )
            winners = [lease for lease in answers if lease is not None]
            assert len(winners) == 1
            assert dict((await stores[0].list_leases(group)).leases) == {"0": winners[0]}

    async def test_one_of_many_steals_a_partition(self) -> None:
        """If several hosts steal a partition simultaneously, exactly one gets it."""
        async with open_group(self.make_store) as (group, *stores):
            first = await acquire(stores[0], group, "0", "host-a")
            answers = await asyncio.gather(
                *(
                    stores[host % 2].acquire(group, "0", f"thief-{host}", expected=first)
                    for host in range(HOSTS)
                )
            )
            winners = [lease for lease in answers if lease is not None]
            assert len(winners) == 1
            assert winners[0].epoch == self.next_epoch(stores[0], first)
            assert winners[0].version != first.version
            assert dict((await stores[1].list_leases(group)).leases) == {"0": winners[0]}

    async def test_a_lease_that_is_there_is_not_new(self) -> None:
        """A host that has not seen another's lease cannot overwrite it, released or not."""
        async with open_group(self.make_store) as (group, store, other):
            lease = await acquire(store, group, "0", "host-a")
            assert await other.acquire(group, "0", "host-b", expected=None) is None
            await store.release(group, [lease])
            assert await other.acquire(group, "0", "host-b", expected=None) is None

    async def test_a_renewal_comes_before_a_steal(self) -> None:
        """A steal based on the lease before its renewal is refused, because the owner is alive."""
        async with open_group(self.make_store) as (group, store, other):
            seen = await acquire(store, group, "0", "host-a")
            renewed = (await store.renew(group, [seen]))["0"]
            assert await other.acquire(group, "0", "host-b", expected=seen) is None
            assert dict((await other.list_leases(group)).leases) == {"0": renewed}

    async def test_a_stolen_lease_is_lost(self) -> None:
        """The former owner can neither renew nor release the lease."""
        async with open_group(self.make_store) as (group, store, other):
            old = await acquire(store, group, "0", "host-a")
            new = await acquire(other, group, "0", "host-b", expected=old)
            assert dict(await store.renew(group, [old])) == {}
            await store.release(group, [old])
            assert dict((await store.list_leases(group)).leases) == {"0": new}

    async def test_an_owner_may_acquire_its_own_lease_anew(self) -> None:
        """A host that restarts under its name gets a new epoch, which fences its former self."""
        async with open_group(self.make_store) as (group, store, _):
            old = await acquire(store, group, "0", "host-a")
            new = await acquire(store, group, "0", "host-a", expected=old)
            assert new.epoch == self.next_epoch(store, old)
            assert dict(await store.renew(group, [old])) == {}

    async def test_many_leases_are_renewed_at_once(self) -> None:
        """The answer contains exactly the leases that are still current; a renewal keeps the epoch."""
        async with open_group(self.make_store) as (group, store, other):
            leases = [await acquire(store, group, str(partition), "host-a") for partition in range(6)]
            await acquire(other, group, "2", "host-b", expected=leases[2])
            await other.release(group, [leases[4]])
            renewed = await store.renew(group, leases)
            assert sorted(renewed) == ["0", "1", "3", "5"]
            listed = (await other.list_leases(group)).leases
            for partition, lease in renewed.items():
                old = leases[int(partition)]
                assert listed[partition] == lease
                assert (lease.owner, lease.epoch) == ("host-a", old.epoch)
                assert lease.acquired_at == old.acquired_at
                assert lease.renewed_at >= old.renewed_at
            assert (listed["2"].owner, listed["4"].owner) == ("host-b", "")
            again = await store.renew(group, list(renewed.values()))
            assert sorted(again) == ["0", "1", "3", "5"]

    async def test_nothing_to_renew_or_release(self) -> None:
        """A host without partitions renews and releases nothing, and gets an empty answer."""
        async with open_group(self.make_store) as (group, store, _):
            assert dict(await store.renew(group, [])) == {}
            await store.release(group, [])
            assert dict((await store.list_leases(group)).leases) == {}

    async def test_a_released_lease_is_free_at_once(self) -> None:
        """The next owner need not wait for the lease to expire, and epochs continue from where they were."""
        async with open_group(self.make_store) as (group, store, other):
            leases = [await acquire(store, group, str(partition), "host-a") for partition in range(3)]
            await store.release(group, leases[:2])
            snapshot = await other.list_leases(group)
            for lease in leases[:2]:
                released = snapshot.leases[lease.partition_id]
                assert (released.owner, released.epoch) == ("", lease.epoch)
                assert released.is_expired(snapshot.now, 3600)
            assert snapshot.leases["2"] == leases[2]
            assert dict(await store.renew(group, leases[:1])) == {}
            new = await acquire(other, group, "0", "host-b", expected=snapshot.leases["0"])
            assert new.epoch == self.next_epoch(store, leases[0])

    async def test_a_lease_runs_out_by_the_stores_clock(self) -> None:
        """An expired lease can be acquired; a renewed one cannot."""
        async with open_group(self.make_store) as (group, store, other):
            kept = await acquire(store, group, "0", "host-a")
            left = await acquire(store, group, "1", "host-a")
            snapshot = await other.list_leases(group)
            assert not any(one.is_expired(snapshot.now, 60) for one in snapshot.leases.values())
            await self.pass_time(store, _LEASE_DURATION_S + 1)
            assert sorted(await store.renew(group, [kept])) == ["0"]
            snapshot = await other.list_leases(group)
            assert not snapshot.leases["0"].is_expired(snapshot.now, _LEASE_DURATION_S)
            assert snapshot.leases["1"].is_expired(snapshot.now, _LEASE_DURATION_S)
            # Expired is not gone: until another host acquires it, its owner may still renew it.
            assert sorted(await store.renew(group, [left])) == ["1"]

    async def test_a_partition_is_handed_over_to_the_host_that_asked(self) -> None:
        """Its owner reads the request, which outlasts renewals, and releases the lease to that host."""
        async with open_group(self.make_store) as (group, store, other):
            lease = await acquire(store, group, "0", "host-a")
            assert (lease.requested_by, lease.requested_at) == ("", None)
            await other.request(group, lease, "host-b")
            # The owner may renew before it has read the request.
            assert sorted(await store.renew(group, [lease])) == ["0"]
            snapshot = await store.list_leases(group)
            asked = snapshot.leases["0"]
            assert (asked.owner, asked.epoch, asked.requested_by) == ("host-a", lease.epoch, "host-b")
            assert asked.requested_at is not None
            assert asked.requested_at <= snapshot.now
            assert snapshot.state("0", 3600) is LeaseState.REQUESTED
            renewed = (await store.renew(group, [asked]))["0"]
            assert (await other.list_leases(group)).leases["0"] == renewed
            assert (renewed.requested_by, renewed.requested_at) == ("host-b", asked.requested_at)
            await store.release(group, [renewed])
            snapshot = await other.list_leases(group)
            assert snapshot.state("0", 3600) is LeaseState.OFFERED
            assert snapshot.leases["0"].requested_by == "host-b"
            taken = await acquire(other, group, "0", "host-b", expected=snapshot.leases["0"])
            assert dict((await store.list_leases(group)).leases) == {"0": taken}
            assert (taken.requested_by, taken.requested_at) == ("", None)

    async def test_an_offer_counts_from_the_release(self) -> None:
        """Although its owner had not renewed the lease for a while."""
        async with open_group(self.make_store) as (group, store, other):
            lease = await acquire(store, group, "0", "host-a")
            await other.request(group, lease, "host-b")
            await self.pass_time(store, _LEASE_DURATION_S + 1)
            await store.release(group, [(await store.list_leases(group)).leases["0"]])
            assert (await other.list_leases(group)).state("0", _LEASE_DURATION_S) is LeaseState.OFFERED
            await self.pass_time(store, _LEASE_DURATION_S + 1)
            assert (await other.list_leases(group)).state("0", _LEASE_DURATION_S) is LeaseState.RELEASED

    async def test_a_request_counts_for_one_owner(self) -> None:
        """Not for the next one, not if that is followed by the first again, and not for a free partition."""
        async with open_group(self.make_store) as (group, store, other):
            first = await acquire(store, group, "0", "host-a")
            second = await acquire(other, group, "0", "host-b", expected=first)
            await other.request(group, first, "host-c")
            assert dict((await store.list_leases(group)).leases) == {"0": second}
            third = await acquire(store, group, "0", "host-a", expected=second)
            assert dict((await other.list_leases(group)).leases) == {"0": third}
            await store.release(group, [third])
            await other.request(group, (await other.list_leases(group)).leases["0"], "host-c")
            snapshot = await store.list_leases(group)
            assert snapshot.state("0", 3600) is LeaseState.RELEASED
            assert not snapshot.leases["0"].requested_by

    async def test_leases_of_groups_do_not_meet(self) -> None:
        """Each namespace, hub and group is a separate location; different spellings of a name are not."""
        async with open_group(self.make_store) as (group, store, other):
            elsewhere, others, shouted = other_groups(group)
            lease = await acquire(store, group, "0", "Host-A")
            assert dict((await other.list_leases(shouted)).leases) == {"0": lease}
            if self.has_namespaces:
                others.append(elsewhere)
            else:
                assert await is_refused(other.list_leases(elsewhere), InvalidArgumentError)
            for one in others:
                assert dict((await other.list_leases(one)).leases) == {}
                await acquire(other, one, "0", "host-b")
            assert dict((await other.list_leases(shouted)).leases) == {"0": lease}

    async def test_a_random_walk_agrees_with_the_model(self) -> None:
        """Hosts act on what they saw, fresh or stale: only fresh knowledge changes anything."""
        seed = random.randrange(2**32)
        print(f"random walk: seed {seed}")
        async with open_group(self.make_store) as (group, *stores):
            walk = _Walk(random.Random(seed), group)
            for _ in range(self.walk_steps):
                await walk.step(walk.random.choice(stores))
            listed = (await stores[0].list_leases(group)).leases
            assert dict(listed) == walk.current


class _Walk:
    """Random operations on the leases of a few partitions, and their expected results."""

    def __init__(self, source: random.Random, group: GroupKey) -> None:
        self.random = source
        self.current: dict[str, Lease] = {}
        self._group = group
        self._seen: list[Lease] = []

    async def step(self, store: LeaseManager) -> None:
        """Do one operation through ``store``, and compare the result with the model."""
        partition = str(self.random.randrange(3))
        known = [None, *(lease for lease in self._seen if lease.partition_id == partition)]
        expected = self.random.choice(known[-4:] if self.random.random() < 0.8 else known)
        operation = self.random.choice(("acquire", "acquire", "renew", "renew", "release", "list"))
        if operation == "acquire":
            await self._acquire(store, partition, expected)
        elif operation == "renew" and expected is not None and expected.owner:
            await self._renew(store, expected)
        elif operation == "release" and expected is not None:
            await store.release(self._group, [expected])
            if self._is_fresh(expected):
                await self._refresh(store)
                assert self.current[partition].owner == ""
        else:
            await self._refresh(store)

    async def _acquire(self, store: LeaseManager, partition: str, expected: Lease | None) -> None:
        is_fresh = partition not in self.current if expected is None else self._is_fresh(expected)
        owner = f"host-{self.random.randrange(3)}"
        lease = await store.acquire(self._group, partition, owner, expected=expected)
        assert (lease is not None) == is_fresh
        if lease is not None:
            assert lease.owner == owner
            # A store that keeps no epochs has 0 for all of them.
            assert expected is None or lease.epoch == (expected.epoch + 1 if expected.epoch else 0)
            self._remember(lease)

    async def _renew(self, store: LeaseManager, expected: Lease) -> None:
        renewed = await store.renew(self._group, [expected])
        assert list(renewed) == ([expected.partition_id] if self._is_fresh(expected) else [])
        for lease in renewed.values():
            assert (lease.owner, lease.epoch) == (expected.owner, expected.epoch)
            self._remember(lease)

    async def _refresh(self, store: LeaseManager) -> None:
        for lease in (await store.list_leases(self._group)).leases.values():
            if not self._is_fresh(lease):
                self._remember(lease)

    def _is_fresh(self, lease: Lease) -> bool:
        current = self.current.get(lease.partition_id)
        return current is not None and current.version == lease.version

    def _remember(self, lease: Lease) -> None:
        assert lease.version not in [
            one.version for one in self._seen if one.partition_id == lease.partition_id
        ], "a version came twice"
        self.current[lease.partition_id] = lease
        self._seen.append(lease)


async def acquire(
    store: LeaseManager, group: GroupKey, partition_id: str, owner: str, *, expected: Lease | None = None
) -> Lease:
    """Acquire a lease without competition."""
    lease = await store.acquire(group, partition_id, owner, expected=expected)
    assert lease is not None, f"{owner} did not get partition {partition_id}"
    return lease


def _name_claim(group: GroupKey, store: LeaseManager, number: int) -> NameClaim:
    """Of an instance of one host."""
    return NameClaim(
        "host-a",
        f"instance-{number}",
        group=group,
        store=store,
        options=PartitionManagerOptions(_NAME_DURATION_S, renew_interval_s=0.5, look_interval_s=0.05),
        clock=SystemClock(),
        on_exception=lambda error, partition_id: None,  # it tries again
    )
