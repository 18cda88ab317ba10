"""``$management``: READ of an event hub and of a partition, as in Event Hubs.

**Tidegate's extension** is QUERY of ``com.microsoft:partition`` with ``name=hub``: a list of the maps of all
its partitions, under the same claim as READ. All other administration is in ``wire.administration``.
``retention_hours`` in a hub's map identifies Tidegate: Azure does not report it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tidegate.amqp.message import Message, MessageId
from tidegate.amqp.types import Array, Int, Timestamp
from tidegate.model.errors import InvalidArgumentError, RemoteProtocolError
from tidegate.model.hub_settings import HubSettings, hub_changes_in
from tidegate.model.partition_ends import PartitionEnds
from tidegate.wire.delivery import NEVER_ENQUEUED_MS
from tidegate.wire.names import EVENT_HUB_ENTITY, PARTITION_ENTITY
from tidegate.wire.request_response import Request, encode_response, make_request, successful

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
            request.text("name"),
            partition_id=request.text("partition") if is_partition else None,
            security_token=request.optional_text("security_token"),
        )

    def to_message(self) -> Message:
        """The request; its sender sets message-id and reply-to."""
        name, entity = self.operation.value
        properties: dict[str, object] = {"type": entity, "name": self.event_hub}
        if self.partition_id is not None:
            properties["partition"] = self.partition_id
        if self.security_token is not None:
            properties["security_token"] = self.security_token
        return make_request(name, properties)


@dataclass(frozen=True, slots=True)
class EventHubDescription(HubSettings):
    """An event hub as ``$management`` describes it."""

    name: str
    created_at_ms: int
    """Milliseconds since 1970-01-01 UTC."""
    partition_ids: tuple[str, ...]

    def to_map(self) -> dict[object, object]:
        settings: dict[str, object] = {**self.settings()}
        known: dict[object, object] = {name: value for name, value in settings.items() if value is not None}
        return {
            "name": self.name,
            "type": EVENT_HUB_ENTITY,
            "created_at": Timestamp(self.created_at_ms),
            "partition_count": Int(len(self.partition_ids)),
            "partition_ids": Array.of(str, self.partition_ids),
            "georeplication_factor": Int(1),
            **known,
        }

    @classmethod
    def from_map(cls, value: object) -> EventHubDescription:
        """Raises RemoteProtocolError if a response's body is not a hub's description."""
        entries = _entries(value)
        ids = entries.get("partition_ids")
        items: Sequence[object] = (
            ids.items if isinstance(ids, Array) else ids if isinstance(ids, list) else ()
        )
        return cls(
            _text(entries, "name"),
            _integer(entries, "created_at"),
            tuple(str(item) for item in items),
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
    )


def encode_management_response(
    message_id: MessageId | None, body: EventHubDescription | PartitionEnds | Sequence[PartitionEnds]
) -> bytes:
    """The response to a request that succeeded."""
    value: object
    if isinstance(body, EventHubDescription):
        value = body.to_map()
    elif isinstance(body, PartitionEnds):
        value = partition_to_map(body)
    else:
        value = [partition_to_map(ends) for ends in body]
    return encode_response(correlation_id=message_id, status_code=200, status_description="OK", value=value)


def event_hub_in(message: Message) -> EventHubDescription:
    """The hub in a response.

    Raises the error of an unsuccessful response, RemoteProtocolError for an invalid body.
    """
    return EventHubDescription.from_map(successful(message).value)


def partition_in(message: Message) -> PartitionEnds:
    """The partition in a response. Raises as ``event_hub_in``."""
    return partition_from_map(successful(message).value)


def partitions_in(message: Message) -> list[PartitionEnds]:
    """The partitions in a response to a query. Raises as ``event_hub_in``."""
    value = successful(message).value
    if not isinstance(value, list):
        raise RemoteProtocolError("Expected a list of partitions from $management.")
    return [partition_from_map(item) for item in value]


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
