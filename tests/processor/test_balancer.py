"""The balancer: a table of small cases, and hosts that come and go on real compare-and-set."""

from __future__ import annotations

import random
import string
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tidegate.processor.host.balancer import BalanceActions, decide_balance, seconds_until_change
from tidegate.processor.lease import GroupKey, Lease, LeaseSnapshot
from tidegate.processor.stores.memory import MemoryStore

IDS = string.digits + string.ascii_lowercase
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
GROUP = GroupKey("localhost", "hub", "$Default")
LEASE_DURATION_S = 30.0
RENEW_INTERVAL_S = 10.0

T = TypeVar("T")


def snapshot_of(owners: str, *, requested_by: str | None = None, requests: str = "") -> LeaseSnapshot:
    """One partition per character, with the ids of ``IDS``. requested_by: None: no owner knows requests.

    ``A`` host A has it, ``a`` host A let it run out just now, ``!`` somebody let it run out a while ago,
    ``-`` it was released, ``.`` nobody ever had it.
    """
    leases = {}
    for partition, owner in zip(IDS, owners, strict=False):
        if owner == ".":
            continue
        age_s = 36.0 if owner == "!" else 31.0 if owner.islower() else 5.0
        name = {"-": "", "!": "X"}.get(owner, owner.upper())
        renewed_at = NOW - timedelta(seconds=age_s)
        leases[partition] = Lease(partition, name, 7, renewed_at, renewed_at, "1", requested_by)
    for partition, requester in zip(IDS, requests, strict=False):
        if requester != ".":
            age_s = 31.0 if requester.islower() else 5.0
            leases[partition] = replace(
                leases[partition],
                requested_by=requester.upper(),
                requested_at=NOW - timedelta(seconds=age_s),
            )
    return LeaseSnapshot(leases, NOW)


def decide(owners: str, me: str, *, choice: float = 0.0, pumped: str | None = None) -> tuple[str, str]:
    """The partitions to acquire and those to steal; without ``pumped``, ``me`` runs all that it has."""
    snapshot = snapshot_of(owners)
    held = [partition for partition, lease in snapshot.leases.items() if lease.owner == me]
    actions = decide_balance(
        snapshot,
        IDS[: len(owners)],
        me,
        lease_duration_s=LEASE_DURATION_S,
        choice=choice,
        pumped=held if pumped is None else pumped,
    )
    for partition, expected in actions.acquire:
        assert expected == snapshot.leases.get(partition)
    return (
        "".join(partition for partition, _ in actions.acquire),
        "".join(lease.partition_id for lease in actions.steal),
    )


@pytest.mark.parametrize(
    ("owners", "me", "acquire", "steal"),
    [
        # Alone: everything, whatever it was before.
        ("....", "A", "0123", ""),
        ("AA-b!", "A", "234", ""),
        ("", "A", "", ""),
        # Free ones go to those who lack them, and to nobody else.
        ("AAB.", "B", "3", ""),
        ("AAB.", "A", "", ""),
        ("AABBC...", "A", "5", ""),
        ("AABBC...", "B", "6", ""),
        ("AABBC...", "C", "7", ""),
        ("AAABBBCCCDDDeeee", "B", "d", ""),
        # One that comes takes its share of what is free.
        ("A-----", "B", "135", ""),
        # Expired for so long that whoever should have taken it is dead, too.
        ("AABB!", "A", "4", ""),
        ("AABB!", "B", "4", ""),
        ("AAB!", "A", "3", ""),
        ("AABa", "A", "", ""),
        ("AABb", "A", "", ""),
        # Seen by nobody yet: one only, of those above their share.
        ("AAAAAAAAAAAAAAAA", "B", "", "0"),
        ("AAAABC", "D", "", "0"),
        ("CAAAAB", "D", "", "1"),
        ("AAB", "C", "", "0"),
        ("ABC", "D", "", ""),
        # Visible: as many as are missing, each from the one with the most.
        ("AAAAAAAAB", "B", "", "765"),
        ("AAAAAABBBC", "C", "", "54"),
        ("AAAAABBBBBCD", "C", "", "43"),
        ("AAAAABBBBBCD", "D", "", "98"),
        # Free ones first, then the rest by stealing.
        ("AAAAAAAAB.", "B", "9", "765"),
        ("AAAAAABC!!", "B", "89", ""),
        # Even within one: nothing.
        ("AAAB", "B", "", "2"),
        ("AABBB", "A", "", ""),
        ("AABBB", "B", "", ""),
        ("AAABBBCCC", "C", "", ""),
        ("AB", "A", "", ""),
    ],
)
def test_small_cases(owners: str, me: str, acquire: str, steal: str) -> None:
    """What a host does in cases that fit in the head."""
    assert decide(owners, me) == (acquire, steal)

    knowing = snapshot_of(owners, requested_by="")
    actions = _decide(knowing, len(owners), me)
    assert "".join(lease.partition_id for lease in actions.request) == steal
    assert (actions.steal, actions.hand_over, actions.is_waiting) == ((), (), bool(steal))


