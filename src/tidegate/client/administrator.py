"""``EventHubAdministrator``: makes, lists and deletes hubs and consumer groups of a running Tidegate.

It speaks AMQP. Azure has no such requests: there, hubs and groups are made in its portal or with its own
tools.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from types import TracebackType
from typing import Self

from tidegate.client.connector import Connector
from tidegate.client.entities import EventHubProperties
from tidegate.client.management import ask, read_event_hub, to_properties
from tidegate.client.namespace import Namespace
from tidegate.client.retry import RetryPolicy
from tidegate.model.clock import Clock
from tidegate.model.connection_string import ConnectionString
from tidegate.wire.addresses import entity_audience
from tidegate.wire.management import (
    ManagementRequest,
    Operation,
    check_management_response,
    consumer_groups_in,
    event_hub_in,
    event_hubs_in,
)


class EventHubAdministrator:
    """Manages the hubs of a namespace; its policy needs the Manage claim. ``async with`` or ``close`` it."""

    def __init__(self, namespace: Namespace, *, clock: Clock | None = None) -> None:
        """Connects when first used."""
        self._connector = Connector(namespace, clock=clock)
        self._audience = entity_audience(namespace.host)

    @classmethod
    def from_connection_string(
        cls,
        connection_string: str | ConnectionString,
        *,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen, therefore safe to share
        timeout_s: float = 60.0,
        ssl_context: ssl.SSLContext | None = None,
        ca_file: str | Path | None = None,
    ) -> Self:
        """An administrator of the namespace; the arguments are those of
        ``Namespace.from_connection_string``.
        """
        return cls(
            Namespace.from_connection_string(
                connection_string,
                retry=retry,
                timeout_s=timeout_s,
                ssl_context=ssl_context,
                ca_file=ca_file,
            )
        )

    async def create_event_hub(
        self, name: str, *, partition_count: int | None = None, retention_hours: int | None = None
    ) -> EventHubProperties:
        """Create a hub. partition_count, retention_hours: None takes the service's default.

        Raises AlreadyExistsError, InvalidArgumentError (a bad name or number), UnauthorizedError. After a
        broken line the request is repeated: an AlreadyExistsError may then be about this very call.
        """
        request = ManagementRequest(
            Operation.CREATE_EVENT_HUB,
            name,
            partition_count=partition_count,
            retention_hours=retention_hours,
        )
        return to_properties(await ask(self._connector, self._audience, request, event_hub_in))

    async def list_event_hubs(self) -> list[EventHubProperties]:
        """All hubs of the namespace. Raises UnauthorizedError."""
        request = ManagementRequest(Operation.QUERY_EVENT_HUBS)
        found = await ask(self._connector, self._audience, request, event_hubs_in)
        return [to_properties(description) for description in found]

    async def get_event_hub(self, name: str) -> EventHubProperties:
        """One hub. Raises NotFoundError, UnauthorizedError."""
        return await read_event_hub(self._connector, self._audience, name)

    async def delete_event_hub(self, name: str) -> None:
        """Delete a hub with all its events, for good. Raises NotFoundError, UnauthorizedError."""
        request = ManagementRequest(Operation.DELETE_EVENT_HUB, name)
        await ask(self._connector, self._audience, request, check_management_response)

    async def create_consumer_group(self, event_hub: str, name: str) -> None:
        """Create a consumer group.

        Raises AlreadyExistsError, NotFoundError (the hub), QuotaExceededError, InvalidArgumentError (a bad
        name), UnauthorizedError. After a broken line it is repeated, as in ``create_event_hub``.
        """
        request = ManagementRequest(Operation.CREATE_CONSUMER_GROUP, event_hub, consumer_group=name)
        await ask(self._connector, self._audience, request, check_management_response)

    async def list_consumer_groups(self, event_hub: str) -> list[str]:
        """The names of a hub's consumer groups, ``$Default`` first.

        Raises NotFoundError, UnauthorizedError.
        """
        request = ManagementRequest(Operation.QUERY_CONSUMER_GROUPS, event_hub)
        return await ask(self._connector, self._audience, request, consumer_groups_in)

    async def delete_consumer_group(self, event_hub: str, name: str) -> None:
        """Delete a consumer group; receivers in it stay until they close. ``$Default`` cannot be deleted.

        Raises NotFoundError, InvalidArgumentError, UnauthorizedError.
        """
        request = ManagementRequest(Operation.DELETE_CONSUMER_GROUP, event_hub, consumer_group=name)
        await ask(self._connector, self._audience, request, check_management_response)

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        await self._connector.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
