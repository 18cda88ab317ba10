"""Administration over ``$management``: **Tidegate's extension** of ``wire.management``.

A request carries an operation of the HTTP administration (``/openapi.json``): its id, path parameters and
body. The response's body is the JSON value that HTTP would return.

    operation         updateEventHub
    type              tidegate:administration
    hub, policy, …    the parameters of the path
    body              a map; omitted if the operation has no body

Each needs a Manage claim, on the hub that it names or on the namespace. Errors are those of
``wire.conditions``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tidegate.amqp.message import NO_VALUE, Message, MessageId
from tidegate.model.errors import InvalidArgumentError, RemoteProtocolError
from tidegate.wire.request_response import Request, encode_response, make_request, successful

ADMINISTRATION_ENTITY: Final = "tidegate:administration"

_PARAMETERS: Final = ("hub", "policy", "publisher", "group", "partition")
_DEPTH_MAX: Final = 4
"""Nesting of lists and maps (our choice: a body has two levels)."""


@dataclass(frozen=True, slots=True)
class AdministrationRequest:
    operation_id: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Path parameters by name; empty ones are omitted."""
    values: Mapping[str, object] = field(default_factory=dict, repr=False)
    """The body: plain values by name. May contain keys."""
    security_token: str | None = field(default=None, repr=False)

    @classmethod
    def from_request(cls, request: Request) -> AdministrationRequest | None:
        """The request, or None if it has another type (see ``wire.management``).

        Raises InvalidArgumentError if its body is not a map of plain values.
        """
        if request.optional_text("type") != ADMINISTRATION_ENTITY:
            return None
        found = {name: request.optional_text(name) for name in _PARAMETERS}
        parameters = {name: value for name, value in found.items() if value}
        values = {} if request.value in (None, NO_VALUE) else _plain(request.value)
        if not isinstance(values, dict):
            raise InvalidArgumentError(f"The body of {request.operation[:80]} is not a map.")
        return cls(request.operation, parameters, values, request.optional_text("security_token"))

    def to_message(self) -> Message:
        """The request; the sender sets message-id and reply-to."""
        properties: dict[str, object] = {"type": ADMINISTRATION_ENTITY}
        properties |= {name: value for name, value in self.parameters.items() if value}
        if self.security_token is not None:
            properties["security_token"] = self.security_token
        return make_request(self.operation_id, properties, dict(self.values) if self.values else NO_VALUE)


def encode_administration_response(message_id: MessageId | None, status_code: int, body: object) -> bytes:
    """The response to a request that succeeded. body: plain values, or None."""
    description = "Created" if status_code == 201 else "OK"
    return encode_response(
        correlation_id=message_id, status_code=status_code, status_description=description, value=body
    )


def nothing_in(message: Message) -> None:
    """Raise the error of an unsuccessful response."""
    successful(message)


def map_in(message: Message) -> dict[str, object]:
    """The map in a response.

    Raises the error of an unsuccessful response, or RemoteProtocolError if the body is not a map.
    """
    return _as_map(successful(message).value)


def maps_in(message: Message) -> list[dict[str, object]]:
    """The list of maps in a response. Raises as ``map_in``."""
    value = successful(message).value
    if not isinstance(value, list):
        raise RemoteProtocolError(f"The answer of $management is a {type(value).__name__}, not a list.")
    return [_as_map(item) for item in value]


def _as_map(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"Expected a map from $management, got {type(value).__name__}.")
    return {str(name): item for name, item in value.items()}


def _plain(value: object, depth: int = 0) -> object:
    """The value with JSON's types: AMQP's own number and string types become int and str."""
    if depth > _DEPTH_MAX:
        raise InvalidArgumentError("The body nests lists and maps too deeply.")
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, list):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {str(name): _plain(item, depth + 1) for name, item in value.items()}
    raise InvalidArgumentError(f"The body has a {type(value).__name__}, which JSON does not have.")
