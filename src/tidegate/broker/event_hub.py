"""An event hub: its description, its partitions and its consumer groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any, Final, Unpack

from tidegate.broker.audit import Action, AuditTrail, current_actor
from tidegate.broker.authorization import Authorizer, SharedAccessPolicy
from tidegate.broker.catalog import Catalog, EventHubRecord, serialized
from tidegate.broker.claims import Claim
from tidegate.broker.names import validate_name, validate_publisher_name
from tidegate.broker.partition import Partition
from tidegate.broker.publishers import PublisherRecords
from tidegate.broker.throttling import Throughput
from tidegate.model.audience import NAMESPACE
from tidegate.model.capture import CaptureSettings
from tidegate.model.clock import Clock
from tidegate.model.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    PartitionNotFoundError,
    PublisherRevokedError,
    QuotaExceededError,
    UnauthorizedError,
)
from tidegate.model.hub_settings import HubChanges, HubSettings
from tidegate.model.limits import (
    CONSUMER_GROUP_NAME_CHARACTERS_MAX,
    DEFAULT_CONSUMER_GROUP,
    PARTITION_KEY_CHARACTERS_MAX,
    REVOKED_PUBLISHERS_BYTES_MAX,
    REVOKED_PUBLISHERS_MAX,
    TIER_LIMITS,
    Tier,
    TierLimits,
)
from tidegate.model.partition_key import partition_for_key
from tidegate.storage.engine import LogEngine

_PARTITIONS_PER_STEP: Final = 128
"""Whose counts are added at once (our choice: some 0.2 ms)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventHubDescription(HubSettings):
    """An event hub and its effective settings at one moment."""

    name: str
    namespace_id: str
    """See ``NamespaceRecord``."""
    hub_id: str
    created_at_ms: int
    """Milliseconds since 1970-01-01 UTC."""
    partition_ids: tuple[str, ...]
    """"0", "1", … in order."""
    retention_hours: int
    event_bytes_max: int
    consumer_groups: tuple[str, ...]
    """``$Default`` first."""
    capture: CaptureSettings | None
    """None: its events are not captured."""


@dataclass(frozen=True, slots=True)
class EventHubStatistics:
    """Counts since the service started, at one moment."""

    incoming_events: int = 0
    incoming_bytes: int = 0
    outgoing_events: int = 0
    outgoing_bytes: int = 0
    incoming_requests: int = 0
    """Batches received, including refused ones."""
    throttled_requests: int = 0
    """Batches refused because the namespace's throughput units were used up."""

    def __add__(self, other: EventHubStatistics) -> EventHubStatistics:
        names = [field.name for field in fields(self)]
        return EventHubStatistics(*(getattr(self, name) + getattr(other, name) for name in names))


