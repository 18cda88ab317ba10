"""The operations of the administration, for requests to ``$management``."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Mapping
from typing import Final

from tidegate.amqp.message import MessageId
from tidegate.broker import Actor, acting_as
from tidegate.gateway.administration.operations import OPERATIONS, Call, Operation
from tidegate.model.errors import InvalidArgumentError
from tidegate.wire.administration import AdministrationRequest, encode_administration_response

_BY_ID: Final[Mapping[str, Operation]] = {operation.operation_id: operation for operation in OPERATIONS}
_PARAMETER: Final = re.compile(r"{(\w+)}")


def operation_of(request: AdministrationRequest) -> Operation:
    """The row of the table. Raises InvalidArgumentError where there is none, or its path lacks a part."""
    operation = _BY_ID.get(request.operation_id)
    if operation is None:
        raise InvalidArgumentError(f"$management knows no operation {request.operation_id[:80]!r}.")
    wanted = set(_PARAMETER.findall(operation.path))
    if missing := sorted(wanted - set(request.parameters)):
        raise InvalidArgumentError(f"The request {operation.operation_id} lacks its property {missing[0]!r}.")
    if unknown := sorted(set(request.parameters) - wanted):
        # A hub decides whose Manage is asked for: one that the path lacks would let in who manages that hub.
        raise InvalidArgumentError(f"{operation.operation_id} knows no property {unknown[0]!r}.")
    return operation


def perform(
    operation: Operation, call: Call, message_id: MessageId | None, actor: Actor
) -> bytes | Awaitable[bytes]:
    """Do it, and return the encoded answer, or where it takes time an awaitable of it."""
    value = operation.handler(call)
    if isinstance(value, Awaitable):
        return _finish(operation, value, message_id, actor)
    return encode_administration_response(message_id, operation.status, value)


async def _finish(
    operation: Operation, answer: Awaitable[object], message_id: MessageId | None, actor: Actor
) -> bytes:
    with acting_as(actor):  # In a task of its own.
        return encode_administration_response(message_id, operation.status, await answer)
