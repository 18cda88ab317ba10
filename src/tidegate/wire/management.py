"""``$management``: READ of an event hub and of a partition, as in Event Hubs.

**Tidegate's extension** is QUERY of ``com.microsoft:partition`` with ``name=hub``: a list of the maps of all
its partitions, under the same claim as READ. All other administration is in ``wire.administration``.
A partition's map also has ``histories``.
``retention_hours`` in a hub's map identifies Tidegate: Azure does not report it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tidegate.amqp.message import Message
from tidegate.amqp.types import Array, Int, Timestamp
from tidegate.model.errors import InvalidArgumentError, RemoteProtocolError
from tidegate.model.history import History
from tidegate.model.hub_properties import EventHubProperties, PartitionEnds
from tidegate.model.hub_settings import hub_changes_in
from tidegate.model.times import milliseconds_of, time_of
from tidegate.wire.delivery import NEVER_ENQUEUED_MS
from tidegate.wire.names import EVENT_HUB_ENTITY, PARTITION_ENTITY
from tidegate.wire.request_response import Request, make_request

SEQUENCE_NUMBER_EPOCH: Final = Int(-1)
"""Of a partition that was never replicated from another namespace. The official Rust client rejects a
partition's description without it (azure_messaging_eventhubs 0.16.0, src/common/management.rs)."""


class Operation(Enum):
    """An operation, and the type of entity that it reads."""

    READ_EVENT_HUB = ("READ", EVENT_HUB_ENTITY)
    READ_PARTITION = ("READ", PARTITION_ENTITY)
    QUERY_PARTITIONS = ("QUERY", PARTITION_ENTITY)


@dataclass(frozen=True, slots=True)
class ManagementRequest:
    operation: Operation
    event_hub: str
    partition_id: str | None = None
    """Set to read a partition."""
    security_token: str | None = field(default=None, repr=False)

    @classmethod
    def from_request(cls, request: Request) -> ManagementRequest:
        """Raises InvalidArgumentError for an unknown operation or a missing property."""
        name, entity = request.operation.upper(), request.text("type")
        try:
            operation = Operation((name, entity))
        except ValueError as exc:
            raise InvalidArgumentError(f"$management has no {name[:80]} for {entity[:80]!r}.") from exc
        is_partition = operation is Operation.READ_PARTITION
        return cls(
            operation,
            request.entity_name("name"),
            partition_id=request.entity_name("partition") if is_partition else None,
            security_token=request.optional_text("security_token"),
        )

    def to_message(self) -> Message:
        """The request; its sender sets message-id and reply-to."""
        name, entity = self.operation.value
        properties = {
            "type": entity,
            "name": self.event_hub,
            "partition": self.partition_id,
            "security_token": self.security_token,
        }
        return make_request(name, properties)


def event_hub_to_map(event_hub: EventHubProperties) -> dict[object, object]:
    """An event hub in the form that ``$management`` sends."""
    extensions = {**event_hub.settings(), "namespace_id": event_hub.namespace_id}
    known: dict[object, object] = {name: value for name, value in extensions.items() if value is not None}
    return {
        "name": event_hub.name,
        "type": EVENT_HUB_ENTITY,
        "created_at": Timestamp(milliseconds_of(event_hub.created_at)),
        "partition_count": Int(len(event_hub.partition_ids)),
        "partition_ids": Array.of(str, event_hub.partition_ids),
        "georeplication_factor": Int(1),
        **known,
    }


def event_hub_from_map(value: object) -> EventHubProperties:
    """Raises RemoteProtocolError if a response's body is not an event hub's description."""
    entries = _entries(value)
    ids = entries.get("partition_ids")
    items: Sequence[object] = ids.items if isinstance(ids, Array) else ids if isinstance(ids, list) else ()
    return EventHubProperties(
        _text(entries, "name"),
        time_of(_integer(entries, "created_at")),
        tuple(str(item) for item in items),
        namespace_id=None if entries.get("namespace_id") is None else _text(entries, "namespace_id"),
        **hub_changes_in({str(name): item for name, item in entries.items()}),
    )


def partition_to_map(ends: PartitionEnds) -> dict[object, object]:
    """A partition's ends in the form that ``$management`` sends."""
    last_ms = ends.last_enqueued_time_ms
    return {
        "name": ends.event_hub,
        "type": PARTITION_ENTITY,
        "partition": ends.partition_id,
        "begin_sequence_number_epoch": SEQUENCE_NUMBER_EPOCH,
        "begin_sequence_number": ends.begin_sequence_number,
        "last_enqueued_sequence_number_epoch": SEQUENCE_NUMBER_EPOCH,
        "last_enqueued_sequence_number": ends.last_enqueued_sequence_number,
        "last_enqueued_offset": ends.last_enqueued_offset,
        "last_enqueued_time_utc": Timestamp(NEVER_ENQUEUED_MS if last_ms is None else last_ms),
        "is_partition_empty": ends.is_empty,
        **({"histories": histories_to_list(ends.histories)} if ends.histories else {}),
    }


def partition_from_map(value: object) -> PartitionEnds:
    """Raises RemoteProtocolError if a response's body is not a partition's ends."""
    entries = _entries(value)
    last = _integer(entries, "last_enqueued_sequence_number")
    last_ms: int | None = _integer(entries, "last_enqueued_time_utc")
    begin = max(0, _integer(entries, "begin_sequence_number"))
    if entries.get("is_partition_empty"):
        # Azure marks an empty partition only by this flag; what its numbers are then is not documented.
        if last <= 0:
            last, last_ms = -1, None
        begin = last + 1
    return PartitionEnds(
        _text(entries, "name"),
        _text(entries, "partition"),
        begin,
        last + 1,
        _text(entries, "last_enqueued_offset"),
        None if last_ms is None or last_ms <= NEVER_ENQUEUED_MS else last_ms,
        histories_from_list(entries.get("histories", [])),
    )


def partitions_from_list(value: object) -> list[PartitionEnds]:
    """Raises RemoteProtocolError if a response's body is not a list of partitions' ends."""
    if not isinstance(value, list):
        raise RemoteProtocolError("Expected a list of partitions from $management.")
    return [partition_from_map(item) for item in value]


def histories_to_list(histories: Sequence[History]) -> list[object]:
    """Histories as they are sent: each one's id and first sequence number, in turn."""
    return [item for history in histories for item in history]


def histories_from_list(value: object) -> tuple[History, ...]:
    """Raises RemoteProtocolError if ``value`` is not a list of histories."""
    if not isinstance(value, list) or len(value) % 2:
        raise RemoteProtocolError("Expected a list of histories.")
    histories = []
    for history_id, first in zip(value[::2], value[1::2], strict=True):
        if not isinstance(history_id, str) or not isinstance(first, int):
            raise RemoteProtocolError("Expected the id and the first sequence number of a history.")
        histories.append(History(str(history_id), int(first)))
    return tuple(histories)


def _entries(value: object) -> Mapping[object, object]:
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"Expected a map from $management, got {type(value).__name__}.")
    return value


def _text(entries: Mapping[object, object], name: str) -> str:
    value = entries.get(name)
    if not isinstance(value, str):
        raise RemoteProtocolError(f"The response of $management has no string {name!r}.")
    return str(value)


def _integer(entries: Mapping[object, object], name: str) -> int:
    value = entries.get(name)
    if not isinstance(value, int):
        raise RemoteProtocolError(f"The response of $management has no number {name!r}.")
    return int(value)
