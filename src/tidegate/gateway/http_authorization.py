"""What a request may do: the shared access signature in its ``Authorization`` header, judged each time."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from tidegate.broker import Broker, Claim, Grant
from tidegate.model.clock import Clock
from tidegate.model.errors import NotFoundError, UnauthorizedError
from tidegate.model.sas import SharedAccessSignature


class RequestAuthorizer:
    """Judges requests by the policies of the namespace and its event hubs."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock

    def require(self, request: HTTPConnection, path: str, *claims: Claim) -> Grant:
        """Raise UnauthorizedError unless the request's token gives one of ``claims`` on ``path`` now.

        path: of the entity, ``hub/publishers/name``; empty for the namespace.
        """
        token = request.headers.get("authorization", "")
        scheme = token.partition(" ")[0].lower()
        if not token:
            raise UnauthorizedError(
                "MissingToken: The request has no Authorization header.",
                next_step="Send Authorization: SharedAccessSignature sr=…&sig=…&se=…&skn=….",
            )
        if scheme != "sharedaccesssignature":
            raise UnauthorizedError(
                f"InvalidToken: Tokens of the type {scheme[:40]!r} are not supported.",
                next_step="Send a SharedAccessSignature made with the key of a policy.",
            )
        host = request.headers.get("host", "")
        audience, prefix = f"sb://{host}/{path}", ""
        name = _host_name(host)
        resource = SharedAccessSignature.parse(token).resource
        is_host_meant = "://" not in resource and name and resource.lower().partition("/")[0] == name
        if is_host_meant and not self._is_event_hub(name):
            # Azure's own examples of this interface write the host without a scheme: sr=HOST or sr=HOST/HUB.
            # Whoever asks chooses the Host header: a token for an event hub stays one, whatever that says.
            audience, prefix = f"{name}/{path}", f"{name}/"
        grant = self._broker.authorize(token, audience)
        now_utc = self._clock.now_utc()
        if not any(grant.permits(prefix + path, claim, now_utc=now_utc) for claim in claims):
            wanted = " or ".join(claim.value for claim in claims)
            raise UnauthorizedError(
                f"Unauthorized access. '{wanted}' claim(s) are required to perform this operation. "
                f"Resource: '{path}'.",
                next_step="Use a policy that has the claim.",
            )
        return grant

    def _is_event_hub(self, name: str) -> bool:
        try:
            self._broker.event_hub(name)
        except NotFoundError:
            return False
        return True


def _host_name(host: str) -> str:
    """The host of a ``Host`` header, without its port, in lower case."""
    return (host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]).lower()
