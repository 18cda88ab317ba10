"""Who may do what: shared access policies, and the check of the tokens made with their keys.

A key never leaves this module except through ``SharedAccessPolicy.key`` (for the connection string that its
owner asked for); no repr, log line or error holds one.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Final

from tidegate.model.audience import Audience
from tidegate.model.errors import UnauthorizedError
from tidegate.model.sas import SharedAccessSignature

ROOT_POLICY_NAME: Final = "RootManageSharedAccessKey"
"""The policy every namespace is born with (Azure "Authorize access with shared access signatures",
2026-09).
"""

_KEY_BYTES = 32


class Claim(Enum):
    """A right that a policy gives."""

    SEND = "Send"
    LISTEN = "Listen"
    MANAGE = "Manage"


@dataclass(frozen=True, slots=True)
class SharedAccessPolicy:
    """A named key and the rights that go with it."""

    name: str
    key: str = field(repr=False)
    """Raw UTF-8 key material, as clients put it into their connection string."""
    claims: frozenset[Claim]

    @classmethod
    def generate(cls, name: str, claims: Iterable[Claim]) -> SharedAccessPolicy:
        """A policy with a new random key of 32 bytes, in base64."""
        return cls(name, base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode(), frozenset(claims))


@dataclass(frozen=True, slots=True)
class Grant:
    """What a verified token allows, and until when."""

    policy_name: str
    resource: Audience
    """What the token is for; its sub-paths are included."""
    claims: frozenset[Claim]
    expiry: int
    """Unix time in seconds: from then on the grant is worth nothing."""

    def permits(self, path: str, claim: Claim, *, now_utc: datetime) -> bool:
        """Whether ``claim`` is given on ``path`` (an audience or an address, ``hub/Partitions/0``) now."""
        return (
            claim in self.claims
            and now_utc.timestamp() < self.expiry
            and self.resource.covers(Audience("", Audience.parse(path).path))
        )


class Authorizer:
    """Checks tokens against the namespace's policies."""

    def __init__(self, policies: Iterable[SharedAccessPolicy]) -> None:
        self._policies = {policy.name: policy for policy in policies}
        # Checked in place of a policy that does not exist, so that its absence takes no less time.
        self._nobody = SharedAccessPolicy.generate("", ())

    @property
    def policies(self) -> tuple[SharedAccessPolicy, ...]:
        """All policies, in the order of the catalog."""
        return tuple(self._policies.values())

    def policy(self, name: str) -> SharedAccessPolicy | None:
        """The policy of that name; None where there is none. Names are compared as they stand."""
        return self._policies.get(name)

    def authorize(self, token: str, audience: str, *, now_utc: datetime) -> Grant:
        """Verify a SAS token that a client presents for ``audience``, and say what it allows.

        Raises UnauthorizedError with the service's words: MalformedToken, InvalidSignature (wrong key or
        unknown policy, which are not told apart), ExpiredToken, InvalidAudience. The message never holds the
        token.
        """
        signature = SharedAccessSignature.parse(token)
        policy = self._policies.get(signature.key_name)
        is_genuine = signature.is_signed_with((policy or self._nobody).key)
        if policy is None or not is_genuine:
            raise UnauthorizedError(
                "InvalidSignature: The token has an invalid signature.",
                next_step="Check SharedAccessKeyName and SharedAccessKey of the connection string.",
            )
        if now_utc.timestamp() >= signature.expiry:
            raise UnauthorizedError(
                f"ExpiredToken: The token is expired. Expiration time: '{_format_expiry(signature.expiry)}'.",
                next_step="Make a new token, and check this machine's clock.",
            )
        resource = Audience.parse(signature.resource)
        if not resource.covers(Audience.parse(audience)):
            raise UnauthorizedError(
                "InvalidAudience: The authorization header contains a token signed for the wrong audience.",
                next_step=f"The token is for {signature.resource!r}, asked for was {audience!r}.",
            )
        return Grant(policy.name, resource, policy.claims, signature.expiry)


def _format_expiry(expiry: int) -> str:
    try:
        return datetime.fromtimestamp(expiry, UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return str(expiry)
