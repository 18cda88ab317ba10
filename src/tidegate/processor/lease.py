"""Leases, which record who may process a partition, until when and under which epoch; and their store.

A lease is held by renewing it. All times are by the store's clock, so that hosts whose clocks differ agree on
what has expired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

from tidegate.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from tidegate.model.hub_properties import EventHubProperties


NAMES_SUFFIX: Final = "~hosts"
"""Of ``GroupKey.names``; no consumer group's name has the first character."""
SHADOW_MARK: Final = "~"
"""The same character between a consumer group and the name of a shadow of its pipeline, in SQL."""


@dataclass(frozen=True, slots=True)
class GroupKey:
    """The consumer group whose partitions hosts share.

    Event Hubs compares all names case-insensitively; they are kept in lower case, as in the official blob
    layout.
    """

    namespace: str
    """The namespace's id, which is the same by whatever name and port it is reached. If the service has none
    (Azure): its host name without port, such as ``name.servicebus.windows.net``."""
    event_hub: str
    consumer_group: str
    authority: str = field(default="", compare=False)
    """The namespace's host name, and port if its connection string gives one: how official processors may
    name it. Empty: as ``namespace``."""

    def __post_init__(self) -> None:
        for name in ("namespace", "event_hub", "consumer_group"):
            value: str = getattr(self, name)
            if not value:
                raise InvalidArgumentError(f"The {name.replace('_', ' ')} of a consumer group is empty.")
            object.__setattr__(self, name, value.lower())
        object.__setattr__(self, "authority", (self.authority or self.namespace).lower())

    @classmethod
    def of(cls, event_hub: EventHubProperties, consumer_group: str, *, host: str, authority: str) -> GroupKey:
        """A group of a hub that the service at ``host`` has described."""
        return cls(event_hub.namespace_id or host, event_hub.name, consumer_group, authority)

    @property
    def names(self) -> GroupKey:
        """The group of the leases that are the names of this group's hosts."""
        return replace(self, consumer_group=self.consumer_group + NAMES_SUFFIX)

    def __str__(self) -> str:
        return f"{self.event_hub}/{self.consumer_group}"


class LeaseState(StrEnum):
    """A lease as other hosts see it."""

    ABSENT = "never had"
    HELD = "held"
    REQUESTED = "requested"
    """Held, and another host has asked for it."""
    OFFERED = "offered"
    """Released by its owner to the host that asked for it."""
    EXPIRED = "expired"
    RELEASED = "released"


class LeaseStep(StrEnum):
    """A transition of a lease; the value is its label in the diagram."""

    ACQUIRE = "acquire"
    REQUEST = "request"
    HAND_OVER = "hand over"
    TAKE_OVER = "take over"
    STEAL = "steal"
    RENEW = "renew"
    RELEASE = "release"
    EXPIRE = "no renewal in time"
    LAPSE = "not taken in time"


_S, _L = LeaseState, LeaseStep

LEASE_STEPS: Final[Mapping[tuple[LeaseState, LeaseStep], LeaseState]] = {
    (_S.ABSENT, _L.ACQUIRE): _S.HELD,
    (_S.HELD, _L.RENEW): _S.HELD,
    (_S.HELD, _L.REQUEST): _S.REQUESTED,
    (_S.HELD, _L.STEAL): _S.HELD,
    (_S.HELD, _L.EXPIRE): _S.EXPIRED,
    (_S.HELD, _L.RELEASE): _S.RELEASED,
    (_S.REQUESTED, _L.RENEW): _S.REQUESTED,
    (_S.REQUESTED, _L.HAND_OVER): _S.OFFERED,
    (_S.REQUESTED, _L.STEAL): _S.HELD,
    (_S.REQUESTED, _L.EXPIRE): _S.EXPIRED,
    (_S.OFFERED, _L.TAKE_OVER): _S.HELD,
    (_S.OFFERED, _L.LAPSE): _S.RELEASED,
    (_S.EXPIRED, _L.ACQUIRE): _S.HELD,
    (_S.RELEASED, _L.ACQUIRE): _S.HELD,
}
"""The steps that a host may try in each state. Used by the balancer, and drawn in the documentation.

A lease is stolen from an owner that knows no requests, or that has not answered one for a lease duration.
"""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to process one partition, as it is stored."""

    partition_id: str
    owner: str
    """The host that holds it; empty if it was released."""
    epoch: int
    """Rises with each acquisition, and is the receivers' owner level; 0 in a store without epochs."""
    acquired_at: datetime | None
    """When ``owner`` acquired it, aware; None if the store does not keep it."""
    renewed_at: datetime
    """When it was last acquired or renewed, by the store's clock, aware."""
    version: str
    """Opaque: the value that the store's compare-and-set compares (an ETag, a counter)."""
    requested_by: str | None = None
    """The host that asked for the partition, or to which it was released; empty: none. None: the owner knows
    no requests, as official processors."""
    requested_at: datetime | None = None
    """When it asked, by the store's clock, aware; None without a request."""

    def state(self, now: datetime, duration_s: float) -> LeaseState:
        """Its state at ``now`` by the store's clock.

        It expires ``duration_s`` seconds after its renewal, an offer as many after the release.
        """
        is_over = (now - self.renewed_at).total_seconds() >= duration_s
        if not self.owner:
            return LeaseState.OFFERED if self.requested_by and not is_over else LeaseState.RELEASED
        if is_over:
            return LeaseState.EXPIRED
        is_requested = self.requested_by and self.requested_by != self.owner
        return LeaseState.REQUESTED if is_requested else LeaseState.HELD

    def is_expired(self, now: datetime, duration_s: float) -> bool:
        """Whether it has no owner: released, or not renewed for ``duration_s`` seconds."""
        return self.state(now, duration_s) not in (LeaseState.HELD, LeaseState.REQUESTED)

    def is_request_overdue(self, now: datetime, duration_s: float) -> bool:
        """Whether its owner has not answered a request for ``duration_s`` seconds."""
        asked = self.requested_at
        return asked is not None and (now - asked).total_seconds() >= duration_s


