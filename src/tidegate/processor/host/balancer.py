"""Decides which partitions a host acquires next: a pure function of the leases.

Theory of operation. Hosts never communicate; each reads the leases and acts. Each host computes the same plan
for all hosts from the same leases, and performs its own part of it:

1. A host is live while it holds an unexpired lease or has asked for one; the balancing host always is. A
   partition counts for the host that asked for it, even before its owner has handed it over.
2. Each live host has a share: ``n // h`` partitions, and one more for the ``n % h`` hosts that own the most
   already. So balanced partitions do not move.
3. Free partitions (never owned, released, expired) go to hosts below their share, the neediest first.
4. Partitions that are still missing are requested from hosts above their share, most first. A lease is stolen
   if its owner knows no requests, or has not answered in time.

Two cases are not in the plan. A host without leases is invisible to others, so hosts that join at the same
time do not know of each other: each asks for only one partition, picked at random, and is in every host's
plan from the next reading on. And if a partition has been expired for a while, the host it was planned for
has also died: any host takes it, whatever its share.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.processor.lease import LEASE_STEPS, Lease, LeaseSnapshot, LeaseState, LeaseStep

OVERDUE_FRACTION: Final = 0.1
"""A lease that expired this fraction of its duration ago is free for any host (our choice: 3 s of 30, so that
a dead host's partitions are read again within 5 s of expiry)."""


@dataclass(frozen=True, slots=True)
class BalanceActions:
    """What to do, in this order; each attempt may fail because another host was faster."""

    hand_over: tuple[Lease, ...] = ()
    """Own leases that other hosts have asked for."""
    acquire: tuple[tuple[str, Lease | None], ...] = ()
    """Free partitions and those offered to this host: id, and the lease as read (None: never had one)."""
    steal: tuple[Lease, ...] = ()
    """Leases whose owners know no requests, or have not answered one for a lease duration."""
    request: tuple[Lease, ...] = ()
    """Leases of hosts above their share, to ask for."""
    is_waiting: bool = False
    """Whether an owner has yet to answer this host's request."""

    def __bool__(self) -> bool:
        return bool(self.hand_over or self.acquire or self.steal or self.request)


def decide_balance(
    snapshot: LeaseSnapshot,
    partition_ids: Sequence[str],
    me: str,
    *,
    lease_duration_s: float,
    choice: float,
    pumped: Collection[str] = (),
) -> BalanceActions:
    """Decide which leases host ``me`` hands over, acquires, asks for and steals.

    partition_ids: all of the hub, in the hub's order; leases of other partitions are ignored. choice: a
    random number in [0, 1), which spreads the actions of hosts that do not know of each other. pumped:
    partitions that this host has a pump for, even one being stopped; never acquired. A lease of ``me`` for
    another partition is left from an earlier run, and is acquired again.

    A single host takes everything at once. Each move makes the two hosts' numbers of partitions more even.
    """
    view = _View(snapshot, partition_ids, me, lease_duration_s)
    waiting = [lease for lease in view.owned[me] if lease.owner not in ("", me)]
    unanswered = [
        lease
        for lease in waiting
        if lease.partition_id not in pumped and lease.is_request_overdue(snapshot.now, lease_duration_s)
    ]
    reclaimed = [
        lease for lease in view.owned[me] if lease.owner in ("", me) and lease.partition_id not in pumped
    ]
    shares = _shares(view.owned, len(partition_ids))
    planned = _plan_free(view, shares)
    mine = [partition for partition in planned[me] if partition not in pumped]
    overdue = [
        partition
        for partition in view.free
        if partition not in mine and partition not in pumped and view.is_overdue(partition)
    ]
    acquire = [lease.partition_id for lease in reclaimed]
    # Rotated, so that hosts that start at the same time do not all try the same partition first.
    acquire += _rotated(mine, choice) + _rotated(overdue, choice)
    if view.owned[me]:
        moves = _plan_moves(view.owned, shares, planned)[me]
        # Overdue partitions were not in the plan; they reduce what must be moved.
        moves = moves[: max(0, len(moves) - len(overdue))]
    elif acquire:
        moves = []
    else:
        moves = _pick_one(view.owned, shares, choice)
    moves = [lease for lease in moves if lease.partition_id not in pumped]
    request = [lease for lease in moves if lease.requested_by is not None]
    return BalanceActions(
        hand_over=tuple(view.requested_of_me),
        acquire=tuple((partition, snapshot.leases.get(partition)) for partition in acquire),
        steal=tuple(unanswered + [lease for lease in moves if lease.requested_by is None]),
        request=tuple(request),
        is_waiting=bool(request or waiting),
    )


def seconds_until_change(
    snapshot: LeaseSnapshot, partition_ids: Sequence[str], me: str, *, lease_duration_s: float
) -> float | None:
    """Seconds until another host's lease or offer, if any, expires or becomes overdue unless renewed."""
    waits = []
    for partition in partition_ids:
        lease = snapshot.leases.get(partition)
        if lease is None or (lease.owner or lease.requested_by or me) == me:
            continue
        expires_in_s = lease_duration_s - (snapshot.now - lease.renewed_at).total_seconds()
        waits += [expires_in_s, expires_in_s + lease_duration_s * OVERDUE_FRACTION]
    return min((wait for wait in waits if wait > 0), default=None)


class _View:
    """A hub's partitions: those that live hosts own, and free ones."""

    def __init__(
        self, snapshot: LeaseSnapshot, partition_ids: Sequence[str], me: str, lease_duration_s: float
    ) -> None:
        self.owned: dict[str, list[Lease]] = {me: []}
        """Leases by live host, in the hub's order; if requested or offered, by the host that asked."""
        self.requested_of_me: list[Lease] = []
        self.free: list[str] = []
        self._snapshot = snapshot
        self._overdue_s = lease_duration_s * (1 + OVERDUE_FRACTION)
        for partition in partition_ids:
            state = snapshot.state(partition, lease_duration_s)
            if (state, LeaseStep.ACQUIRE) in LEASE_STEPS:
                self.free.append(partition)
                continue
            lease = snapshot.leases[partition]
            owner: str | None = lease.owner
            if state is not LeaseState.OFFERED:
                self.owned.setdefault(lease.owner, [])
            if state in (LeaseState.REQUESTED, LeaseState.OFFERED):
                owner = lease.requested_by
            assert owner
            self.owned.setdefault(owner, []).append(lease)
            if lease.owner == me and owner != me:
                self.requested_of_me.append(lease)

    def is_overdue(self, partition: str) -> bool:
        """Whether a free partition's lease has been expired so long that any host may take it."""
        return self._snapshot.state(partition, self._overdue_s) is LeaseState.EXPIRED


def _shares(owned: Mapping[str, Sequence[Lease]], partition_count: int) -> dict[str, int]:
    """The number of partitions of each live host; the larger shares go to hosts that own the most."""
    share, larger = divmod(partition_count, len(owned))
    ranked = sorted(owned, key=lambda host: (-len(owned[host]), host))
    return {host: share + (rank < larger) for rank, host in enumerate(ranked)}


def _plan_free(view: _View, shares: Mapping[str, int]) -> dict[str, list[str]]:
    """Which free partition goes to which host: one at a time to the host that lacks the most."""
    planned: dict[str, list[str]] = {host: [] for host in shares}
    lacking = {host: shares[host] - len(leases) for host, leases in view.owned.items()}
    for partition in view.free:
        # Not empty: the shares add up to all partitions, and this one is free.
        host = min(lacking, key=lambda host: (-lacking[host], host))
        planned[host].append(partition)
        lacking[host] -= 1
    return planned


def _plan_moves(
    owned: Mapping[str, Sequence[Lease]], shares: Mapping[str, int], planned: Mapping[str, Sequence[str]]
) -> dict[str, list[Lease]]:
    """Which host gets which leases: the one that lacks the most gets one of the host with the most."""
    moves: dict[str, list[Lease]] = {host: [] for host in shares}
    lacking = {host: shares[host] - len(owned[host]) - len(planned[host]) for host in shares}
    counts = {host: len(leases) for host, leases in owned.items()}
    movable = _movable(owned, shares)
    while (to := min(lacking, key=lambda host: (-lacking[host], host))) and lacking[to] > 0:
        surplus = [host for host in movable if movable[host] and counts[host] > shares[host]]
        if not surplus:
            break  # what is above a share has yet to be handed over to it
        source = min(surplus, key=lambda host: (-counts[host], host))
        moves[to].append(movable[source].pop())
        lacking[to] -= 1
        counts[source] -= 1
    return moves


def _movable(owned: Mapping[str, Sequence[Lease]], shares: Mapping[str, int]) -> dict[str, list[Lease]]:
    """Leases of hosts above their share, without those that a host has asked for and does not hold yet."""
    return {
        host: [lease for lease in owned[host] if lease.owner == host]
        for host in sorted(owned)
        if len(owned[host]) > shares[host]
    }


def _pick_one(owned: Mapping[str, Sequence[Lease]], shares: Mapping[str, int], choice: float) -> list[Lease]:
    """One lease of a host above its share; none if no host is."""
    leases = [lease for movable in _movable(owned, shares).values() for lease in movable]
    return leases[int(choice * len(leases)) :][:1]


def _rotated(partitions: list[str], choice: float) -> list[str]:
    start = int(choice * len(partitions))
    return partitions[start:] + partitions[:start]