class EventHub:
    """An event hub of a running broker. Get one from ``Broker.event_hub``."""

    def __init__(
        self,
        record: EventHubRecord,
        engine: LogEngine,
        *,
        catalog: Catalog,
        clock: Clock,
        authorizer: Authorizer,
        throughput: Throughput,
        on_change: Callable[[], None],
        audit: AuditTrail,
    ) -> None:
        """engine: has the logs of all partitions in the record. on_change: called after each change."""
        self._record = record
        self._engine = engine
        self._clock = clock
        self._throughput = throughput
        self._on_change = on_change
        self._audit = audit
        self._catalog = catalog
        self._authorizer = authorizer
        self.partitions: tuple[Partition, ...] = ()
        """All partitions, in order of their ids; replaced when some are added."""
        self._by_id: dict[str, Partition] = {}
        self._open_partitions()
        self._next_round_robin = 0
        self.is_deleted = False
        """Whether it was deleted; a later hub of the same name is another."""
        self.publishers: Final = PublisherRecords()
        """The publishers since the service started. Protocols note each batch that names one."""
        self._revoked = _lower(record.revoked_publishers)

    def deleted_error(self, path: str) -> NotFoundError:
        """The error that ends links to ``path`` after deletion."""
        return NotFoundError(
            f"The messaging entity '{path}' could not be found: event hub '{self.name}' was deleted.",
            next_step="Create it again; the events of the deleted one are gone.",
        )

    @property
    def name(self) -> str:
        """As spelled at its creation."""
        return self._record.name

    def choices(self) -> dict[str, object]:
        """See ``EventHubRecord.choices``."""
        return self._record.choices()

    @property
    def description(self) -> EventHubDescription:
        """Its description now."""
        record = self._record
        settings: dict[str, Any] = {**record.settings(), "event_bytes_max": self.event_bytes_max}
        return EventHubDescription(
            **settings,
            name=record.name,
            namespace_id=self._catalog.namespace.namespace_id,
            hub_id=record.hub_id,
            created_at_ms=record.created_at_ms,
            partition_ids=tuple(self._by_id),
            consumer_groups=record.consumer_groups,
            capture=record.capture,
        )

    @property
    def event_bytes_max(self) -> int:
        """Maximum bytes of an event or batch now: its own limit, or the tier's if that is less."""
        allowed = self._limits.event_bytes_max
        own = self._record.event_bytes_max
        return allowed if own is None else min(own, allowed)

    def partition(self, partition_id: str) -> Partition:
        """The partition of that id. Raises PartitionNotFoundError."""
        partition = self._by_id.get(partition_id)
        if partition is None:
            raise PartitionNotFoundError.of(len(self.partitions))
        return partition

    def partition_for(self, partition_key: str | None, *, chosen: Partition | None = None) -> Partition:
        """The partition of a key; without a key, the partitions in turn.

        chosen: the sender's choice, which overrides the key: the SDKs' buffered producers send both.
        Raises InvalidArgumentError for a key over the limit.
        """
        if partition_key is not None and len(partition_key) > PARTITION_KEY_CHARACTERS_MAX:
            raise InvalidArgumentError(
                f"The partition key has {len(partition_key)} characters; "
                f"{PARTITION_KEY_CHARACTERS_MAX} are allowed."
            )
        if chosen is not None:
            return chosen
        if partition_key is None:
            partition = self.partitions[self._next_round_robin]
            self._next_round_robin = (self._next_round_robin + 1) % len(self.partitions)
            return partition
        return self.partitions[partition_for_key(partition_key, len(self.partitions))]

    @serialized
    async def create_consumer_group(self, name: str) -> None:
        """Create a consumer group; durable on return.

        Raises InvalidArgumentError (the name), AlreadyExistsError, QuotaExceededError, LogFullError.
        """
        validate_name(name, "consumer group", CONSUMER_GROUP_NAME_CHARACTERS_MAX)
        groups = self._record.consumer_groups
        if name.lower() in (group.lower() for group in groups):
            raise AlreadyExistsError(f"The event hub {self.name!r} already has the consumer group {name!r}.")
        if len(groups) > self._limits.consumer_groups_max:  # $Default does not count
            raise QuotaExceededError(
                f"The event hub {self.name!r} has {len(groups)} consumer groups, the most that the "
                f"{self._catalog.namespace.tier.value} tier allows."
            )
        await self._replace_record(replace(self._record, consumer_groups=(*groups, name)))
        self._audit.record(Action.CREATE_CONSUMER_GROUP, f"{self.name}/consumergroups/{name}")

    @serialized
    async def delete_consumer_group(self, name: str) -> None:
        """Delete a consumer group; its receivers stay until they close.

        Raises NotFoundError, InvalidArgumentError (``$Default``), LogFullError.
        """
        found = self.find_consumer_group(name)
        if found == DEFAULT_CONSUMER_GROUP:
            raise InvalidArgumentError(f"The consumer group {DEFAULT_CONSUMER_GROUP} cannot be deleted.")
        groups = tuple(group for group in self._record.consumer_groups if group != found)
        await self._replace_record(replace(self._record, consumer_groups=groups))
        self._audit.record(Action.DELETE_CONSUMER_GROUP, f"{self.name}/consumergroups/{found}")

    @serialized
    async def update(self, *, partition_count: int | None = None, **changes: Unpack[HubChanges]) -> None:
        """Change settings; durable on return, and all or none. See ``Broker.update_event_hub``."""
        record = self._record
        if partition_count is not None:
            if partition_count > record.partition_count:
                self._check_may_add_partitions()
            self.check_partition_count(partition_count, self._catalog.namespace.tier)
            record = replace(record, partition_count=partition_count)
        record = record.changed(changes, self._limits)
        if record != self._record:
            before, after = self._record.choices(), record.choices()
            await self._replace_record(record)
            changed = [name for name in after if after[name] != before[name]]
            self._audit.record(
                Action.UPDATE_EVENT_HUB,
                self.name,
                old={name: before[name] for name in changed},
                new={name: after[name] for name in changed},
            )

    def check_partition_count(self, wanted: int, tier: Tier) -> None:
        """Raise InvalidArgumentError if the hub cannot have ``wanted`` partitions in this tier."""
        count, limits = self._record.partition_count, TIER_LIMITS[tier]
        has = f"The event hub {self.name!r} has {count} partitions"
        if wanted < count:
            raise InvalidArgumentError(
                f"{has}, which cannot be reduced to {wanted}.",
                next_step="Create another event hub: partitions can only be added.",
            )
        if wanted > count and not limits.can_add_partitions:
            raise InvalidArgumentError(
                f"{has}, and the {tier.value} tier cannot add any.",
                next_step="Set the tier to Premium or Dedicated, or create another event hub.",
            )
        if count < wanted > limits.partitions_max:
            raise InvalidArgumentError(
                f"{has}, and the {tier.value} tier allows {limits.partitions_max}, not {wanted}."
            )

    @serialized
    async def set_capture(self, settings: CaptureSettings | None) -> None:
        """See ``Broker.set_capture``."""
        before = self._record.capture
        if settings != before:
            await self._replace_record(replace(self._record, capture=settings))
            self._audit.record(
                Action.DELETE_CAPTURE if settings is None else Action.SET_CAPTURE,
                self.name,
                old=None if before is None else before.to_mapping(),
                new=None if settings is None else settings.to_mapping(),
            )

    # -- admission

    @property
    def policies(self) -> tuple[SharedAccessPolicy, ...]:
        """The policies of this hub."""
        return self._record.policies

    async def replace_policies(self, policies: Iterable[SharedAccessPolicy]) -> None:
        """Replace the hub's policies, also for open connections. Raises LogFullError."""
        await self._replace_record(replace(self._record, policies=tuple(policies)))
        self._authorizer.set_policies(self._record.policies, event_hub=self.name)

    @property
    def revoked_publishers(self) -> tuple[str, ...]:
        """Publishers that may not send, in the order of revocation."""
        return self._record.revoked_publishers

    @serialized
    async def revoke_publisher(self, name: str) -> None:
        """Stop a publisher from sending, whatever its token, and end its open links. Durable on return.

        Names ignore case. Raises InvalidArgumentError (the name), AlreadyExistsError (already revoked),
        QuotaExceededError, LogFullError.
        """
        validate_publisher_name(name)
        if self.is_publisher_revoked(name):
            raise AlreadyExistsError(f"The publisher {name!r} of {self.name!r} is already revoked.")
        revoked = self._record.revoked_publishers
        size = sum(len(known.encode()) for known in (*revoked, name))
        if len(revoked) >= REVOKED_PUBLISHERS_MAX or size > REVOKED_PUBLISHERS_BYTES_MAX:
            raise QuotaExceededError(
                f"{self.name!r} has {len(revoked)} revoked publishers, the maximum for names of that length.",
                next_step="Regenerate the key that signed their tokens, and restore them.",
            )
        await self._replace_record(replace(self._record, revoked_publishers=(*revoked, name)))
        self._authorizer.announce_change()
        self._audit.record(Action.REVOKE_PUBLISHER, f"{self.name}/publishers/{name}")

    @serialized
    async def restore_publisher(self, name: str) -> None:
        """Let a revoked publisher send again. Durable on return. Raises NotFoundError, LogFullError."""
        wanted = name.lower()
        if wanted not in self._revoked:
            raise NotFoundError(f"The publisher {name[:80]!r} of {self.name!r} is not revoked.")
        revoked = self._record.revoked_publishers
        stored = next(known for known in revoked if known.lower() == wanted)
        left = tuple(known for known in revoked if known.lower() != wanted)
        await self._replace_record(replace(self._record, revoked_publishers=left))
        self._audit.record(Action.RESTORE_PUBLISHER, f"{self.name}/publishers/{stored}")

    def is_publisher_revoked(self, name: str) -> bool:
        """Whether the publisher may not send, ignoring case."""
        return name.lower() in self._revoked

    def check_publisher(self, name: str) -> None:
        """Raise InvalidArgumentError for an invalid name, PublisherRevokedError for a revoked publisher."""
        validate_publisher_name(name)
        if self.is_publisher_revoked(name):
            raise PublisherRevokedError(
                f"The publisher '{name}' of '{self.name}' is revoked.",
                next_step="The operator of the service can restore it.",
            )

    @property
    def stored_bytes(self) -> int:
        """What the files of its log take."""
        return sum(self.each_stored_bytes())

    def each_stored_bytes(self) -> Iterator[int]:
        """That of some partitions at a time."""
        for some in self._each_some():
            yield sum(partition.stored_bytes for partition in some)

    def statistics(self) -> EventHubStatistics:
        """Counts since the service started."""
        return sum(self.each_statistics(), EventHubStatistics())

    def each_statistics(self) -> Iterator[EventHubStatistics]:
        """Those of some partitions at a time, which sum up to ``statistics``: a step for slices."""
        for some in self._each_some():
            counts = (
                (*each.appended, *each.delivered, each.incoming_requests, each.throttled_requests)
                for each in some
            )
            yield EventHubStatistics(*map(sum, zip(*counts, strict=True)))

    def _each_some(self) -> Iterator[list[Partition]]:
        partitions = iter(self.partitions)
        while some := list(islice(partitions, _PARTITIONS_PER_STEP)):
            yield some

    def _check_may_add_partitions(self) -> None:
        """Raise UnauthorizedError unless the actor has Manage on the namespace, or is the service itself.

        Each partition takes file descriptors and time from all event hubs of the namespace.
        """
        grants, now_utc = current_actor().grants, self._clock.now_utc()
        if grants and not any(
            grant.permits(NAMESPACE, Claim.MANAGE, now_utc=now_utc) and self._authorizer.is_in_force(grant)
            for grant in grants
        ):
            raise UnauthorizedError(
                f"Unauthorized access. Adding partitions to {self.name!r} requires Manage on the namespace.",
                next_step="Use a policy of the namespace that has Manage, with a token for the namespace.",
            )

    @property
    def _limits(self) -> TierLimits:
        return TIER_LIMITS[self._catalog.namespace.tier]

    async def _replace_record(self, record: EventHubRecord) -> None:
        if self.is_deleted:  # while the change waited for its turn
            raise self.deleted_error(self.name)
        if record.partition_count > len(self.partitions):
            # First, since it may fail: the catalog must not have a partition that cannot be used.
            await self._engine.create_logs(record.hub_id, record.partition_count)
        await self._catalog.put_event_hub(record)
        self._record = record
        self._open_partitions()
        self._revoked = _lower(record.revoked_publishers)
        self._on_change()

    def _open_partitions(self) -> None:
        """Have a partition for each log of the record."""
        record = self._record
        added = tuple(
            Partition(
                record.name,
                str(index),
                self._engine.log(record.hub_id, str(index)),
                self._clock,
                self.find_consumer_group,
                throughput=self._throughput,
                created_at_ms=record.created_at_ms,
                find_event_bytes_max=lambda: self.event_bytes_max,
            )
            for index in range(len(self.partitions), record.partition_count)
        )
        self._by_id |= {partition.partition_id: partition for partition in added}
        self.partitions += added

    def find_consumer_group(self, name: str) -> str:
        """A consumer group's name as it was created. Raises NotFoundError."""
        wanted = name.lower()
        for group in self._record.consumer_groups:
            if group.lower() == wanted:
                return group
        raise NotFoundError(
            f"The messaging entity '{self.name}/consumergroups/{name[:80]}' could not be found.",
            next_step=f"Create the consumer group first: tidegate group create {self.name} NAME.",
        )

    def __repr__(self) -> str:
        return f"<EventHub {self.name} partitions={len(self.partitions)}>"


def _lower(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)