@dataclass(frozen=True, slots=True)
class LeaseSnapshot:
    """All leases of a group at one moment of the store's clock."""

    leases: Mapping[str, Lease]
    """By partition id; a partition that no host ever had is absent."""
    now: datetime
    """The store's time of the reading, aware."""

    def state(self, partition_id: str, duration_s: float) -> LeaseState:
        """The state of a partition's lease; leases expire ``duration_s`` seconds after their renewal."""
        lease = self.leases.get(partition_id)
        return LeaseState.ABSENT if lease is None else lease.state(self.now, duration_s)


class LeaseWatch:
    """What one host saw of a group's leases, by its own monotonic clock.

    A second opinion on the store's clock: a lease that was renewed while that was ahead would otherwise be
    kept from other hosts until the true time has caught up.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, object], float] = {}
        """When each partition's lease was first read with this owner, epoch and version, and when with this
        request."""

    def check(self, snapshot: LeaseSnapshot, *, asked_at: float, answered_at: float) -> LeaseSnapshot:
        """The snapshot, with no lease renewed later than the readings allow: one that has not changed between
        two readings was not renewed between them, and none was renewed in the future.

        asked_at, answered_at: when it was read, on the monotonic clock.
        """
        seen: dict[tuple[str, object], float] = {}

        def latest(partition_id: str, identity: object) -> datetime:
            since = seen[partition_id, identity] = self._seen.get((partition_id, identity), answered_at)
            return snapshot.now - timedelta(seconds=max(0.0, asked_at - since))

        leases: dict[str, Lease] = {}
        for partition_id, lease in snapshot.leases.items():
            renewed_at = latest(partition_id, (lease.owner, lease.epoch, lease.version))
            requested_at = lease.requested_at
            if requested_at is not None:
                request = (lease.epoch, lease.requested_by, requested_at)
                requested_at = min(requested_at, latest(partition_id, request))
            leases[partition_id] = replace(
                lease, renewed_at=min(lease.renewed_at, renewed_at), requested_at=requested_at
            )
        self._seen = seen
        return LeaseSnapshot(leases, snapshot.now)


class LeaseManager(Protocol):
    """Keeps leases, as ILeaseManager of the classic host.

    Every change is a compare-and-set on ``Lease.version``.

    Every method raises StoreUnavailableError (in SQL: DatabaseUnavailableError) if the store does not answer
    and a retry may help, StoreError (DatabaseError) for any other refusal.
    Cancellation: the change may or may not have taken place; list the leases again.
    """

    @property
    def has_epochs(self) -> bool:
        """Whether acquiring raises the epoch, and receivers are opened with it as their owner level.

        False if official processors may share the group: their receivers all have owner level 0, and a higher
        one would disconnect them permanently.
        """
        ...

    async def list_leases(self, group: GroupKey) -> LeaseSnapshot:
        """All leases of ``group``, with the store's time."""
        ...

    async def acquire(
        self, group: GroupKey, partition_id: str, owner: str, *, expected: Lease | None
    ) -> Lease | None:
        """Make ``owner`` the owner, with the next epoch, if the lease is still ``expected``.

        expected: None if there never was a lease.
        Returns the new lease, without a request; None if another host was faster. The present owner also gets
        a new epoch.
        """
        ...

    async def request(self, group: GroupKey, lease: Lease, requester: str) -> None:
        """Ask the owner of ``lease`` to hand the partition over to ``requester``; empty: withdraw a request.

        Recorded in the lease, in place of an earlier request, if its owner and epoch are unchanged and the
        owner knows requests. The version stays, so the owner's next renewal succeeds.
        """
        ...

    async def renew(self, group: GroupKey, leases: Sequence[Lease]) -> Mapping[str, Lease]:
        """Renew leases that are unchanged, and return these by partition id.

        A lease missing from the result was taken by another host or released.
        """
        ...

    async def release(self, group: GroupKey, leases: Sequence[Lease]) -> None:
        """Release leases that are unchanged, so that others may take them at once. Keeps the epoch.

        Keeps a request as well: only the host that asked may take the partition for a lease duration, which
        counts from now.
        """
        ...
