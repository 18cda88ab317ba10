"""Authorizes requests by the signature or JSON Web Token in their ``Authorization`` header.

The rule: nothing else in the request counts. The token must be for the entity that the caller acts on;
neither ``Host`` nor any other header plays a part.
"""

from __future__ import annotations

import re
from typing import Final

from starlette.requests import HTTPConnection

from tidegate.broker import Broker, Claim, Door, Grant, Peer
from tidegate.model.audience import Audience, EntityPath
from tidegate.model.clock import Clock
from tidegate.model.errors import TidegateError, UnauthorizedError
from tidegate.model.sas import SIGNATURE_PREFIX
from tidegate.model.validation import check_name_length
from tidegate.transport.admission import authenticate_peer, keep_waiting

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]*", re.ASCII)
"""The scheme of an ``Authorization`` header, in the form of those registered with IANA."""


class RequestAuthorizer:
    """Authorizes requests by the policies of the namespace and its event hubs."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock

    def require(self, request: HTTPConnection, path: EntityPath, *claims: Claim) -> Grant:
        """Raise UnauthorizedError unless the request's token gives one of ``claims`` on ``path`` now.

        Raises InvalidArgumentError if the address has a name that is longer than any can be,
        ServerBusyError after too many wrong keys. The answer to an InvalidKeyError waits for
        ``KeyGuard.wait_before_answer``.
        """
        for parameter, name in request.path_params.items():
            check_name_length(name, f"The {parameter} in the address")
        try:
            grant = self._broker.authorize(self._token(request), Audience("", path), peer_of(request))
        except TidegateError:
            keep_waiting(request.scope)
            raise
        now_utc = self._clock.now_utc()
        if not any(grant.permits(path, claim, now_utc=now_utc) for claim in claims):
            wanted = " or ".join(claim.value for claim in claims)
            raise UnauthorizedError(
                f"Unauthorized access. '{wanted}' claim(s) are required to perform this operation. "
                f"Resource: '{path}'.",
                next_step="Use a policy or role that has the claim.",
            )
        authenticate_peer(request.scope)
        return grant

    def _token(self, request: HTTPConnection) -> str:
        tokens = request.headers.getlist("authorization")
        if not tokens or not tokens[0]:
            raise UnauthorizedError(
                "MissingToken: The request has no Authorization header.",
                next_step="Send Authorization: SharedAccessSignature sr=…&sig=…&se=…&skn=….",
            )
        if len(tokens) > 1:
            # A proxy in front may have checked another one than we would.
            raise UnauthorizedError("InvalidToken: The request has several Authorization headers.")
        scheme, space, token = tokens[0].partition(" ")
        if scheme.lower() == "sharedaccesssignature":
            return tokens[0]
        is_trusted = self._broker.authorizer.entra is not None
        if scheme.lower() == "bearer" and is_trusted and not token.startswith(SIGNATURE_PREFIX):
            return token
        # Without a space it is not a scheme, but perhaps a key or a token.
        is_scheme = space and _SCHEME.fullmatch(scheme)
        kind = f"of the type {scheme[:40].lower()!r}" if is_scheme else "without a type"
        raise UnauthorizedError(
            f"InvalidToken: Tokens {kind} are not supported.",
            next_step="Send a SharedAccessSignature made with the key of a policy.",
        )


def peer_of(request: HTTPConnection) -> Peer:
    """The sender of a request."""
    return Peer(Door.HTTP, request.client.host if request.client is not None else "")
