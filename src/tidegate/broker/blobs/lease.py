"""The lease of a blob: who alone may change it, and for how long. Pure; times are a monotonic clock's.

    available ─acquire─► leased ─(time)─► expired          acquire, renew: leased again
                           │ break                         release: available
                           ▼
                        breaking ─(time)─► broken          acquire when broken, release: as above

What is stored has no time (``StoredLease``): after a restart, a lease lasts as long as when it was new. It is
then never shorter than its holder believes, and renewing stores nothing. Source: Azure "Lease Blob", 2026-09.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import msgspec

from tidegate.broker.blobs.refusals import BlobRefusedError, Refusal

INFINITE: Final = -1
DURATIONS_S: Final = range(15, 61)
"""Seconds of a lease that is not infinite."""


class StoredLease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What of a lease outlives the service."""

    lease_id: str
    duration_s: int
    """``INFINITE``: until it is released or broken."""
    break_s: float | None = None
    """Seconds from the break to its end; None: it is not broken."""

    def lease(self, now: float) -> Lease:
        """The lease, as if it had just been acquired, renewed or broken."""
        until = None if self.duration_s == INFINITE else now + self.duration_s
        broken_at = None if self.break_s is None else now + self.break_s
        return Lease(self, until, broken_at)


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that was not released."""

    stored: StoredLease
    until: float | None
    """When it expires; None: never."""
    broken_at: float | None = None
    """When a break ends it; None: it is not broken."""

    def state(self, now: float) -> str:
        """``leased``, ``expired``, ``breaking`` or ``broken``."""
        if self.broken_at is not None:
            return "breaking" if now < self.broken_at else "broken"
        return "leased" if self.until is None or now < self.until else "expired"

    def is_held(self, now: float) -> bool:
        """Whether it keeps others out."""
        return self.state(now) in ("leased", "breaking")


def acquired(lease: Lease | None, now: float, *, lease_id: str, duration_s: int) -> Lease:
    """The lease after Acquire. Raises BlobRefusedError."""
    if duration_s != INFINITE and duration_s not in DURATIONS_S:
        raise BlobRefusedError(
            Refusal.INVALID_HEADER, f"x-ms-lease-duration is {duration_s}: it must be -1, or 15 to 60 s."
        )
    if lease is not None and lease.is_held(now):
        if lease.stored.lease_id != lease_id:
            raise BlobRefusedError(Refusal.LEASE_PRESENT)
        if lease.broken_at is not None:
            raise BlobRefusedError(Refusal.LEASE_BREAKING)
    return StoredLease(lease_id, duration_s).lease(now)


def renewed(lease: Lease | None, now: float, *, lease_id: str) -> Lease:
    """The lease after Renew, which may come late if the blob has not changed since.

    Raises BlobRefusedError.
    """
    lease = _matching(lease, lease_id)
    if lease.broken_at is not None:
        raise BlobRefusedError(Refusal.LEASE_BROKEN)
    return lease.stored.lease(now)


def changed(lease: Lease | None, now: float, *, lease_id: str, proposed_id: str) -> Lease:
    """The lease after Change. Raises BlobRefusedError."""
    if lease is None or not lease.is_held(now):
        raise BlobRefusedError(Refusal.LEASE_ABSENT)
    if lease.broken_at is not None:
        raise BlobRefusedError(Refusal.LEASE_BREAKING_UNCHANGED)
    if lease.stored.lease_id not in (lease_id, proposed_id):
        raise BlobRefusedError(Refusal.LEASE_DIFFERS)
    return replace(lease, stored=msgspec.structs.replace(lease.stored, lease_id=proposed_id))


def released(lease: Lease | None, *, lease_id: str) -> None:
    """Check a Release. Raises BlobRefusedError."""
    _matching(lease, lease_id)


def broken(lease: Lease | None, now: float, *, period_s: int | None) -> Lease:
    """The lease after Break. period_s: at most so long until it ends; None: its rest, or 0 if it is infinite.

    Raises BlobRefusedError.
    """
    if lease is None:
        raise BlobRefusedError(Refusal.LEASE_ABSENT)
    ends = [each for each in (lease.broken_at, lease.until) if each is not None]
    rest_s = max(0.0, min(ends) - now) if ends else None
    if period_s is None:
        left_s = rest_s or 0.0
    else:
        left_s = float(period_s) if rest_s is None else min(float(period_s), rest_s)
    return Lease(msgspec.structs.replace(lease.stored, break_s=left_s), lease.until, now + left_s)


def check_change(lease: Lease | None, now: float, *, lease_id: str | None) -> None:
    """Whether a request with this id may change or delete the blob. Raises BlobRefusedError."""
    if lease is not None and lease.is_held(now) and lease_id is None:
        raise BlobRefusedError(Refusal.LEASE_ID_MISSING)
    check_read(lease, now, lease_id=lease_id)


def check_read(lease: Lease | None, now: float, *, lease_id: str | None) -> None:
    """Whether a request with this id may read the blob; without one, all may. Raises BlobRefusedError."""
    if lease_id is None:
        return
    if lease is None:
        raise BlobRefusedError(Refusal.LEASE_NOT_PRESENT)
    if lease.stored.lease_id != lease_id:
        raise BlobRefusedError(Refusal.LEASE_ID_DIFFERS)
    if not lease.is_held(now):
        raise BlobRefusedError(Refusal.LEASE_LOST)


def _matching(lease: Lease | None, lease_id: str) -> Lease:
    if lease is None or lease.stored.lease_id != lease_id:
        raise BlobRefusedError(Refusal.LEASE_DIFFERS)
    return lease
