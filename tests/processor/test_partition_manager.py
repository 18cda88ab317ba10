"""The partition manager: several hosts on one store and one virtual clock, killed, paused and cut off."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.processor.cluster import GROUP, LEASE_DURATION_S, RENEW_INTERVAL_S, Cluster, Host
from tests.processor.virtual_processes import World

from tidegate.model.errors import StoreUnavailableError
from tidegate.processor.handlers import CloseReason

DETECTION_S = 5.0
"""How long after its lease a dead host's partition may stay unread."""


@pytest.fixture
def world() -> Iterator[World]:
    """A virtual clock whose seed is printed."""
    with World(random.randrange(2**32)) as world:
        yield world


def test_a_host_alone_takes_everything_and_keeps_it(world: World) -> None:
    """One look suffices, one call renews all leases, and nothing moves afterwards."""
    cluster = Cluster(world, 16)
    host = cluster.join("a")
    assert cluster.wait_until_even() < 2
    cluster.assert_rest(10 * LEASE_DURATION_S)
    assert 29 <= host.store.calls["renew"] <= 41
    assert set(host.manager.leases) == set(cluster.partitions)
    assert {lease.epoch for lease in host.manager.leases.values()} == {1}
    assert dict(host.manager.leases) == host.pumps.running
    assert host.errors == []
    cluster.assert_sound()


@pytest.mark.slow
def test_five_hosts_share_evenly_and_then_rest(world: World) -> None:
    """16 partitions and 5 hosts: 3/3/3/3/4 within 3 lease durations, stable for 10 more; two more join."""
    cluster = Cluster(world, 16)
    for name in "abcde":
        cluster.join(name)
    cluster.wait_until_even()
    assert cluster.counts() == [3, 3, 3, 3, 4]
    cluster.assert_rest(10 * LEASE_DURATION_S)
    for name in "fg":
        cluster.join(name)
    world.run_for(1)
    cluster.wait_until_even()
    assert cluster.counts() == [2, 2, 2, 2, 2, 3, 3]
    cluster.assert_rest(10 * LEASE_DURATION_S)
    cluster.assert_sound()
    assert [host.errors for host in cluster.hosts.values()] == [[]] * 7


@pytest.mark.slow
def test_a_partition_is_opened_when_its_last_owner_has_stopped(world: World) -> None:
    """Hosts that join and leave in order, even with slow handlers: no partition is processed by two."""
    cluster = Cluster(world, 16)
    for number in range(5):
        host = cluster.join(f"host-{number}")
        host.pumps.stop_takes_s = {
            partition: world.random.uniform(0, LEASE_DURATION_S / 2) for partition in cluster.partitions
        }
        world.run_for(world.random.uniform(0, 2 * LEASE_DURATION_S))
    cluster.wait_until_even()
    for number in (0, 3):
        host = cluster.hosts[f"host-{number}"]
        closing = host.process.start(host.manager.close())
        world.wait_until(closing.done, timeout_s=2 * LEASE_DURATION_S)
        del cluster.hosts[host.name]
        world.run_for(world.random.uniform(0, LEASE_DURATION_S))
    cluster.wait_until_even()
    assert cluster.overlaps() == []
    stops = [call for call in cluster.calls if call.what == "stop"]
    assert len(stops) > 16
    assert {call.reason for call in stops} == {CloseReason.SHUTDOWN}
    cluster.assert_rest(3 * LEASE_DURATION_S)
    cluster.assert_sound()


def test_a_hand_over_takes_a_look_of_each(world: World) -> None:
    """The owner sees the request when it looks, and the host that asked looks often while it waits."""
    cluster = Cluster(world, 2)
    cluster.join("a")
    cluster.wait_until_even()
    cluster.assert_rest(LEASE_DURATION_S)
    cluster.join("b")
    assert cluster.wait_until_even() <= 4.0
    assert cluster.overlaps() == []
    cluster.assert_rest(3 * LEASE_DURATION_S)


