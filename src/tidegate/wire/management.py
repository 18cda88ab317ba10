"""``$management``: what a hub and its partitions look like; ours alone: making and deleting hubs and groups.

READ of ``com.microsoft:eventhub`` and ``com.microsoft:partition`` are Event Hubs' own. **Tidegate's
extension** over the same node is QUERY of ``com.microsoft:partition``, with the claim of a READ:

    QUERY   name=hub                                          -> 200 and a list of the partitions' maps

and CREATE, DELETE and QUERY of ``com.microsoft:eventhub`` and ``com.microsoft:consumergroup``, with a Manage
claim:

    CREATE  name=hub, body {partition_count, and the settings of ``model.hub_settings``}, each of which may
            be left out
            -> 201 and the hub's map; 409 when it exists
    DELETE  name=hub                                          -> 200; 404 when there is none
    QUERY   (no name)                                         -> 200 and a list of the hubs' maps
    CREATE, DELETE  name=hub, consumer_group=name             -> 201, 200; 409 when it exists, 404 when not
    QUERY   name=hub                                          -> 200 and a list of the groups' names

More of it is in ``wire.administration``. Where ``retention_hours`` is in a hub's map, the service is a
Tidegate: Azure does not tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tidegate.amqp.message import NO_VALUE, Message, MessageId
from tidegate.amqp.types import Array, Int, Timestamp
from tidegate.model.errors import InvalidArgumentError, RemoteProtocolError
from tidegate.model.hub_settings import HubChanges, HubSettings, hub_changes_in
from tidegate.model.partition_ends import PartitionEnds
from tidegate.wire.delivery import NEVER_ENQUEUED_MS
from tidegate.wire.names import CONSUMER_GROUP_ENTITY, EVENT_HUB_ENTITY, PARTITION_ENTITY
from tidegate.wire.request_response import Request, Response, encode_response, make_request

SEQUENCE_NUMBER_EPOCH: Final = Int(-1)
"""Of a partition that was never replicated from another namespace. The official Rust client takes no
description of a partition without it (azure_messaging_eventhubs 0.16.0, src/common/management.rs)."""

_DESCRIPTIONS: Final = {200: "OK", 201: "Created"}


class Operation(Enum):
    """What can be asked of ``$management``."""

    READ_EVENT_HUB = ("READ", EVENT_HUB_ENTITY)
    READ_PARTITION = ("READ", PARTITION_ENTITY)
    QUERY_PARTITIONS = ("QUERY", PARTITION_ENTITY)
    CREATE_EVENT_HUB = ("CREATE", EVENT_HUB_ENTITY)
    DELETE_EVENT_HUB = ("DELETE", EVENT_HUB_ENTITY)
    QUERY_EVENT_HUBS = ("QUERY", EVENT_HUB_ENTITY)
    CREATE_CONSUMER_GROUP = ("CREATE", CONSUMER_GROUP_ENTITY)
    DELETE_CONSUMER_GROUP = ("DELETE", CONSUMER_GROUP_ENTITY)
    QUERY_CONSUMER_GROUPS = ("QUERY", CONSUMER_GROUP_ENTITY)

    @property
    def needs_manage_claim(self) -> bool:
        """Whether the caller's policy must have the Manage claim."""
        return self.value[0] != "READ" and self is not Operation.QUERY_PARTITIONS


@dataclass(frozen=True, slots=True)
class ManagementRequest:
    """A request to ``$management``."""

    operation: Operation
    event_hub: str = ""
    """Empty in a query for hubs only."""
    partition_id: str | None = None
    """Set when a partition is read."""
    partition_count: int | None = None
    """Of the hub to create; None: the service's default."""
    settings: HubChanges = field(default_factory=HubChanges)
    """Of the hub to create."""
    consumer_group: str | None = None
    """Set when one is created or deleted."""
    security_token: str | None = field(default=None, repr=False)

    @classmethod
    def from_request(cls, request: Request) -> ManagementRequest:
        """The management request in a request.

        Raises InvalidArgumentError when the operation is unknown or lacks a part.
        """
        name, entity = request.operation.upper(), request.text("type")
        try:
            operation = Operation((name, entity))
        except ValueError as exc:
            raise InvalidArgumentError(f"$management has no {name[:80]} for {entity[:80]!r}.") from exc
        is_partition = operation is Operation.READ_PARTITION
        is_group = operation in (Operation.CREATE_CONSUMER_GROUP, Operation.DELETE_CONSUMER_GROUP)
        is_creation = operation is Operation.CREATE_EVENT_HUB
        wanted = request.value if is_creation and isinstance(request.value, dict) else {}
        return cls(
            operation,
            "" if operation is Operation.QUERY_EVENT_HUBS else request.text("name"),
            partition_id=request.text("partition") if is_partition else None,
            partition_count=_optional_integer(wanted, "partition_count"),
            settings=hub_changes_in(wanted),
            consumer_group=request.text("consumer_group") if is_group else None,
            security_token=request.optional_text("security_token"),
        )

    def to_message(self) -> Message:
        """The request; whoever sends it sets message-id and reply-to."""
        name, entity = self.operation.value
        properties: dict[str, object] = {"type": entity}
        if self.event_hub:
            properties["name"] = self.event_hub
        if self.partition_id is not None:
            properties["partition"] = self.partition_id
        if self.consumer_group is not None:
            properties["consumer_group"] = self.consumer_group
        if self.security_token is not None:
            properties["security_token"] = self.security_token
        value: object = NO_VALUE
        if self.operation is Operation.CREATE_EVENT_HUB:
            wanted = {"partition_count": self.partition_count, **self.settings}
            value = {name: chosen for name, chosen in wanted.items() if chosen is not None}
        return make_request(name, properties, value)


