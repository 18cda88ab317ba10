"""An event hub: its description, its partitions and its consumer groups."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tidegate.broker.catalog import Catalog, EventHubRecord
from tidegate.broker.partition import Partition
from tidegate.model.clock import Clock
from tidegate.model.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    QuotaExceededError,
)
from tidegate.model.limits import (
    CONSUMER_GROUP_NAME_CHARACTERS_MAX,
    CONSUMER_GROUPS_MAX,
    DEFAULT_CONSUMER_GROUP,
    PARTITION_KEY_CHARACTERS_MAX,
)
from tidegate.model.partition_key import partition_for_key
from tidegate.storage.partition_log import PartitionLog

# Letters, digits, '.', '-', '_', beginning and ending with a letter or digit (Azure "Naming rules and
# restrictions", Microsoft.EventHub, 2026-09).
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class EventHubDescription:
    """What an event hub is, as its creator set it."""

    name: str
    hub_id: str
    created_at_ms: int
    """Milliseconds since 1970-01-01 UTC."""
    partition_ids: tuple[str, ...]
    """"0", "1", … in order."""
    retention_hours: int
    retention_bytes: int | None
    """Bytes that each partition keeps; None: no limit but time."""
    consumer_groups: tuple[str, ...]
    """``$Default`` first."""


@dataclass(frozen=True, slots=True)
class EventHubStatistics:
    """Counts since the service started, at one moment."""

    incoming_events: int
    incoming_bytes: int
    outgoing_events: int
    outgoing_bytes: int


class EventHub:
    """An event hub of a running broker. Get one from ``Broker.event_hub``."""

    def __init__(
        self, record: EventHubRecord, logs: Sequence[PartitionLog], *, catalog: Catalog, clock: Clock
    ) -> None:
        self._record = record
        self._catalog = catalog
        self._partitions = tuple(
            Partition(record.name, str(index), log, clock, self._find_consumer_group)
            for index, log in enumerate(logs)
        )
        self._by_id = {partition.partition_id: partition for partition in self._partitions}
        self._next_round_robin = 0

    @property
    def name(self) -> str:
        """As its creator wrote it."""
        return self._record.name

    @property
    def description(self) -> EventHubDescription:
        """What it is, at this moment."""
        record = self._record
        return EventHubDescription(
            name=record.name,
            hub_id=record.hub_id,
            created_at_ms=record.created_at_ms,
            partition_ids=tuple(self._by_id),
            retention_hours=record.retention_hours,
            retention_bytes=record.retention_bytes,
            consumer_groups=record.consumer_groups,
        )

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """All partitions, in order of their ids."""
        return self._partitions

    def partition(self, partition_id: str) -> Partition:
        """The partition of that id. Raises NotFoundError."""
        partition = self._by_id.get(partition_id)
        if partition is None:
            raise NotFoundError(
                f"The event hub {self.name!r} has no partition {partition_id[:40]!r}; "
                f"it has 0 to {len(self._partitions) - 1}."
            )
        return partition

    def partition_for(self, partition_key: str | None) -> Partition:
        """The partition that a key's events go to; without a key the partitions take turns.

        Raises InvalidArgumentError for a key over the limit.
        """
        if partition_key is None:
            partition = self._partitions[self._next_round_robin]
            self._next_round_robin = (self._next_round_robin + 1) % len(self._partitions)
            return partition
        if len(partition_key) > PARTITION_KEY_CHARACTERS_MAX:
            raise InvalidArgumentError(
                f"The partition key has {len(partition_key)} characters; "
                f"{PARTITION_KEY_CHARACTERS_MAX} are allowed."
            )
        return self._partitions[partition_for_key(partition_key, len(self._partitions))]

    def create_consumer_group(self, name: str) -> None:
        """Add a consumer group; durable on return.

        Raises InvalidArgumentError (the name), AlreadyExistsError, QuotaExceededError, LogFullError.
        """
        validate_name(name, "consumer group", CONSUMER_GROUP_NAME_CHARACTERS_MAX)
        groups = self._record.consumer_groups
        if name.lower() in (group.lower() for group in groups):
            raise AlreadyExistsError(f"The event hub {self.name!r} already has the consumer group {name!r}.")
        if len(groups) >= CONSUMER_GROUPS_MAX:
            raise QuotaExceededError(
                f"The event hub {self.name!r} has {len(groups)} consumer groups, the most allowed."
            )
        self._replace_consumer_groups((*groups, name))

    def delete_consumer_group(self, name: str) -> None:
        """Remove a consumer group; receivers in it stay until they close.

        Raises NotFoundError, InvalidArgumentError (``$Default`` stays), LogFullError.
        """
        found = self._find_consumer_group(name)
        if found == DEFAULT_CONSUMER_GROUP:
            raise InvalidArgumentError(f"The consumer group {DEFAULT_CONSUMER_GROUP} cannot be deleted.")
        self._replace_consumer_groups(
            tuple(group for group in self._record.consumer_groups if group != found)
        )

    def statistics(self) -> EventHubStatistics:
        """Events and bytes in and out since the service started."""
        appended = [partition.appended for partition in self._partitions]
        delivered = [partition.delivered for partition in self._partitions]
        return EventHubStatistics(
            incoming_events=sum(events for events, _ in appended),
            incoming_bytes=sum(size for _, size in appended),
            outgoing_events=sum(events for events, _ in delivered),
            outgoing_bytes=sum(size for _, size in delivered),
        )

    def _replace_consumer_groups(self, groups: tuple[str, ...]) -> None:
        record = replace(self._record, consumer_groups=groups)
        self._catalog.replace_event_hub(record)
        self._record = record

    def _find_consumer_group(self, name: str) -> str:
        wanted = name.lower()
        for group in self._record.consumer_groups:
            if group.lower() == wanted:
                return group
        raise NotFoundError(
            f"The messaging entity '{self.name}/consumergroups/{name[:80]}' could not be found.",
            next_step="Create the consumer group first.",
        )

    def __repr__(self) -> str:
        return f"<EventHub {self.name} partitions={len(self._partitions)}>"


def validate_name(name: str, noun: str, characters_max: int) -> None:
    """Raise InvalidArgumentError unless ``name`` follows the naming rules of Event Hubs."""
    if len(name) > characters_max or _NAME.fullmatch(name) is None:
        raise InvalidArgumentError(
            f"{name[:80]!r} cannot be the name of {'an' if noun[0] in 'aeiou' else 'a'} {noun}.",
            next_step=f"Use 1 to {characters_max} letters, digits, '.', '-' or '_', beginning and ending "
            "with a letter or digit.",
        )