def test_an_owner_that_does_not_end_is_overtaken_after_a_lease(world: World) -> None:
    """Its handler hangs, and it renews all the same: the host that asked waits for one lease duration."""
    cluster = Cluster(world, 2)
    owner = cluster.join("a")
    cluster.wait_until_even()
    owner.pumps.stop_takes_s = dict.fromkeys(cluster.partitions, 10 * LEASE_DURATION_S)
    cluster.join("b")
    asked_s = world.now
    world.wait_until(lambda: bool(owner.stops()), timeout_s=2 * RENEW_INTERVAL_S)
    (asked,) = {call.partition_id for call in owner.stops()}
    world.wait_until(lambda: len(cluster.hosts["b"].pumps.running) == 1, timeout_s=2 * LEASE_DURATION_S)
    taken = cluster.first_start(asked, after_s=asked_s + 1)
    assert LEASE_DURATION_S <= taken.at_s - asked_s <= LEASE_DURATION_S + DETECTION_S
    assert (taken.host, taken.epoch) == ("b", 2)
    world.run_for(RENEW_INTERVAL_S + 1)
    assert asked not in owner.manager.leases
    assert owner.errors == []
    cluster.assert_sound()


def test_an_owner_that_is_killed_while_it_hands_over_is_replaced(world: World) -> None:
    """Its lease runs out as any other; whoever asked gets the partition, and the rest."""
    cluster = Cluster(world, 4)
    owner = cluster.join("a")
    cluster.wait_until_even()
    owner.pumps.stop_takes_s = dict.fromkeys(cluster.partitions, LEASE_DURATION_S / 2)
    cluster.join("b")
    world.wait_until(lambda: bool(owner.stops()), timeout_s=2 * RENEW_INTERVAL_S)
    cluster.kill("a")
    cluster.wait_until_even(timeout_s=LEASE_DURATION_S + DETECTION_S)
    cluster.assert_rest(3 * LEASE_DURATION_S)


@pytest.mark.parametrize("is_offered", [False, True])
def test_a_host_that_is_killed_after_it_asked_costs_one_lease(world: World, is_offered: bool) -> None:
    """What was released to it goes to others when the offer has lapsed."""
    cluster = Cluster(world, 4)
    owner = cluster.join("a")
    cluster.wait_until_even()
    owner.pumps.stop_takes_s = dict.fromkeys(cluster.partitions, 1.0)
    asking = cluster.join("b")
    world.wait_until(lambda: bool(owner.stops()), timeout_s=2 * RENEW_INTERVAL_S)
    if is_offered:
        asking.store.is_hanging = True
        world.wait_until(lambda: len(owner.manager.leases) < 4, timeout_s=2.0)
    cluster.kill("b")
    world.run_for(2.0)
    assert not cluster.is_even()
    cluster.wait_until_even(timeout_s=LEASE_DURATION_S + RENEW_INTERVAL_S + DETECTION_S)
    cluster.assert_rest(3 * LEASE_DURATION_S)
    cluster.assert_sound()


@pytest.mark.parametrize("is_offered", [False, True])
def test_a_host_that_leaves_after_it_asked_costs_nothing(world: World, is_offered: bool) -> None:
    """It withdraws its requests, and gives back what was released to it."""
    cluster = Cluster(world, 4)
    owner = cluster.join("a")
    cluster.wait_until_even()
    asking = cluster.join("b")
    world.wait_until(lambda: asking.store.calls["request"] == 1, timeout_s=1)
    if is_offered:
        world.wait_until(lambda: len(owner.manager.leases) < 4, timeout_s=RENEW_INTERVAL_S)
    world.result(asking.process, asking.manager.close())
    del cluster.hosts["b"]
    world.run_for(2.0)
    assert cluster.is_even()
    cluster.assert_rest(3 * LEASE_DURATION_S)
    cluster.assert_sound()


@pytest.mark.parametrize("what", ["release", "request"])
def test_a_hand_over_is_tried_again_after_a_failure(world: World, what: str) -> None:
    """The request stays until it is answered; one that was not recorded is made again."""
    cluster = Cluster(world, 4)
    owner = cluster.join("a")
    cluster.wait_until_even()
    asking = cluster.join("b")
    failing = owner if what == "release" else asking
    world.wait_until(lambda: failing.store.calls[what] == 1, timeout_s=2 * RENEW_INTERVAL_S)
    failing.store.is_refusing = True
    world.run_for(0.1)
    assert failing.errors
    failing.store.is_refusing = False
    cluster.wait_until_even(timeout_s=3 * RENEW_INTERVAL_S)
    assert cluster.overlaps() == []
    cluster.assert_rest(3 * LEASE_DURATION_S)
    cluster.assert_sound()


