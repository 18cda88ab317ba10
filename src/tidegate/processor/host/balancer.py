"""Which partitions a host acquires next: a pure function of the leases.

Theory of operation. The hosts never talk to each other; each looks at the leases and acts. So that their
actions fit together, each host works out the same plan from the same leases, for all hosts, and performs its
own part of it:

1. A host is live while it holds an unexpired lease; the balancing host always is.
2. Each live host has a share: ``n // h`` partitions, and ``n % h`` of them one more, which are those that
   have the most already. So shares follow what is there, and where all is even nothing moves.
3. Free partitions (never had, released, expired) go to those below their share, the neediest first.
4. What is then missing is taken from those above their share, from the one with the most first.

Two cases are not in the plan. Other hosts cannot see a host without leases, so hosts that join at once do not
know of each other: each takes only one partition, picked at random, and is in every host's plan from the next
look on. And a partition that has been expired for a while was not taken by the host it was planned for (that
host died, too): any host that sees it takes it, share or not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.processor.lease import LEASE_STEPS, Lease, LeaseSnapshot, LeaseState, LeaseStep

OVERDUE_FRACTION: Final = 0.1
"""A lease that expired this part of its duration ago is free for any host (our choice: 3 s of 30, because
a dead host's partitions are to be read again within 5 s after the lease)."""


@dataclass(frozen=True, slots=True)
class BalanceActions:
    """What to try to acquire, in this order; each may fail because another host was faster."""

    acquire: tuple[tuple[str, Lease | None], ...] = ()
    """Free partitions: id, and the lease as it was read (None if there never was one)."""
    steal: tuple[Lease, ...] = ()
    """Leases of hosts above their share."""

    def __bool__(self) -> bool:
        return bool(self.acquire or self.steal)


def decide_balance(
    snapshot: LeaseSnapshot,
    partition_ids: Sequence[str],
    me: str,
    *,
    lease_duration_s: float,
    choice: float,
    pumped: Collection[str] = (),
) -> BalanceActions:
    """What host ``me`` does about the leases it sees.

    partition_ids: all of the hub, in the hub's order; leases of others are ignored. choice: a random number
    in [0, 1): spreads what hosts do that cannot know of each other. pumped: partitions that this host has a
    pump for, even one that is only being stopped: never acquired. A lease of ``me`` that is not among them is
    left from an earlier run, and is acquired again.

    A host alone takes everything at once. Each steal makes the two hosts' numbers of partitions more even.
    """
    view = _View(snapshot, partition_ids, me, lease_duration_s)
    reclaimed = [lease for lease in view.owned[me] if lease.partition_id not in pumped]
    shares = _shares(view.owned, len(partition_ids))
    planned = _plan_free(view, shares)
    mine = [partition for partition in planned[me] if partition not in pumped]
    overdue = [
        partition
        for partition in view.free
        if partition not in mine and partition not in pumped and view.is_overdue(partition)
    ]
    acquire = [lease.partition_id for lease in reclaimed]
    # Rotated, so that hosts which start on the same free partitions at once do not all begin with the same.
    acquire += _rotated(mine, choice) + _rotated(overdue, choice)
    if view.owned[me]:
        steal = _plan_steals(view.owned, shares, planned)[me]
        # What is overdue was not in the plan; with it, less is missing.
        steal = steal[: max(0, len(steal) - len(overdue))]
    elif acquire:
        steal = []
    else:
        steal = _pick_one(view.owned, shares, choice)
    return BalanceActions(
        tuple((partition, snapshot.leases.get(partition)) for partition in acquire),
        tuple(lease for lease in steal if lease.partition_id not in pumped),
    )


def seconds_until_change(
    snapshot: LeaseSnapshot, partition_ids: Sequence[str], me: str, *, lease_duration_s: float
) -> float | None:
    """Seconds until another host's lease becomes free, unless it is renewed; None if there is none.

    That is when it expires, or when it has been expired so long that any host may take it.
    """
    waits = []
    for partition in partition_ids:
        lease = snapshot.leases.get(partition)
        if lease is None or lease.owner in ("", me):
            continue
        expires_in_s = lease_duration_s - (snapshot.now - lease.renewed_at).total_seconds()
        waits += [expires_in_s, expires_in_s + lease_duration_s * OVERDUE_FRACTION]
    return min((wait for wait in waits if wait > 0), default=None)


class _View:
    """The leases of a hub's partitions, sorted into those that live hosts have and those that are free."""

    def __init__(
        self, snapshot: LeaseSnapshot, partition_ids: Sequence[str], me: str, lease_duration_s: float
    ) -> None:
        self.owned: dict[str, list[Lease]] = {me: []}
        """By live host, each in the hub's order."""
        self.free: list[str] = []
        self._snapshot = snapshot
        self._overdue_s = lease_duration_s * (1 + OVERDUE_FRACTION)
        for partition in partition_ids:
            if (snapshot.state(partition, lease_duration_s), LeaseStep.ACQUIRE) in LEASE_STEPS:
                self.free.append(partition)
            else:
                lease = snapshot.leases[partition]
                self.owned.setdefault(lease.owner, []).append(lease)

    def is_overdue(self, partition: str) -> bool:
        """Whether a free partition's lease has been expired for so long that any host may take it."""
        return self._snapshot.state(partition, self._overdue_s) is LeaseState.EXPIRED


def _shares(owned: Mapping[str, Sequence[Lease]], partition_count: int) -> dict[str, int]:
    """How many partitions each live host gets; the larger shares go to hosts that own the most."""
    share, larger = divmod(partition_count, len(owned))
    ranked = sorted(owned, key=lambda host: (-len(owned[host]), host))
    return {host: share + (rank < larger) for rank, host in enumerate(ranked)}


def _plan_free(view: _View, shares: Mapping[str, int]) -> dict[str, list[str]]:
    """Which free partition goes to which host: one at a time to the host that lacks the most."""
    planned: dict[str, list[str]] = {host: [] for host in shares}
    lacking = {host: shares[host] - len(leases) for host, leases in view.owned.items()}
    for partition in view.free:
        # There is one: the shares add up to all partitions, and this one is free.
        host = min(lacking, key=lambda host: (-lacking[host], host))
        planned[host].append(partition)
        lacking[host] -= 1
    return planned


def _plan_steals(
    owned: Mapping[str, Sequence[Lease]], shares: Mapping[str, int], planned: Mapping[str, Sequence[str]]
) -> dict[str, list[Lease]]:
    """Which host steals which leases: the one that lacks the most steals from the one with the most."""
    steals: dict[str, list[Lease]] = {host: [] for host in shares}
    lacking = {host: shares[host] - len(owned[host]) - len(planned[host]) for host in shares}
    left = {host: list(leases) for host, leases in owned.items() if len(leases) > shares[host]}
    while (thief := min(lacking, key=lambda host: (-lacking[host], host))) and lacking[thief] > 0:
        # What hosts lack, others have above their shares, so there is a victim.
        victim = min(left, key=lambda host: (-len(left[host]), host))
        steals[thief].append(left[victim].pop())
        lacking[thief] -= 1
        if len(left[victim]) == shares[victim]:
            del left[victim]
    return steals


def _pick_one(owned: Mapping[str, Sequence[Lease]], shares: Mapping[str, int], choice: float) -> list[Lease]:
    """One lease of a host above its share; none if no host is."""
    leases = [lease for host in sorted(owned) if len(owned[host]) > shares[host] for lease in owned[host]]
    return leases[int(choice * len(leases)) :][:1]


def _rotated(partitions: list[str], choice: float) -> list[str]:
    start = int(choice * len(partitions))
    return partitions[start:] + partitions[:start]
