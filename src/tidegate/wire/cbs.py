"""``$cbs``: a client gives its token to the connection (claims-based security).

The token is in the body, what it is for (the audience) is the property ``name``. A put-token on the same
link renews it. Source: the official clients; answers as the service gives them (shared/wire.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tidegate.amqp.message import MessageId
from tidegate.amqp.types import Timestamp
from tidegate.model.errors import InvalidArgumentError
from tidegate.wire.request_response import Request, encode_request, encode_response

PUT_TOKEN: Final = "put-token"
SAS_TOKEN_TYPE: Final = "servicebus.windows.net:sastoken"
JWT_TOKEN_TYPE: Final = "jwt"

ACCEPTED: Final = 202
"""The status of a token that was taken."""


@dataclass(frozen=True, slots=True)
class PutToken:
    """A request to authorise a connection for an audience."""

    token: str = field(repr=False)
    token_type: str
    """SAS_TOKEN_TYPE or JWT_TOKEN_TYPE; whether it is supported is the caller's to say."""
    audience: str
    message_id: MessageId | None = None
    reply_to: str | None = None

    @classmethod
    def from_request(cls, request: Request) -> PutToken:
        """The put-token in a request to ``$cbs``.

        Raises InvalidArgumentError when it is another operation, or lacks a part.
        """
        if request.operation != PUT_TOKEN:
            raise InvalidArgumentError(f"$cbs knows the operation put-token, not {request.operation!r}.")
        token = request.value
        if isinstance(token, bytes):
            token = token.decode("utf-8", "replace")
        if not isinstance(token, str) or not token:
            raise InvalidArgumentError("The put-token request has no token in its body.")
        return cls(token, request.text("type"), request.text("name"), request.message_id, request.reply_to)


def encode_put_token(
    token: str,
    *,
    audience: str,
    message_id: MessageId,
    reply_to: str,
    expires_at_s: int | None = None,
    token_type: str = SAS_TOKEN_TYPE,
) -> bytes:
    """A put-token request's bytes. expires_at_s: Unix time, where the token does not say it itself."""
    properties: dict[str, object] = {"type": token_type, "name": audience}
    if expires_at_s is not None:
        properties["expiration"] = Timestamp(expires_at_s * 1000)
    return encode_request(
        PUT_TOKEN, message_id=message_id, reply_to=reply_to, properties=properties, value=token
    )


def encode_put_token_accepted(message_id: MessageId | None) -> bytes:
    """The answer to a token that was taken; a refusal is ``request_response.encode_error_response``."""
    return encode_response(correlation_id=message_id, status_code=ACCEPTED, status_description="Accepted")
