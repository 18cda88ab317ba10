"""Requests to ``$management``: reading a hub and its partitions, and (Tidegate's own) administration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from tidegate.amqp.message import Message
from tidegate.client.connector import AuthorizedConnection, Connector
from tidegate.client.entities import EventHubProperties
from tidegate.model.errors import InvalidArgumentError, RemoteProtocolError
from tidegate.model.hub_settings import hub_changes_in
from tidegate.model.partition_ends import PartitionEnds
from tidegate.wire.administration import AdministrationRequest
from tidegate.wire.management import (
    EventHubDescription,
    ManagementRequest,
    Operation,
    event_hub_in,
    partition_in,
    partitions_in,
)

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


async def ask(
    connector: Connector,
    audience: str,
    request: ManagementRequest | AdministrationRequest,
    parse: Callable[[Message], T],
) -> T:
    """Send a request, with retries, and return the parsed response.

    Raises the error that the service answers with: NotFoundError, UnauthorizedError, AlreadyExistsError,
    InvalidArgumentError; BrokenError and OperationTimeoutError after the retries.
    """

    async def operation(authorized: AuthorizedConnection) -> Message:
        await authorized.authorize(audience)
        token = (await authorized.token_for(audience)).value
        channel = await authorized.management()
        return await channel.request(replace(request, security_token=token).to_message())

    if isinstance(request, AdministrationRequest):
        what, event_hub = request.operation_id, request.parameters.get("hub")
    else:
        what, event_hub = request.operation.name, request.event_hub
    what = f"{what} of {event_hub or 'the namespace'}"
    return parse(await connector.run(what, operation))


async def read_event_hub(connector: Connector, audience: str, event_hub: str) -> EventHubProperties:
    """A hub's properties. audience: of the client's token (``sb://host/hub``)."""
    request = ManagementRequest(Operation.READ_EVENT_HUB, event_hub)
    return _properties_of(await ask(connector, audience, request, event_hub_in))


async def read_partition(
    connector: Connector, audience: str, event_hub: str, partition_id: str
) -> PartitionEnds:
    """A partition's properties."""
    request = ManagementRequest(Operation.READ_PARTITION, event_hub, partition_id=partition_id)
    return await ask(connector, audience, request, partition_in)


async def read_partitions(
    connector: Connector, audience: str, event_hub: EventHubProperties
) -> list[PartitionEnds]:
    """All partitions of a hub, in the order of its ids; one request suffices for Tidegate."""
    if event_hub.retention_hours is not None:
        request = ManagementRequest(Operation.QUERY_PARTITIONS, event_hub.name)
        try:
            return await ask(connector, audience, request, partitions_in)
        except InvalidArgumentError:
            pass  # an earlier version of Tidegate
    return await asyncio.gather(
        *(read_partition(connector, audience, event_hub.name, each) for each in event_hub.partition_ids)
    )


def _properties_of(description: EventHubDescription) -> EventHubProperties:
    """The wire's description of a hub as the client's value."""
    return EventHubProperties(
        name=description.name,
        created_at=_EPOCH + timedelta(milliseconds=description.created_at_ms),
        partition_ids=description.partition_ids,
        **description.settings(),
    )


def event_hub_of(entries: Mapping[str, object]) -> EventHubProperties:
    """The administration's description of a hub as the client's value. Raises RemoteProtocolError."""
    name, created_at, ids = (entries.get(name) for name in ("name", "created_at", "partition_ids"))
    if not isinstance(name, str) or not isinstance(created_at, str) or not isinstance(ids, list):
        raise RemoteProtocolError("The response of $management is not an event hub.")
    return EventHubProperties(
        name=str(name),
        created_at=datetime.fromisoformat(created_at),
        partition_ids=tuple(str(each) for each in ids),
        **hub_changes_in(entries),
    )