@pytest.mark.slow
@pytest.mark.parametrize("second_kill_after_s", [None, 0.0, 10.0, 20.0])
def test_a_killed_hosts_partitions_are_read_again_in_time(
    world: World, second_kill_after_s: float | None
) -> None:
    """Within one lease and five seconds, even where another host dies that should have taken some of them."""
    cluster = Cluster(world, 16)
    for name in "abcde":
        cluster.join(name)
    cluster.wait_until_even()
    world.run_for(world.random.uniform(0, 60))
    killed: list[tuple[float, set[str]]] = []
    for name, wait_s in (("a", 0.0), ("b", second_kill_after_s)):
        if wait_s is not None:
            world.run_for(wait_s)
            killed.append((world.now, set(cluster.hosts[name].pumps.running)))
            cluster.kill(name)
    world.run_for(LEASE_DURATION_S + DETECTION_S)
    for killed_s, partitions in killed:
        for partition in partitions:
            start = cluster.first_start(partition, after_s=killed_s)
            assert start.at_s <= killed_s + LEASE_DURATION_S + DETECTION_S
    cluster.wait_until_even()
    cluster.assert_rest(3 * LEASE_DURATION_S)
    cluster.assert_sound()


def test_a_closed_hosts_partitions_are_taken_at_the_next_look(world: World) -> None:
    """Its leases are released, so nobody waits for them to run out."""
    cluster = Cluster(world, 6)
    host = cluster.join("a")
    cluster.join("b")
    cluster.wait_until_even()
    handed_over = host.store.calls["release"]
    world.result(host.process, host.manager.close())
    assert {call.reason for call in host.stops()[-3:]} == {CloseReason.SHUTDOWN}
    assert host.pumps.running == {}
    assert dict(host.manager.leases) == {}
    assert host.store.calls["release"] == handed_over + 1
    assert host.run_task.done()
    del cluster.hosts["a"]
    assert cluster.wait_until_even() <= 2.0
    assert host.errors == []
    cluster.assert_sound()


def test_leases_are_kept_until_the_last_handler_has_ended(world: World) -> None:
    """A handler that needs longer than a lease to end still owns its partition, and can checkpoint."""
    cluster = Cluster(world, 4)
    host = cluster.join("a")
    cluster.wait_until_even()
    cluster.join("b")
    cluster.wait_until_even()
    slow = next(iter(host.pumps.running))
    host.pumps.stop_takes_s[slow] = 4 * LEASE_DURATION_S
    handed_over = host.store.calls["release"]
    closing = host.process.start(host.manager.close())
    world.run_for(3 * LEASE_DURATION_S)
    assert list(host.pumps.running) == [slow]
    assert slow not in cluster.hosts["b"].pumps.running
    assert len(cluster.hosts["b"].pumps.running) < 4
    # Giving up the wait gives up nothing else; a second call waits for the rest.
    closing.cancel()
    world.run_for(5)
    assert closing.cancelled()
    world.result(host.process, host.manager.close())
    assert host.pumps.running == {}
    world.result(host.process, host.manager.close())
    assert host.store.calls["release"] == handed_over + 1
    del cluster.hosts["a"]
    cluster.wait_until_even()
    cluster.assert_sound()


def test_a_renewal_lost_while_closing_does_not_keep_the_leases(world: World) -> None:
    """The leases are released under the versions that the store has, not under those that the host knows."""
    cluster = Cluster(world, 4)
    host = cluster.join("a")
    cluster.wait_until_even()
    host.pumps.stop_takes_s = dict.fromkeys(cluster.partitions, RENEW_INTERVAL_S)
    closing = host.process.start(host.manager.close())
    world.wait_until(lambda: host.store.calls["renew"] == 1, timeout_s=RENEW_INTERVAL_S)
    host.store.answers_lost = 1
    world.wait_until(lambda: bool(host.errors) and host.pumps.running == {}, timeout_s=RENEW_INTERVAL_S)
    world.wait_until(closing.done, timeout_s=1)
    snapshot = world.result(host.process, cluster.memory.list_leases(GROUP))
    assert {lease.owner for lease in snapshot.leases.values()} == {""}


