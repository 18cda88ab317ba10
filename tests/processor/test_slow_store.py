"""The partition manager on a slow store: what happens while a call is under way."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from tests.processor.cluster import GROUP, LEASE_DURATION_S, RENEW_INTERVAL_S, Cluster, Host
from tests.processor.virtual_processes import World

from tidegate.processor.handlers import CloseReason

CALLS = ("list", "acquire", "renew", "release")


@pytest.fixture
def world() -> Iterator[World]:
    """A virtual clock whose seed is printed."""
    with World(random.randrange(2**32)) as world:
        yield world


def wait_for_call(host: Host, what: str) -> None:
    """Until the host has begun its next call of this kind."""
    before = host.store.calls[what]
    host.cluster.world.wait_until(lambda: host.store.calls[what] > before, timeout_s=LEASE_DURATION_S)


def take_all(cluster: Cluster, host: Host, owner: str) -> None:
    """Somebody else acquires every partition, whoever has it."""

    async def take() -> None:
        seen = (await cluster.memory.list_leases(GROUP)).leases
        for partition in cluster.partitions:
            assert await cluster.memory.acquire(GROUP, partition, owner, expected=seen.get(partition))

    cluster.world.result(host.process, take(), timeout_s=0.1)


def wait_until_nearly_fenced(host: Host) -> None:
    """The store fails until three seconds before the leases are given up: time for the next call, whenever it
    comes, to be begun before that, and not to be answered."""
    wait_for_call(host, "renew")
    host.cluster.world.run_for(0.1)
    host.store.is_refusing = True
    host.cluster.world.run_for(LEASE_DURATION_S * 0.9 - 3.0)
    host.store.is_refusing = False
    host.store.delays_s = {"renew": 2.0, "acquire": 2.0}


def test_a_renewal_that_is_answered_too_late_revives_nothing(world: World) -> None:
    """What the guard gave up meanwhile stays given up, until it is acquired anew with a pump."""
    cluster = Cluster(world, 4)
    host = cluster.join("a")
    cluster.wait_until_even()
    wait_until_nearly_fenced(host)
    wait_for_call(host, "renew")
    assert len(host.manager.leases) == 4
    world.wait_until(lambda: not host.pumps.running, timeout_s=3)
    host.store.delays_s = {}
    cluster.wait_until_even()
    assert {lease.epoch for lease in host.manager.leases.values()} == {2}
    assert dict(host.manager.leases) == host.pumps.running
    cluster.assert_rest(3 * LEASE_DURATION_S)
    cluster.assert_sound()


def test_a_lease_given_up_while_it_is_reacquired_is_gone(world: World) -> None:
    """The answer comes after the guard has stopped the pump: nobody is told that the partition is theirs."""
    cluster = Cluster(world, 1)
    host = cluster.join("a")
    cluster.wait_until_even()
    wait_until_nearly_fenced(host)
    assert world.result(host.process, host.manager.reacquire("0")) is None
    assert dict(host.manager.leases) == {}
    host.store.delays_s = {}
    world.run_for(2 * RENEW_INTERVAL_S)
    assert cluster.is_even()
    cluster.assert_sound()


def test_an_acquisition_that_is_answered_after_a_pause_starts_nothing(world: World) -> None:
    """The host was stopped between asking and hearing, past the lease, and somebody else is at work."""
    cluster = Cluster(world, 1)
    host = cluster.join("a")
    host.store.delays_s = dict.fromkeys(CALLS, 0.5)
    wait_for_call(host, "acquire")
    world.run_for(0.75)
    host.process.pause()
    other = cluster.join("b")
    world.run_for(2 * LEASE_DURATION_S)
    assert list(other.pumps.running) == ["0"]
    host.process.resume()
    cluster.assert_rest(3 * LEASE_DURATION_S)
    cluster.assert_sound()


@pytest.mark.parametrize("what", ["renew", "list", "acquire"])
def test_closing_waits_for_the_call_that_is_under_way(world: World, what: str) -> None:
    """What it acquired is released without having been started, and afterwards nothing uses the store."""
    cluster = Cluster(world, 4)
    host = cluster.join("a")
    if what == "renew":
        cluster.wait_until_even()
    host.store.delays_s = dict.fromkeys(CALLS, 1.0)
    wait_for_call(host, what)
    world.run_for(1.5)
    before = len([call for call in cluster.calls if call.what == "start"])
    world.result(host.process, host.manager.close())
    assert host.run_task.done()
    assert before == len([call for call in cluster.calls if call.what == "start"])
    snapshot = world.result(host.process, cluster.memory.list_leases(GROUP))
    assert {lease.owner for lease in snapshot.leases.values()} <= {""}
    calls = host.store.calls.copy()
    world.run_for(3 * LEASE_DURATION_S)
    assert host.store.calls == calls
    assert host.errors == []


def test_closing_waits_for_its_own_renewal(world: World) -> None:
    """The last handler ends while the store renews: the release is not overtaken by the renewal, which would
    make its versions old, and keep the leases for their whole duration."""
    cluster = Cluster(world, 4)
    host = cluster.join("a")
    cluster.wait_until_even()
    host.pumps.stop_takes_s = dict.fromkeys(cluster.partitions, RENEW_INTERVAL_S + 1)
    host.store.renewals_wait_until_s = world.now + RENEW_INTERVAL_S + 3
    host.store.delays_s = {"list": 1.5}
    world.result(host.process, host.manager.close())
    world.run_for(RENEW_INTERVAL_S)
    snapshot = world.result(host.process, cluster.memory.list_leases(GROUP))
    assert {lease.owner for lease in snapshot.leases.values()} == {""}


def test_a_renewal_that_is_performed_late_costs_no_lease(world: World) -> None:
    """It stood behind a long transaction, was given up and sent again: the first one makes the second's
    versions old, and that is no theft."""
    cluster = Cluster(world, 4)
    host = cluster.join("a")
    cluster.wait_until_even()
    wait_for_call(host, "renew")
    world.run_for(1)
    host.store.renewals_wait_until_s = world.now + 2 * RENEW_INTERVAL_S + 2
    cluster.assert_rest(3 * LEASE_DURATION_S)
    assert len(host.errors) == 1
    assert {lease.epoch for lease in host.manager.leases.values()} == {1}
    cluster.assert_sound()


def test_many_acquisitions_do_not_keep_leases_from_being_renewed(world: World) -> None:
    """A store that needs a second for each call: the host renews in between, and takes the rest later."""
    cluster = Cluster(world, 32)
    host = cluster.join("a")
    host.store.delays_s = dict.fromkeys(CALLS, 0.5)
    cluster.wait_until_even(timeout_s=4 * LEASE_DURATION_S)
    assert host.store.calls["renew"] >= 3
    assert {lease.epoch for lease in host.manager.leases.values()} == {1}
    assert host.stops() == []
    assert host.errors == []


def test_a_theft_just_before_a_look_is_seen_in_it(world: World) -> None:
    """The pumps are stopped at once, not at the next renewal."""
    cluster = Cluster(world, 4)
    host = cluster.join("a")
    cluster.wait_until_even()
    host.store.delays_s = dict.fromkeys(CALLS, 0.5)
    wait_for_call(host, "list")
    take_all(cluster, host, "thief")
    world.wait_until(lambda: not host.pumps.running, timeout_s=2)
    assert {call.reason for call in host.stops()} == {CloseReason.OWNERSHIP_LOST}


def test_who_was_beaten_looks_again_soon(world: World) -> None:
    """It does not wait for its next renewal to see what is left."""
    cluster = Cluster(world, 2)
    host = cluster.join("a")
    host.store.delays_s = dict.fromkeys(CALLS, 0.2)
    wait_for_call(host, "acquire")
    take_all(cluster, host, "other")
    world.wait_until(lambda: host.store.calls["list"] == 2, timeout_s=RENEW_INTERVAL_S / 4)
    assert host.pumps.running == {}
    assert host.errors == []
