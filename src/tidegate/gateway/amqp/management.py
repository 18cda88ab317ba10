"""Answers ``$management``: descriptions of event hubs and partitions, and the administration's operations.

Reading a hub or its partitions requires any claim on it; an operation of the administration requires Manage,
or Listen where its row says so.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from tidegate.amqp.encode import encode_value
from tidegate.amqp.message import MessageId
from tidegate.amqp.types import Encoded
from tidegate.broker import Actor, Broker, Claim, EventHub, Partition, acting_as
from tidegate.gateway.administration.operations import OPERATIONS, Call, Operation
from tidegate.gateway.administration.partition_lists import each_partition
from tidegate.gateway.amqp.claims import ConnectionClaims
from tidegate.model.audience import NAMESPACE, entity_path
from tidegate.model.capture import CaptureStatistics
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.hub_properties import EventHubProperties
from tidegate.model.times import time_of
from tidegate.model.validation import validated
from tidegate.transport.at_once import at_once
from tidegate.transport.sliced_work import SlicedWork
from tidegate.wire import management
from tidegate.wire.addresses import NodeAddress, NodeKind
from tidegate.wire.administration import AdministrationRequest
from tidegate.wire.management import ManagementRequest, event_hub_to_map, partition_to_map
from tidegate.wire.request_response import Request, encode_response

_BY_ID: Final[Mapping[str, Operation]] = {
    operation.operation_id: operation for operation in OPERATIONS if not operation.is_http_only
}
_PARAMETER: Final = re.compile(r"{(\w+)}")


@dataclass(frozen=True, slots=True)
class PendingAnswer:
    """An answer that takes time."""

    response: Callable[[], Awaitable[bytes]]
    """Call it once, to await the encoded response; raises as ``ManagementService.handle``."""
    is_read: bool
    """Whether it changes nothing, so that it can be cancelled."""


class ManagementService:
    """Answers the requests of all connections."""

    def __init__(
        self,
        broker: Broker,
        sliced_work: SlicedWork,
        capture_statistics: Callable[[], Mapping[str, CaptureStatistics]] = dict,
    ) -> None:
        """sliced_work: for long lists. capture_statistics: of each hub that is captured now, by name."""
        self._sliced_work = sliced_work
        self._broker = broker
        self._capture_statistics = capture_statistics

    def handle(self, request: Request, claims: ConnectionClaims) -> bytes | PendingAnswer:
        """The encoded response, unless it takes time.

        Raises InvalidArgumentError, UnauthorizedError, NotFoundError, AlreadyExistsError, QuotaExceededError,
        LogFullError, ServerBusyError.
        """
        administration = AdministrationRequest.from_request(request)
        if administration is not None:
            return self._administer(administration, request.message_id, claims)
        return self._read(ManagementRequest.from_request(request), request.message_id, claims)

    def _administer(
        self, request: AdministrationRequest, message_id: MessageId | None, claims: ConnectionClaims
    ) -> bytes | PendingAnswer:
        operation = _operation_of(request)
        hub = None if operation.is_of_namespace else request.parameters.get("hub")
        path = NAMESPACE if hub is None else entity_path(hub)
        claim = Claim.LISTEN if operation.is_listen_enough else Claim.MANAGE
        actor = claims.actor(path, token=request.security_token, claim=claim)
        with acting_as(actor):
            wanted = None if operation.request is None else validated(request.values, operation.request)
            call = Call(
                self._broker,
                self._capture_statistics,
                request.parameters,
                wanted,
                is_manager=True,
                sliced_work=self._sliced_work,
                encode_row=_encoded,
            )
            answer = operation.handler(call)
            if isinstance(answer, Coroutine):
                answer = at_once(answer)
        if isinstance(answer, Awaitable):
            finish = partial(self._finish, operation, answer, message_id, actor)
            return PendingAnswer(finish, is_read=operation.method == "GET")
        return encode_response(message_id, operation.status, answer)

    async def _finish(
        self, operation: Operation, answer: Awaitable[object], message_id: MessageId | None, actor: Actor
    ) -> bytes:
        with acting_as(actor):
            found = await answer
            if operation.method == "GET":
                self._broker.check_actor()  # a list may have waited for others
        return encode_response(message_id, operation.status, found)

    def _read(
        self, wanted: ManagementRequest, message_id: MessageId | None, claims: ConnectionClaims
    ) -> bytes | PendingAnswer:
        # JavaScript's client has a token for this path only, Python's one for the whole hub, which covers it.
        path = NodeAddress(NodeKind.MANAGEMENT, wanted.event_hub).entity
        # Java's processor puts no token to $cbs before its request, which has one (observed: 5.21.0).
        actor = claims.actor(path, token=wanted.security_token, claim=None)
        event_hub = self._broker.event_hub(wanted.event_hub)
        with acting_as(actor):
            answer = at_once(self._read_entity(event_hub, wanted, message_id))
        if isinstance(answer, bytes):
            return answer

        async def finish() -> bytes:
            response = await answer
            claims.require(path, None, token=wanted.security_token)
            return response

        return PendingAnswer(finish, is_read=True)

    async def _read_entity(
        self, event_hub: EventHub, wanted: ManagementRequest, message_id: MessageId | None
    ) -> bytes:
        match wanted.operation:
            case management.Operation.READ_EVENT_HUB:
                answer: object = event_hub_to_map(properties_of(event_hub))
            case management.Operation.READ_PARTITION:
                answer = await _partition(event_hub.partition(wanted.partition_id or ""))
            case management.Operation.QUERY_PARTITIONS:
                answer = await each_partition(event_hub, _partition, self._sliced_work)
        return encode_response(message_id, 200, answer)


async def _partition(partition: Partition) -> object:
    return _encoded(partition_to_map(await partition.ends()))


def _encoded(value: object) -> Encoded:
    return Encoded(encode_value(value))


def _operation_of(request: AdministrationRequest) -> Operation:
    """The row of the table. Raises InvalidArgumentError for an unknown operation or missing parameters."""
    operation = _BY_ID.get(request.operation_id)
    if operation is None:
        raise InvalidArgumentError(f"$management has no operation {request.operation_id[:80]!r}.")
    wanted = set(_PARAMETER.findall(operation.path))
    if missing := sorted(wanted - set(request.parameters)):
        raise InvalidArgumentError(f"The request {operation.operation_id} lacks its property {missing[0]!r}.")
    if unknown := sorted(set(request.parameters) - wanted):
        # Manage is required on the hub: a hub that is not in the path would let its managers in.
        raise InvalidArgumentError(f"{operation.operation_id} has no property {unknown[0]!r}.")
    return operation


def properties_of(event_hub: EventHub) -> EventHubProperties:
    """An event hub as ``$management`` describes it."""
    found = event_hub.description
    return EventHubProperties(
        found.name,
        time_of(found.created_at_ms),
        found.partition_ids,
        namespace_id=found.namespace_id,
        **found.settings(),
    )
