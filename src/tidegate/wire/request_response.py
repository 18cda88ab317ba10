"""The request/response convention of ``$cbs`` and ``$management``.

A request is a message with its operation in the application properties and a reply-to; the response carries
the request's message-id (see ``request_id``) as its correlation-id, of the same AMQP type, and a status.
Source: AMQP Management 1.0 (working draft 16) section 3, as the official clients implement it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, cast
from uuid import UUID

from tidegate.amqp.encode import encode_value
from tidegate.amqp.message import NO_VALUE, Message, MessageId, Properties, encode_message
from tidegate.amqp.types import Encoded, Int, Symbol
from tidegate.model.errors import InvalidArgumentError, RemoteProtocolError
from tidegate.model.validation import check_name_length
from tidegate.wire.conditions import error_from_status

_STATUS_CODE: Final = "status-code"
_STATUS_DESCRIPTION: Final = "status-description"
_ERROR_CONDITION: Final = "error-condition"
_DESCRIPTIONS: Final = {201: "Created", 202: "Accepted"}


def request_id(properties: Properties) -> MessageId | None:
    """The response's correlation-id: the request's message-id, else its correlation-id, which Qpid Proton
    uses (SyncRequestResponse in proton/_utils.py).

    One of a type that no id has is encoded again: until it is answered, a list of 4 KB would take 0.3 MB.
    """
    found = properties.correlation_id if properties.message_id is None else properties.message_id
    if found is None or isinstance(found, (str, bytes, int, UUID)):
        return found
    return cast(MessageId, Encoded(encode_value(found)))


@dataclass(frozen=True, slots=True)
class Request:
    operation: str
    properties: Mapping[str, object] = field(default_factory=dict, repr=False)
    """The application properties, with the operation. May hold a token."""
    message_id: MessageId | None = None
    """The response repeats it; see ``request_id``."""
    reply_to: str | None = None
    """Where the response is sent; None: to the receiver that the same session has on the node."""
    value: object = field(default=NO_VALUE, repr=False)
    """The amqp-value body; NO_VALUE for a body of another kind."""

    @classmethod
    def from_message(cls, message: Message) -> Request:
        """Raises InvalidArgumentError if the message has no operation."""
        properties = {
            str(key): value for key, value in message.application_properties.items() if isinstance(key, str)
        }
        operation = properties.get("operation")
        if not isinstance(operation, str):
            raise InvalidArgumentError("The request has no operation.")
        standard = message.properties or Properties()
        return cls(str(operation), properties, request_id(standard), standard.reply_to, message.value)

    def text(self, name: str) -> str:
        """A required string property. Raises InvalidArgumentError if it is missing or not a string."""
        value = self.properties.get(name)
        if not isinstance(value, str) or not value:
            raise InvalidArgumentError(f"The request {self.operation[:80]} lacks its property {name!r}.")
        return str(value)

    def entity_name(self, name: str) -> str:
        """A required string property that names an entity. Raises InvalidArgumentError as ``text``, and for a
        name that is longer than any can be."""
        value = self.text(name)
        check_name_length(value, f"The property {name!r} of the request")
        return value

    def optional_text(self, name: str) -> str | None:
        """A string property, or None if it is missing or null. Raises InvalidArgumentError if it is not a
        string."""
        return None if self.properties.get(name) is None else self.text(name)


@dataclass(frozen=True, slots=True)
class Response:
    status_code: int
    """As in HTTP."""
    status_description: str = ""
    correlation_id: MessageId | None = None
    error_condition: str | None = None
    value: object = NO_VALUE
    """The amqp-value body; NO_VALUE if there is none."""

    @classmethod
    def from_message(cls, message: Message) -> Response:
        """Raises RemoteProtocolError if the message has no status."""
        properties = {str(key): value for key, value in message.application_properties.items()}
        # The draft of the standard, and some of Azure's responses, write statusCode.
        status = properties.get(_STATUS_CODE, properties.get("statusCode"))
        if not isinstance(status, int):
            raise RemoteProtocolError("A response has no status code.")
        description = properties.get(_STATUS_DESCRIPTION, properties.get("statusDescription"))
        condition = properties.get(_ERROR_CONDITION, properties.get("errorCondition"))
        return cls(
            int(status),
            str(description or ""),
            (message.properties or Properties()).correlation_id,
            None if condition is None else str(condition),
            message.value,
        )

    def raise_for_status(self) -> None:
        """Raise the error of an unsuccessful response (see ``wire.conditions``)."""
        if not 200 <= self.status_code < 300:
            raise error_from_status(self.status_code, self.status_description, self.error_condition)


def successful_value(message: Message) -> object:
    """The body of a successful response. Raises as ``Response.from_message`` and ``raise_for_status``."""
    response = Response.from_message(message)
    response.raise_for_status()
    return response.value


def make_request(operation: str, properties: Mapping[str, object], value: object = NO_VALUE) -> Message:
    """A request; the sender sets message-id and reply-to. Properties that are None or empty are omitted.

    Without a value the body is an empty data section, which every service accepts.
    """
    given: dict[object, object] = {name: each for name, each in properties.items() if each not in (None, "")}
    return Message(
        application_properties={"operation": operation} | given,
        data=(b"",) if value is NO_VALUE else (),
        value=value,
    )


def encode_response(
    correlation_id: MessageId | None,
    status_code: int,
    value: object = None,
    *,
    status_description: str | None = None,
    error_condition: str | None = None,
) -> bytes:
    """An encoded response; its body is an amqp-value section. status_description: None for a success."""
    description = status_description or _DESCRIPTIONS.get(status_code, "OK")
    properties: dict[object, object] = {
        _STATUS_CODE: Int(status_code),
        _STATUS_DESCRIPTION: description,
        # The official Python client expects the draft's spelling in responses of $management.
        "statusDescription": description,
    }
    if error_condition is not None:
        properties[_ERROR_CONDITION] = Symbol(error_condition)
    return encode_message(
        Message(
            properties=Properties(correlation_id=correlation_id),
            application_properties=properties,
            value=value,
        )
    )