def test_a_host_that_wakes_up_stops_what_it_has_lost(world: World) -> None:
    """Paused past its lease (SIGSTOP), it gives everything up at once, and later gets its share again."""
    cluster = Cluster(world, 6)
    paused = cluster.join("a")
    other = cluster.join("b")
    cluster.wait_until_even()
    lost = set(paused.pumps.running)
    paused.process.pause()
    world.run_for(2 * LEASE_DURATION_S)
    assert set(other.pumps.running) == set(cluster.partitions)
    woken_s = world.now
    paused.process.resume()
    world.wait_until(lambda: not lost & set(paused.pumps.running), timeout_s=0.1)
    stops = [call for call in paused.stops() if call.at_s >= woken_s]
    assert {call.partition_id for call in stops} == lost
    assert {call.reason for call in stops} == {CloseReason.OWNERSHIP_LOST}
    cluster.wait_until_even()
    cluster.assert_rest(3 * LEASE_DURATION_S)
    cluster.assert_sound()


@pytest.mark.parametrize("is_hanging", [True, False])
@pytest.mark.slow
def test_a_host_without_store_stops_before_others_take_over(world: World, is_hanging: bool) -> None:
    """It counts by its own clock: whoever takes its partitions finds its pumps told to stop."""
    cluster = Cluster(world, 6)
    cut_off = cluster.join("a")
    other = cluster.join("b")
    cluster.wait_until_even()
    lost = set(cut_off.pumps.running)
    world.run_for(world.random.uniform(0, 30))
    cut_s = world.now
    cut_off.store.is_hanging, cut_off.store.is_refusing = is_hanging, not is_hanging
    world.wait_until(lambda: len(other.pumps.running) == 6, timeout_s=LEASE_DURATION_S + DETECTION_S)
    stops = {call.partition_id: call for call in cut_off.stops() if call.at_s >= cut_s}
    assert set(stops) == lost
    for partition in lost:
        assert stops[partition].reason == CloseReason.OWNERSHIP_LOST
        assert stops[partition].at_s < cluster.first_start(partition, after_s=cut_s).at_s
    assert {partition for _, partition in cut_off.errors if partition is not None} == lost
    assert all(isinstance(error, StoreUnavailableError) for error, _ in cut_off.errors)
    cut_off.store.is_hanging = cut_off.store.is_refusing = False
    # A call that hangs already is waited for until its own time is over.
    cluster.wait_until_even()
    cluster.assert_rest(3 * LEASE_DURATION_S)
    cluster.assert_sound()


def test_a_short_outage_costs_nothing(world: World) -> None:
    """A store that is away for half a lease is reported, and no partition changes hands."""
    cluster = Cluster(world, 16)
    for name in "abc":
        cluster.join(name)
    cluster.wait_until_even()
    before = len(cluster.calls)
    for host in cluster.hosts.values():
        host.store.is_refusing = True
    world.run_for(LEASE_DURATION_S / 2)
    for host in cluster.hosts.values():
        host.store.is_refusing = False
        assert host.errors
    world.run_for(3 * LEASE_DURATION_S)
    assert cluster.calls[before:] == []


@pytest.mark.parametrize("answers_lost", [1, 2, 3])
def test_a_renewal_whose_answer_is_lost_is_no_theft(world: World, answers_lost: int) -> None:
    """The store has a version that the host does not know; its pumps go on under the same epochs."""
    cluster = Cluster(world, 4)
    host = cluster.join("a")
    cluster.wait_until_even()
    world.run_for(1)
    host.store.answers_lost = answers_lost
    cluster.assert_rest(3 * LEASE_DURATION_S)
    assert len(host.errors) == answers_lost
    assert {lease.epoch for lease in host.manager.leases.values()} == {1}
    cluster.assert_sound()


def test_an_acquisition_whose_answer_is_lost_is_found_and_made_again(world: World) -> None:
    """The store says that the host has a partition for which it has no pump: it takes a new epoch."""
    cluster = Cluster(world, 4)
    host = cluster.join("a")
    world.wait_until(lambda: host.store.calls["list"] == 1, timeout_s=1)
    world.wait_until(lambda: host.store.calls["acquire"] == 1, timeout_s=1)
    host.store.answers_lost = 1
    assert cluster.wait_until_even() < RENEW_INTERVAL_S / 4
    assert len(host.errors) == 1
    assert sorted(lease.epoch for lease in host.manager.leases.values()) == [1, 1, 1, 2]
    cluster.assert_rest(3 * LEASE_DURATION_S)