@pytest.mark.parametrize(
    ("owners", "requests", "me", "hand_over", "acquire", "steal", "asked"),
    [
        # The owner hands over, and counts what it was asked for as the other's.
        ("AAAA", "B...", "A", "0", "", "", ""),
        ("AAAA", "BB..", "A", "01", "", "", ""),
        # Whoever asked waits, is known by its request, and asks for the rest of its share.
        ("AAAA", "B...", "B", "", "", "", "3"),
        ("AAAA", "BB..", "B", "", "", "", ""),
        ("AAAA", "B...", "C", "", "", "", "1"),
        ("AAAA", "BC..", "C", "", "", "", ""),
        # What it was promised is not taken by others, even if the shares would allow it.
        ("-A", "B.", "A", "", "", "", ""),
        ("-A", "B.", "C", "", "", "", ""),
        ("-A", "B.", "B", "", "0", "", ""),
        # An answer that does not come is not waited for.
        ("AAAA", "b...", "B", "", "", "0", "3"),
        ("AAAA", "b...", "A", "0", "", "", ""),
        # The owner is dead: its leases are free, whoever asked for them.
        ("aa!", "BC.", "D", "", "012", "", ""),
    ],
)
def test_cases_with_requests(
    owners: str, requests: str, me: str, hand_over: str, acquire: str, steal: str, asked: str
) -> None:
    """``requests`` says who asked for the partition: ``B`` just now, ``b`` more than a lease ago."""
    snapshot = snapshot_of(owners, requested_by="", requests=requests)
    actions = _decide(snapshot, len(owners), me)
    assert (
        "".join(lease.partition_id for lease in actions.hand_over),
        "".join(partition for partition, _ in actions.acquire),
        "".join(lease.partition_id for lease in actions.steal),
        "".join(lease.partition_id for lease in actions.request),
    ) == (hand_over, acquire, steal, asked)


def _decide(snapshot: LeaseSnapshot, partition_count: int, me: str) -> BalanceActions:
    """The actions of a host that runs all that it has."""
    held = [partition for partition, lease in snapshot.leases.items() if lease.owner == me]
    return decide_balance(
        snapshot, IDS[:partition_count], me, lease_duration_s=LEASE_DURATION_S, choice=0.0, pumped=held
    )


def test_a_former_lifes_leases_are_acquired_anew() -> None:
    """A host that was restarted under its name does not wait for its own leases to run out."""
    assert decide("AABB", "A", pumped="") == ("01", "")
    assert decide("AABB", "A", pumped="0") == ("1", "")


def test_a_partition_whose_pump_is_still_stopping_is_not_taken() -> None:
    """Neither from nobody nor from its new owner: two pumps of one partition must not overlap."""
    assert decide("a.", "A", pumped="0") == ("1", "")
    assert decide("AAAAB", "B", pumped="34") == ("", "")


def test_partitions_that_the_hub_does_not_have_are_ignored() -> None:
    """Leases of a larger hub of the same name, made anew, count for nothing."""
    snapshot = snapshot_of("AABBBB")
    actions = decide_balance(
        snapshot, ["0", "1", "2"], "B", lease_duration_s=LEASE_DURATION_S, choice=0, pumped="2"
    )
    assert actions == BalanceActions()
    assert not actions


def test_hosts_that_join_at_once_pick_different_partitions() -> None:
    """They do not know of each other; the random number spreads them over all that may be taken."""
    picks = [decide("A" * 8, "B", choice=number / 8)[1] for number in range(8)]
    assert picks == list("01234567")
    starts = [decide("...." * 2, "B", choice=number / 8)[0][0] for number in range(8)]
    assert starts == list("01234567")


