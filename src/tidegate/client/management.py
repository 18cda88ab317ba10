"""Requests to ``$management``: reading a hub and its partitions, and (Tidegate's own) administration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from tidegate.amqp.message import Message
from tidegate.client.connector import AuthorizedConnection, Connector
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.hub_properties import EventHubProperties, PartitionEnds
from tidegate.wire.administration import AdministrationRequest
from tidegate.wire.management import (
    ManagementRequest,
    Operation,
    event_hub_from_map,
    partition_from_map,
    partitions_from_list,
)
from tidegate.wire.request_response import successful_value

T = TypeVar("T")


async def ask(
    connector: Connector,
    audience: str,
    request: ManagementRequest | AdministrationRequest,
    parse: Callable[[object], T],
) -> T:
    """Send a request, with retries, and return the parsed body of the response.

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
    return parse(successful_value(await connector.run(what, operation)))


async def read_event_hub(connector: Connector, audience: str, event_hub: str) -> EventHubProperties:
    """A hub's properties. audience: of the client's token (``sb://host/hub``)."""
    request = ManagementRequest(Operation.READ_EVENT_HUB, event_hub)
    return await ask(connector, audience, request, event_hub_from_map)


async def read_partition(
    connector: Connector, audience: str, event_hub: str, partition_id: str
) -> PartitionEnds:
    """A partition's properties."""
    request = ManagementRequest(Operation.READ_PARTITION, event_hub, partition_id=partition_id)
    return await ask(connector, audience, request, partition_from_map)


async def read_partitions(
    connector: Connector, audience: str, event_hub: EventHubProperties
) -> list[PartitionEnds]:
    """All partitions of a hub, in the order of its ids; one request suffices for Tidegate."""
    if event_hub.retention_hours is not None:
        request = ManagementRequest(Operation.QUERY_PARTITIONS, event_hub.name)
        try:
            return await ask(connector, audience, request, partitions_from_list)
        except InvalidArgumentError:
            pass  # an earlier version of Tidegate
    return await asyncio.gather(
        *(read_partition(connector, audience, event_hub.name, each) for each in event_hub.partition_ids)
    )