def test_a_long_outage_stops_everything_once_and_ends_well(world: World) -> None:
    """Nobody processes without a lease; when the store is back, everything goes on within a look."""
    cluster = Cluster(world, 8)
    for name in "ab":
        cluster.join(name)
    cluster.wait_until_even()
    for host in cluster.hosts.values():
        host.store.is_refusing = True
    world.run_for(2 * LEASE_DURATION_S)
    assert cluster.counts() == [0, 0]
    for host in cluster.hosts.values():
        host.store.is_refusing = False
    world.wait_until(lambda: sum(cluster.counts()) == 8, timeout_s=RENEW_INTERVAL_S)
    # Whoever came first may have seen nobody else, and taken everything.
    cluster.wait_until_even()
    cluster.assert_rest(3 * LEASE_DURATION_S)
    cluster.assert_sound()


def test_a_handler_that_does_not_end_delays_nobody_else(world: World) -> None:
    """Its partition moves on, other leases are renewed, and it is not taken back before it has ended."""
    cluster = Cluster(world, 4)
    slow = cluster.join("a")
    cluster.wait_until_even()
    slow.pumps.stop_takes_s = dict.fromkeys(cluster.partitions, 4 * LEASE_DURATION_S)
    cluster.join("b")
    world.run_for(2 * LEASE_DURATION_S)
    assert len(cluster.hosts["b"].pumps.running) == 2
    lost = set(cluster.hosts["b"].pumps.running)
    assert set(slow.manager.leases) == set(cluster.partitions) - lost
    cluster.kill("b")
    world.run_for(LEASE_DURATION_S + DETECTION_S)
    assert not lost & set(slow.manager.leases)
    cluster.wait_until_even(timeout_s=4 * LEASE_DURATION_S)
    world.run_for(RENEW_INTERVAL_S)
    world.wait_until(lambda: len(slow.manager.leases) == 4, timeout_s=4 * LEASE_DURATION_S)
    cluster.assert_sound()


def test_a_lease_is_reacquired_with_a_new_epoch(world: World) -> None:
    """A receiver that was thrown out gets a higher epoch under a lease that nobody took."""
    cluster = Cluster(world, 2)
    host = cluster.join("a")
    cluster.wait_until_even()
    lease = world.result(host.process, host.manager.reacquire("1"))
    assert lease is not None
    assert (lease.owner, lease.epoch) == ("a", 2)
    assert host.manager.leases["1"] == lease
    assert world.result(host.process, host.manager.reacquire("7")) is None
    cluster.assert_rest(3 * LEASE_DURATION_S)
    assert host.pumps.running["1"].epoch == 2
    assert host.errors == []


def test_a_lease_that_was_stolen_is_not_reacquired(world: World) -> None:
    """Whoever asks is told that the partition is gone, and its pump is stopped."""
    cluster = Cluster(world, 2)
    host = cluster.join("a")
    cluster.wait_until_even()
    stolen = world.result(
        host.process, cluster.memory.acquire(GROUP, "1", "thief", expected=host.manager.leases["1"])
    )
    assert stolen is not None
    assert world.result(host.process, host.manager.reacquire("1")) is None
    world.wait_until(lambda: "1" not in host.pumps.running, timeout_s=0.1)
    assert [(call.partition_id, call.reason) for call in host.stops()] == [("1", CloseReason.OWNERSHIP_LOST)]


def test_a_pump_that_does_not_start_is_tried_again(world: World) -> None:
    """Its error is reported with the partition, which is given back meanwhile; others are not affected."""
    cluster = Cluster(world, 4)
    host = cluster.join("a")
    host.pumps.start_failures = 2
    world.run_for(1)
    assert len(host.pumps.running) == 2
    assert [type(error) for error, _ in host.errors] == [ValueError, ValueError]
    failed = {partition for _, partition in host.errors}
    assert failed == set(cluster.partitions) - set(host.pumps.running)
    assert set(host.manager.leases) == set(host.pumps.running)
    cluster.wait_until_even(timeout_s=2 * RENEW_INTERVAL_S)
    cluster.assert_sound()


