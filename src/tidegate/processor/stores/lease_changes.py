"""Changes of a group's leases by compare-and-set, for stores that hold them all in one place. Pure."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import replace
from datetime import datetime

from tidegate.processor.lease import Lease

Leases = MutableMapping[str, Lease]
"""By partition id; changed in place."""


def acquire(
    leases: Leases, partition_id: str, owner: str, *, expected: Lease | None, epoch: int, now: datetime
) -> Lease | None:
    """Give a partition to ``owner`` under ``epoch``; None if its lease is no longer ``expected``."""
    current = leases.get(partition_id)
    if _identity(current) != _identity(expected):
        return None
    version = "1" if current is None else _next_version(current)
    leases[partition_id] = Lease(partition_id, owner, epoch, now, now, version, requested_by="")
    return leases[partition_id]


def request(leases: Leases, lease: Lease, requester: str, *, now: datetime) -> None:
    """Record a request, if the lease has the same owner and epoch."""
    current = leases.get(lease.partition_id)
    if current is None or (current.owner, current.epoch) != (lease.owner, lease.epoch):
        return
    if current.owner and current.requested_by is not None:
        leases[lease.partition_id] = replace(current, requested_by=requester, requested_at=now)


def change(
    leases: Leases, wanted: Sequence[Lease], *, now: datetime, is_released: bool = False
) -> dict[str, Lease]:
    """Renew or release leases that are unchanged and have an owner. Returns these."""
    changed: dict[str, Lease] = {}
    for lease in wanted:
        current = leases.get(lease.partition_id)
        if current is not None and current.owner and _identity(current) == _identity(lease):
            changed[lease.partition_id] = replace(
                current,
                owner="" if is_released else current.owner,
                renewed_at=now,
                version=_next_version(current),
            )
    leases.update(changed)
    return changed


def _identity(lease: Lease | None) -> tuple[str, str, int] | None:
    """What an unchanged lease has kept: more than the version, because a store may have been deleted."""
    return None if lease is None else (lease.version, lease.owner, lease.epoch)


def _next_version(lease: Lease) -> str:
    return str(int(lease.version) + 1)
