"""``$cbs``: a client sends its token to the service (claims-based security).

The body is the token, the property ``name`` its audience. A put-token on the same link renews it.
Source: the official clients; responses as the service gives them in public traces.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tidegate.amqp.message import Message
from tidegate.amqp.types import Timestamp
from tidegate.model.errors import InvalidArgumentError
from tidegate.wire.request_response import Request, make_request

PUT_TOKEN: Final = "put-token"
SAS_TOKEN_TYPE: Final = "servicebus.windows.net:sastoken"
JWT_TOKEN_TYPE: Final = "jwt"

ACCEPTED: Final = 202
"""The status of an accepted token."""


@dataclass(frozen=True, slots=True)
class PutToken:
    """A token, and the audience that it authorises a connection for."""

    token_type: str
    """SAS_TOKEN_TYPE or JWT_TOKEN_TYPE. The caller checks whether it is supported."""
    audience: str
    token: str = field(repr=False)
    expires_at_s: int | None = None
    """Unix time; None if only the token contains it."""

    @classmethod
    def from_request(cls, request: Request) -> PutToken:
        """Raises InvalidArgumentError if the request has another operation or lacks a part."""
        if request.operation != PUT_TOKEN:
            raise InvalidArgumentError(
                f"$cbs supports only the operation put-token, not {request.operation[:80]!r}."
            )
        token = request.value
        if isinstance(token, bytes):
            token = token.decode("utf-8", "replace")
        if not isinstance(token, str) or not token:
            raise InvalidArgumentError("The put-token request has no token in its body.")
        # The official Python client sends seconds where a timestamp is milliseconds, so the property is
        # ignored and the token's own expiry counts.
        return cls(request.text("type"), request.text("name"), token)


def put_token_request(put_token: PutToken) -> Message:
    """The request that puts a token; the sender sets message-id and reply-to."""
    expires_at_s = put_token.expires_at_s
    properties = {
        "type": put_token.token_type,
        "name": put_token.audience,
        "expiration": None if expires_at_s is None else Timestamp(expires_at_s * 1000),
    }
    return make_request(PUT_TOKEN, properties, put_token.token)