def test_a_host_that_restarts_under_its_name_goes_on_at_once(world: World) -> None:
    """It does not wait for the leases of its former life, and gets new epochs."""
    cluster = Cluster(world, 4)
    cluster.join("a")
    cluster.wait_until_even()
    cluster.kill("a")
    host = cluster.join("a")
    assert cluster.wait_until_even() < 1
    assert {lease.epoch for lease in host.manager.leases.values()} == {2}
    cluster.assert_rest(3 * LEASE_DURATION_S)


@pytest.mark.slow
def test_hosts_spread_their_first_look(world: World) -> None:
    """Each waits a random part of the spread; one that is closed before it has looked has nothing to do."""
    cluster = Cluster(world, 4)
    hosts = [cluster.join(name, startup_spread_s=100) for name in "abcdefgh"]
    looks: dict[str, float] = {}
    for _ in range(1000):
        world.run_for(0.1)
        for host in hosts:
            if host.store.calls["list"]:
                looks.setdefault(host.name, world.now)
    assert len(looks) == 8
    assert max(looks.values()) - min(looks.values()) > 10
    late = cluster.join("late", startup_spread_s=1e6)
    world.run_for(1)
    world.result(late.process, late.manager.close())
    assert late.store.calls == Counter()
    assert late.run_task.done()


def test_what_on_exception_raises_does_not_end_the_host(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A user's mistake in the callback is logged."""
    cluster = Cluster(world, 2)
    host = cluster.join("a")
    host.errors = None  # type: ignore[assignment]
    host.store.is_refusing = True
    world.run_for(5)
    host.store.is_refusing = False
    cluster.wait_until_even()
    assert "on_exception raised" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("_", range(8))
def test_random_histories_end_even(world: World, _: int) -> None:
    """Hosts join, close, die, are paused and cut off in any order: every partition ends with one reader."""
    cluster = Cluster(world, world.random.choice([1, 4, 16]))
    asleep: list[tuple[float, Host]] = []
    for number in range(25):
        for wakes_s, host in asleep:
            if world.now >= wakes_s:
                host.process.resume()
                host.store.is_hanging = False
        change = world.random.choice(["join", "join", "close", "kill", "pause", "hang"])
        if change == "join" or not cluster.hosts:
            cluster.join(f"host-{number}")
        else:
            name = world.random.choice(sorted(cluster.hosts))
            host = cluster.hosts[name]
            if change == "kill":
                cluster.kill(name)
            elif change == "close":
                del cluster.hosts[name]
                host.process.start(host.manager.close())
            else:
                asleep.append((world.now + world.random.uniform(5, 60), host))
                if change == "pause":
                    host.process.pause()
                else:
                    host.store.is_hanging = True
        world.run_for(world.random.choice([0.01, 1.0, 10.0, 40.0]))
    cluster.join("last")
    for host in cluster.hosts.values():
        host.process.resume()
        host.store.is_hanging = False
    world.run_for(RENEW_INTERVAL_S)
    cluster.wait_until_even(timeout_s=5 * LEASE_DURATION_S)
    cluster.assert_rest(3 * LEASE_DURATION_S)
    cluster.assert_sound()


@pytest.mark.parametrize("ahead_s", [3600.0, 8 * 86_400.0])
def test_a_lease_renewed_while_the_clock_was_ahead_is_taken_in_time(world: World, ahead_s: float) -> None:
    """D9: its owner dies, and the clock is set right: by their own clocks the others see that it is not
    renewed. They took it only once the true time had caught up."""
    cluster = Cluster(world, 8)
    for name in "ab":
        cluster.join(name)
    cluster.wait_until_even()
    world.wall_ahead_s = ahead_s
    world.run_for(2 * RENEW_INTERVAL_S)
    taken = set(cluster.hosts["a"].pumps.running)
    killed_s = world.now
    cluster.kill("a")
    world.wall_ahead_s = 0.0
    world.run_for(LEASE_DURATION_S + RENEW_INTERVAL_S + DETECTION_S)
    assert taken
    for partition in taken:
        assert cluster.first_start(partition, after_s=killed_s).host == "b"
    cluster.assert_rest(3 * LEASE_DURATION_S)
