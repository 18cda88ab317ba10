"""What ``$management`` answers: descriptions of event hubs and partitions, and our own administration.

Reading an entity takes any claim on it; making, deleting and listing event hubs and groups takes Manage.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from tidegate.amqp.message import MessageId
from tidegate.broker import Actor, Broker, EventHub, acting_as
from tidegate.gateway.administration.operations import Call
from tidegate.gateway.amqp.administration import operation_of, perform
from tidegate.gateway.amqp.claims import ConnectionClaims
from tidegate.model.audience import NAMESPACE, entity_path
from tidegate.model.capture import CaptureStatistics
from tidegate.model.hub_settings import PARTITION_COUNT_DEFAULT
from tidegate.wire.addresses import NodeAddress, NodeKind
from tidegate.wire.administration import AdministrationRequest
from tidegate.wire.management import (
    EventHubDescription,
    ManagementRequest,
    Operation,
    encode_management_response,
)
from tidegate.wire.request_response import Request


class ManagementService:
    """Answers the requests of all connections."""

    def __init__(
        self, broker: Broker, capture_statistics: Callable[[], Mapping[str, CaptureStatistics]] = dict
    ) -> None:
        """capture_statistics: by the name of each hub that is captured now."""
        self._broker = broker
        self._capture_statistics = capture_statistics

    def handle(self, request: Request, claims: ConnectionClaims) -> bytes | Awaitable[bytes]:
        """The encoded response, or where it takes time an awaitable of it.

        Raises InvalidArgumentError, UnauthorizedError, NotFoundError, AlreadyExistsError, QuotaExceededError,
        LogFullError; the awaitable raises the same.
        """
        administration = AdministrationRequest.from_request(request)
        if administration is not None:
            return self._administer(administration, request.message_id, claims)
        wanted = ManagementRequest.from_request(request)
        # JavaScript's client has a token for this path only, Python's one for the whole hub, which covers it.
        path = NodeAddress(NodeKind.MANAGEMENT, wanted.event_hub).entity
        # Java's processor puts none to $cbs before it asks: its token is in the request (observed: 5.21.0).
        if wanted.operation.needs_manage_claim:
            with acting_as(actor := claims.actor(path, token=wanted.security_token)):
                return self._perform(wanted, request.message_id, actor)
        claims.require(path, None, token=wanted.security_token)
        return self._perform(wanted, request.message_id, Actor())

    def _administer(
        self, request: AdministrationRequest, message_id: MessageId | None, claims: ConnectionClaims
    ) -> bytes | Awaitable[bytes]:
        operation = operation_of(request)
        hub = None if operation.is_of_namespace else request.parameters.get("hub")
        path = NAMESPACE if hub is None else entity_path(hub)
        with acting_as(actor := claims.actor(path, token=request.security_token)):
            values = {} if operation.request is None else operation.request.check(request.values)
            call = Call(self._broker, self._capture_statistics, request.parameters, values, is_manager=True)
            return perform(operation, call, message_id, actor)

    def _perform(
        self, wanted: ManagementRequest, message_id: MessageId | None, actor: Actor
    ) -> bytes | Awaitable[bytes]:
        match wanted.operation:
            case Operation.READ_EVENT_HUB:
                event_hub = self._broker.event_hub(wanted.event_hub)
                return encode_management_response(message_id, describe_event_hub(event_hub))
            case Operation.READ_PARTITION:
                assert wanted.partition_id is not None
                partition = self._broker.event_hub(wanted.event_hub).partition(wanted.partition_id)
                return encode_management_response(message_id, partition.ends())
            case Operation.QUERY_PARTITIONS:
                partitions = self._broker.event_hub(wanted.event_hub).partitions
                return encode_management_response(message_id, [partition.ends() for partition in partitions])
            case Operation.CREATE_EVENT_HUB:
                return self._create(wanted, message_id)
            case Operation.DELETE_EVENT_HUB:
                return self._delete(wanted, message_id, actor)
            case Operation.QUERY_EVENT_HUBS:
                found = [describe_event_hub(event_hub) for event_hub in self._broker.list_event_hubs()]
                return encode_management_response(message_id, found)
            case Operation.CREATE_CONSUMER_GROUP:
                assert wanted.consumer_group is not None
                self._broker.event_hub(wanted.event_hub).create_consumer_group(wanted.consumer_group)
                return encode_management_response(message_id, None, status_code=201)
            case Operation.DELETE_CONSUMER_GROUP:
                assert wanted.consumer_group is not None
                self._broker.event_hub(wanted.event_hub).delete_consumer_group(wanted.consumer_group)
                return encode_management_response(message_id, None)
            case Operation.QUERY_CONSUMER_GROUPS:
                groups = self._broker.event_hub(wanted.event_hub).description.consumer_groups
                return encode_management_response(message_id, groups)

    def _create(self, wanted: ManagementRequest, message_id: MessageId | None) -> bytes:
        event_hub = self._broker.create_event_hub(
            wanted.event_hub,
            partition_count=PARTITION_COUNT_DEFAULT
            if wanted.partition_count is None
            else wanted.partition_count,
            **wanted.settings,
        )
        return encode_management_response(message_id, describe_event_hub(event_hub), status_code=201)

    async def _delete(self, wanted: ManagementRequest, message_id: MessageId | None, actor: Actor) -> bytes:
        with acting_as(actor):  # In a task of its own.
            await self._broker.delete_event_hub(wanted.event_hub)
        return encode_management_response(message_id, None)


def describe_event_hub(event_hub: EventHub) -> EventHubDescription:
    """An event hub as ``$management`` tells it."""
    description = event_hub.description
    return EventHubDescription(
        description.name,
        description.created_at_ms,
        description.partition_ids,
        **description.settings(),
    )
