"""Administration over ``$management``: **Tidegate's extension** of ``wire.management``.

A request carries an operation of the HTTP administration (``/openapi.json``): its id, path parameters and
body. The response's body is the JSON value that HTTP would return.

    operation         updateEventHub
    type              tidegate:administration
    hub, policy, …    the parameters of the path
    body              a map; omitted if the operation has no body

Each needs a Manage claim, on the hub that it names or on the namespace; lists of consumers and of consumer
groups, and reports of consumers, need Listen. Errors are those of
``wire.conditions``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tidegate.amqp.message import NO_VALUE, Message
from tidegate.model.errors import InvalidArgumentError
from tidegate.wire.request_response import Request, make_request

ADMINISTRATION_ENTITY: Final = "tidegate:administration"

_PARAMETERS: Final = ("hub", "policy", "publisher", "group", "partition", "backup")
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
        given = [name for name in _PARAMETERS if request.properties.get(name) is not None]
        parameters = {name: request.entity_name(name) for name in given}
        values = {} if request.value in (None, NO_VALUE) else plain_value(request.value)
        if not isinstance(values, dict):
            raise InvalidArgumentError(f"The body of {request.operation[:80]} is not a map.")
        return cls(request.operation, parameters, values, request.optional_text("security_token"))

    def to_message(self) -> Message:
        """The request; the sender sets message-id and reply-to."""
        properties = {
            **self.parameters,
            "type": ADMINISTRATION_ENTITY,
            "security_token": self.security_token,
        }
        return make_request(self.operation_id, properties, dict(self.values) if self.values else NO_VALUE)


def plain_value(value: object, depth: int = 0) -> object:
    """The value of a body with JSON's types: AMQP's own number and string types become int and str.

    Raises InvalidArgumentError for other types, and for lists and maps that are nested too deeply.
    """
    if depth > _DEPTH_MAX:
        raise InvalidArgumentError("The body nests lists and maps too deeply.")
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, list):
        return [plain_value(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {str(name): plain_value(item, depth + 1) for name, item in value.items()}
    raise InvalidArgumentError(f"The body has a {type(value).__name__}, which JSON does not have.")