@dataclass(frozen=True, slots=True)
class EventHubDescription(HubSettings):
    """An event hub as ``$management`` tells it."""

    name: str
    created_at_ms: int
    """Milliseconds since 1970-01-01 UTC."""
    partition_ids: tuple[str, ...]

    def to_map(self) -> dict[object, object]:
        """The map that goes on the wire."""
        settings: dict[str, object] = {**self.settings()}
        told: dict[object, object] = {name: value for name, value in settings.items() if value is not None}
        return {
            "name": self.name,
            "type": EVENT_HUB_ENTITY,
            "created_at": Timestamp(self.created_at_ms),
            "partition_count": Int(len(self.partition_ids)),
            "partition_ids": Array.of(str, self.partition_ids),
            "georeplication_factor": Int(1),
            **told,
        }

    @classmethod
    def from_map(cls, value: object) -> EventHubDescription:
        """The description in a response's body.

        Raises RemoteProtocolError when it is none.
        """
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
    """A partition's ends as ``$management`` sends them."""
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
    """A partition's ends from a response's body. Raises RemoteProtocolError if it is no such map."""
    entries = _entries(value)
    last = _integer(entries, "last_enqueued_sequence_number")
    last_ms: int | None = _integer(entries, "last_enqueued_time_utc")
    begin = max(0, _integer(entries, "begin_sequence_number"))
    if entries.get("is_partition_empty"):
        # Azure marks an empty partition by this flag alone; what its numbers are then is not documented.
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
    message_id: MessageId | None,
    body: EventHubDescription | PartitionEnds | Sequence[EventHubDescription | PartitionEnds | str] | None,
    *,
    status_code: int = 200,
) -> bytes:
    """The answer to a request that succeeded; a refusal is ``request_response.encode_error_response``.

    body: what was read or created; the hubs, partitions, or names of groups that were found; None where there
    is nothing to tell.
    """
    value: object
    if body is None:
        value = {}
    elif isinstance(body, (EventHubDescription, PartitionEnds)):
        value = _encoded(body)
    else:
        value = [_encoded(found) for found in body]
    return encode_response(
        correlation_id=message_id,
        status_code=status_code,
        status_description=_DESCRIPTIONS.get(status_code, "OK"),
        value=value,
    )


def _encoded(found: EventHubDescription | PartitionEnds | str) -> object:
    if isinstance(found, PartitionEnds):
        return partition_to_map(found)
    return found if isinstance(found, str) else found.to_map()


def event_hub_in(message: Message) -> EventHubDescription:
    """The hub that was read or created.

    Raises what an unsuccessful response means, RemoteProtocolError when the body is no such map.
    """
    return EventHubDescription.from_map(_successful(message).value)


def partition_in(message: Message) -> PartitionEnds:
    """The partition that was read.

    Raises what an unsuccessful response means, RemoteProtocolError when the body is no such map.
    """
    return partition_from_map(_successful(message).value)


def event_hubs_in(message: Message) -> list[EventHubDescription]:
    """The hubs that a query found.

    Raises what an unsuccessful response means, RemoteProtocolError when the body is no list of such maps.
    """
    value = _successful(message).value
    if not isinstance(value, list):
        raise RemoteProtocolError("Expected a list of event hubs from $management.")
    return [EventHubDescription.from_map(item) for item in value]


def partitions_in(message: Message) -> list[PartitionEnds]:
    """The partitions that a query found.

    Raises what an unsuccessful response means, RemoteProtocolError when the body is no list of such maps.
    """
    value = _successful(message).value
    if not isinstance(value, list):
        raise RemoteProtocolError("Expected a list of partitions from $management.")
    return [partition_from_map(item) for item in value]


def consumer_groups_in(message: Message) -> list[str]:
    """The names of the groups that a query found.

    Raises what an unsuccessful response means, RemoteProtocolError when the body is no list of texts.
    """
    value = _successful(message).value
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise RemoteProtocolError("Expected a list of consumer groups from $management.")
    return [str(item) for item in value]


def check_management_response(message: Message) -> None:
    """Return when the request succeeded (a deletion); raise what an unsuccessful response means otherwise."""
    _successful(message)


def _successful(message: Message) -> Response:
    response = Response.from_message(message)
    response.raise_for_status()
    return response


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


def _optional_integer(entries: Mapping[object, object], name: str) -> int | None:
    value = entries.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidArgumentError(f"{name} must be an integer, got {type(value).__name__}.")
    return int(value)
