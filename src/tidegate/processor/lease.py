"""Leases: who may process a partition, until when, under which epoch. And the store that keeps them.

A lease is held by renewing it. All times are the store's own, never a host's: hosts whose clocks differ
agree on what has expired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol

from tidegate.model.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class GroupKey:
    """The consumer group whose partitions hosts share: namespace, event hub and group, in one spelling.

    Event Hubs compares all three without regard to case; they are kept in lower case, as the official blob
    layout has them.
    """

    fully_qualified_namespace: str
    """Host name of the namespace, without port, such as ``name.servicebus.windows.net`` or ``localhost``."""
    event_hub: str
    consumer_group: str

    def __post_init__(self) -> None:
        for name in ("fully_qualified_namespace", "event_hub", "consumer_group"):
            value: str = getattr(self, name)
            if not value:
                raise InvalidArgumentError(f"The {name.replace('_', ' ')} of a consumer group is empty.")
            object.__setattr__(self, name, value.lower())

    def __str__(self) -> str:
        return f"{self.event_hub}/{self.consumer_group}"


class LeaseState(StrEnum):
    """A lease as other hosts see it."""

    ABSENT = "never had"
    HELD = "held"
    EXPIRED = "expired"
    RELEASED = "released"


class LeaseStep(StrEnum):
    """What changes a lease; the value is the label in its picture."""

    ACQUIRE = "acquire"
    STEAL = "steal"
    RENEW = "renew"
    RELEASE = "release"
    EXPIRE = "no renewal in time"


_S, _L = LeaseState, LeaseStep

LEASE_STEPS: Final[Mapping[tuple[LeaseState, LeaseStep], LeaseState]] = {
    (_S.ABSENT, _L.ACQUIRE): _S.HELD,
    (_S.HELD, _L.RENEW): _S.HELD,
    (_S.HELD, _L.STEAL): _S.HELD,
    (_S.HELD, _L.EXPIRE): _S.EXPIRED,
    (_S.HELD, _L.RELEASE): _S.RELEASED,
    (_S.EXPIRED, _L.ACQUIRE): _S.HELD,
    (_S.RELEASED, _L.ACQUIRE): _S.HELD,
}
"""What a host may try, by the state that it sees. The balancer goes by it, and the documentation draws it."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to process one partition, as a store has it."""

    partition_id: str
    owner: str
    """The host that holds it; empty: it was released."""
    epoch: int
    """Rises each time the lease is acquired. 0 in a store that keeps none. Receivers are opened with it only
    where the store's ``has_epochs`` says so."""
    acquired_at: datetime | None
    """When ``owner`` got it, aware; None where the store does not keep it."""
    renewed_at: datetime
    """When it was last acquired or renewed, by the store's clock, aware."""
    version: str
    """Opaque: what a compare-and-set in the store compares (an ETag, a counter)."""

    def state(self, now: datetime, duration_s: float) -> LeaseState:
        """Its state at ``now`` by the store's clock; it expires ``duration_s`` seconds after its renewal."""
        if not self.owner:
            return LeaseState.RELEASED
        is_over = (now - self.renewed_at).total_seconds() >= duration_s
        return LeaseState.EXPIRED if is_over else LeaseState.HELD

    def is_expired(self, now: datetime, duration_s: float) -> bool:
        """Whether others may acquire it: released, or not renewed for ``duration_s`` seconds."""
        return self.state(now, duration_s) is not LeaseState.HELD


@dataclass(frozen=True, slots=True)
class LeaseSnapshot:
    """All leases of a group at one moment of the store's clock."""

    leases: Mapping[str, Lease]
    """By partition id; a partition that nobody ever had is absent."""
    now: datetime
    """The store's clock at the reading, aware."""

    def state(self, partition_id: str, duration_s: float) -> LeaseState:
        """The state of a partition's lease; leases expire ``duration_s`` seconds after their renewal."""
        lease = self.leases.get(partition_id)
        return LeaseState.ABSENT if lease is None else lease.state(self.now, duration_s)


class LeaseStore(Protocol):
    """Keeps leases. Everything it changes is a compare-and-set on ``Lease.version``.

    Every method raises a StoreUnavailableError (in SQL: DatabaseUnavailableError) where the store does not
    answer and a retry helps, a StoreError (DatabaseError) where it refuses for good.
    Cancellation: the change took place or it did not; list again.
    """

    @property
    def has_epochs(self) -> bool:
        """True: acquiring raises the epoch, and receivers are opened with it as their owner level.

        False where official processors may share the group: their receivers all have owner level 0, and one
        of a higher level would shut them out for good.
        """
        ...

    async def list_leases(self, group: GroupKey) -> LeaseSnapshot:
        """All leases of ``group``, with the store's time."""
        ...

    async def acquire(
        self, group: GroupKey, partition_id: str, owner: str, *, expected: Lease | None
    ) -> Lease | None:
        """Give the partition to ``owner`` with the next epoch, if it still is as ``expected``.

        expected: None where nobody ever had it.

        Returns the new lease; None where somebody else was faster. ``owner`` may be who has it already: that
        is a new epoch, too.
        """
        ...

    async def renew(self, group: GroupKey, leases: Sequence[Lease]) -> Mapping[str, Lease]:
        """Renew leases that are still as given; returns the renewed ones by partition id.

        One that is missing in the answer was taken by somebody else or released.
        """
        ...

    async def release(self, group: GroupKey, leases: Sequence[Lease]) -> None:
        """Give leases back, those that are still as given: others may take them at once. Keeps the epoch."""
        ...