def test_the_next_change_is_when_a_foreign_lease_runs_out() -> None:
    """A host need not look earlier; its own leases and free partitions are no reason."""

    def seconds(owners: str) -> float | None:
        snapshot, partitions = snapshot_of(owners), IDS[: len(owners)]
        return seconds_until_change(snapshot, partitions, "A", lease_duration_s=LEASE_DURATION_S)

    assert seconds("AB") == 25
    assert seconds("ABb") == 2
    assert seconds("A-.!a") is None


class Simulation:
    """Hosts that take steps in random order on one store, on a clock that only rounds move."""

    def __init__(self, partition_count: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.partitions = [str(index) for index in range(partition_count)]
        self.now = NOW
        self.store = MemoryStore(self)
        self.hosts: dict[str, Host] = {}
        self.epochs: dict[str, list[tuple[int, str]]] = {partition: [] for partition in self.partitions}
        self.host_count = 0
        self.actions = 0
        """Of the last round: attempts to acquire or steal."""

    def now_utc(self) -> datetime:
        return self.now

    def monotonic(self) -> float:
        return self.now.timestamp()

    def apply(self, change: str) -> None:
        """join, leave, kill, pause (a host misses four rounds and comes back with what it knew), restart."""
        if change == "join":
            self.host_count += 1
            name = f"host-{self.host_count}"
            self.hosts[name] = Host(self, name)
            return
        if not self.hosts:
            return
        name = self.random.choice(sorted(self.hosts))
        host = self.hosts[name]
        if change == "pause":
            host.rounds_missed = 4
            return
        del self.hosts[name]
        if change == "leave":
            run(self.store.release(GROUP, list(host.leases.values())))
        elif change == "restart":
            self.hosts[name] = Host(self, name)

    def run_round(self) -> None:
        """Every host looks and acts once, their steps interleaved at random."""
        self.actions = 0
        cycles = [host.cycle() for host in self.hosts.values()]
        while cycles:
            cycle = self.random.choice(cycles)
            if next(cycle, StopIteration) is StopIteration:
                cycles.remove(cycle)
        self.now += timedelta(seconds=RENEW_INTERVAL_S)

    def counts(self) -> list[int]:
        """Partitions per host, by the store."""
        leases = run(self.store.list_leases(GROUP)).leases.values()
        owned = Counter(lease.owner for lease in leases if not lease.is_expired(self.now, LEASE_DURATION_S))
        assert set(owned) <= set(self.hosts)
        return sorted(owned[name] for name in self.hosts)

    def is_even(self) -> bool:
        counts = self.counts()
        return sum(counts) == len(self.partitions) and counts[-1] - counts[0] <= 1


class Host:
    """As much of a partition manager as the balancer can notice."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.simulation = simulation
        self.name = name
        self.leases: dict[str, Lease] = {}
        self.rounds_missed = 0

    def cycle(self) -> Iterator[None]:
        """Renew, look, act; and look again at once where somebody else was faster."""
        if self.rounds_missed:
            self.rounds_missed -= 1
            return
        store, simulation = self.simulation.store, self.simulation
        self.leases = dict(run(store.renew(GROUP, list(self.leases.values()))))
        is_beaten = True
        tries = 0
        while is_beaten and tries < 5:
            yield
            tries += 1
            snapshot = run(store.list_leases(GROUP))
            actions = decide_balance(
                snapshot,
                simulation.partitions,
                self.name,
                lease_duration_s=LEASE_DURATION_S,
                choice=simulation.random.random(),
                pumped=self.leases.keys(),
            )
            check_steals_improve(snapshot, actions, self.name)
            is_beaten = False
            if actions.hand_over:
                yield
                simulation.actions += 1
                run(store.release(GROUP, actions.hand_over))
                for lease in actions.hand_over:
                    self.leases.pop(lease.partition_id, None)
            for lease in actions.request:
                yield
                simulation.actions += 1
                run(store.request(GROUP, lease, self.name))
            for partition, expected in (
                *actions.acquire,
                *((lease.partition_id, lease) for lease in actions.steal),
            ):
                yield
                simulation.actions += 1
                taken = run(store.acquire(GROUP, partition, self.name, expected=expected))
                if taken is None:
                    is_beaten = True
                else:
                    self.leases[partition] = taken
                    simulation.epochs[partition].append((taken.epoch, self.name))


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits, as the memory store's do not."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("It waits.")


def check_steals_improve(snapshot: LeaseSnapshot, actions: BalanceActions, me: str) -> None:
    """Every steal in turn takes from a host that has at least two more."""
    counts = Counter(
        lease.owner
        for lease in snapshot.leases.values()
        if not lease.is_expired(snapshot.now, LEASE_DURATION_S)
    )
    counts[me] += sum(
        1
        for _, expected in actions.acquire
        if expected is None or expected.is_expired(snapshot.now, LEASE_DURATION_S)
    )
    for lease in actions.steal:
        assert lease.owner != me
        assert counts[lease.owner] > counts[me] + 1
        counts[lease.owner] -= 1
        counts[me] += 1


changes = st.lists(
    st.tuples(
        st.lists(st.sampled_from(["join", "join", "join", "leave", "kill", "pause", "restart"]), max_size=6),
        st.integers(0, 4),
    ),
    max_size=5,
)
"""What happens at once, and how many rounds pass until the next."""

ROUNDS_UNTIL_EXPIRED = 5
"""A killed host's leases have run out, a paused host is back."""
ROUNDS_UNTIL_EVEN = 5


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(partition_count=st.integers(1, 24), plan=changes, seed=st.integers(0, 2**32 - 1))
@example(partition_count=16, plan=[(["join"], 3), (["join"] * 5, 0)], seed=1)
@example(partition_count=16, plan=[(["join"] * 5, 4), (["kill"], 0)], seed=2)
@example(partition_count=16, plan=[(["join"] * 6, 4), (["kill"] * 3, 1), (["kill", "restart"], 0)], seed=3)
@example(
    partition_count=11,
    plan=[
        (["join", "join", "join", "leave"], 2),
        (["kill", "pause", "join"], 1),
        (["join", "leave"], 1),
        (["join", "kill"], 0),
    ],
    seed=0,
)
@example(partition_count=4, plan=[(["join"] * 2, 4), (["join"] * 10, 0)], seed=4)
def test_hosts_converge_and_then_rest(
    partition_count: int, plan: Sequence[tuple[Sequence[str], int]], seed: int
) -> None:
    """Whoever comes and goes: soon every partition has an owner, evenly, and then nothing moves any more."""
    simulation = Simulation(partition_count, seed)
    simulation.apply("join")
    for happening, rounds in plan:
        for change in happening:
            simulation.apply(change)
        for _ in range(rounds):
            simulation.run_round()
    if not simulation.hosts:
        simulation.apply("join")
    for _ in range(ROUNDS_UNTIL_EXPIRED + ROUNDS_UNTIL_EVEN):
        simulation.run_round()
    assert simulation.is_even(), simulation.counts()
    for _ in range(4):
        simulation.run_round()
        assert simulation.actions == 0
    assert simulation.is_even()
    for partition, epochs in simulation.epochs.items():
        numbers = [epoch for epoch, _ in epochs]
        assert numbers == list(range(1, len(numbers) + 1)), f"partition {partition}: {epochs}"


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.slow
def test_a_killed_hosts_partitions_are_taken_in_the_first_look_after_they_ran_out(seed: int) -> None:
    """Nobody waits for another host to go first, and the hosts do not take more than they keep."""
    simulation = Simulation(16, seed)
    for _ in range(5):
        simulation.apply("join")
    for _ in range(6):
        simulation.run_round()
    assert simulation.counts() == [3, 3, 3, 3, 4]
    simulation.apply("kill")
    for _ in range(2):
        simulation.run_round()
        assert simulation.actions == 0
    simulation.now += timedelta(seconds=1)
    simulation.run_round()
    assert simulation.counts() == [4, 4, 4, 4]
    simulation.run_round()
    assert simulation.actions == 0


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.slow
def test_many_that_join_at_once_do_not_strip_a_host(seed: int) -> None:
    """Five hosts that see one host with everything leave it its share, and soon all are even."""
    simulation = Simulation(30, seed)
    simulation.apply("join")
    simulation.run_round()
    first = next(iter(simulation.hosts))
    for _ in range(5):
        simulation.apply("join")
    lowest = 30
    for _ in range(6):
        simulation.run_round()
        leases = run(simulation.store.list_leases(GROUP)).leases.values()
        lowest = min(lowest, sum(lease.owner == first for lease in leases))
    assert simulation.counts() == [5] * 6
    assert lowest >= 4
