"""Credentials: shared keys, ready-made signatures and Entra ID.

Each returns tokens for an audience; the connection sends them to ``$cbs`` and renews them after
``refresh_delay_s``. Secrets never appear in a repr.

Source: Azure "Authenticate access to Event Hubs resources using shared access signatures" (2026-09); the
Entra ID scope is that of azure-eventhub 5.15.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import BrokenError, ConnectionStringError
from tidegate.model.sas import SharedAccessSignature, make_sas_token
from tidegate.wire.cbs import JWT_TOKEN_TYPE, SAS_TOKEN_TYPE

ENTRA_ID_SCOPE: Final = "https://eventhubs.azure.net//.default"

_REFRESH_PART: Final = 0.8
_REFRESH_DELAY_S_MIN: Final = 1.0


@dataclass(frozen=True, slots=True)
class Token:
    """A token for one audience, as sent to ``$cbs``."""

    value: str = field(repr=False)
    token_type: str
    expiry: int
    """Unix time in seconds."""


class Credential(Protocol):
    """The protocol of all credentials."""

    async def token_for(self, audience: str, *, now: float) -> Token:
        """A token for ``audience`` (``sb://host/hub…``), valid at ``now`` (Unix time in seconds)."""
        ...


class AccessToken(Protocol):
    """What azure-identity's credentials return."""

    @property
    def token(self) -> str:
        """The token itself."""
        ...

    @property
    def expires_on(self) -> int:
        """Unix time in seconds."""
        ...


class TokenCredential(Protocol):
    """An Entra ID credential, such as azure-identity's ``aio`` classes."""

    async def get_token(self, *scopes: str) -> AccessToken:
        """A token for the scopes, from a cache or from the identity service."""
        ...


@dataclass(frozen=True, slots=True)
class SharedKeyCredential:
    """A policy's name and key: signs a fresh token for each audience."""

    key_name: str
    key: str = field(repr=False)
    token_lifetime_s: int = 3600
    """How long each token is valid; it is refreshed well before (see ``refresh_delay_s``)."""

    async def token_for(self, audience: str, *, now: float) -> Token:
        """Sign a token for ``audience``, valid for ``token_lifetime_s`` from ``now``."""
        expiry = int(now) + self.token_lifetime_s
        value = make_sas_token(audience=audience, key_name=self.key_name, key=self.key, expiry=expiry)
        return Token(value, SAS_TOKEN_TYPE, expiry)


@dataclass(frozen=True, slots=True)
class SharedSignatureCredential:
    """A ready-made signature (``SharedAccessSignature sr=…``), used until it expires."""

    signature: str = field(repr=False)

    async def token_for(self, audience: str, *, now: float) -> Token:
        """The signature, for any audience; the service checks whether it is valid for that.

        Raises UnauthorizedError if the signature cannot be parsed.
        """
        return Token(self.signature, SAS_TOKEN_TYPE, SharedAccessSignature.parse(self.signature).expiry)


@dataclass(frozen=True, slots=True)
class EntraCredential:
    """Adapts any object with azure-identity's async ``get_token`` to ``Credential``."""

    credential: TokenCredential = field(repr=False)

    async def token_for(self, audience: str, *, now: float) -> Token:
        """A JSON web token for Event Hubs, from the identity service.

        Raises BrokenError for any error of the credential, because a later try may succeed.
        """
        try:
            token = await self.credential.get_token(ENTRA_ID_SCOPE)
        except Exception as error:
            raise BrokenError(
                f"The credential returned no token: {type(error).__name__}: {error}.",
                next_step="Check the Entra ID credential and its connection to the identity service.",
            ) from error
        return Token(token.token, JWT_TOKEN_TYPE, int(token.expires_on))


def credential_from_connection_string(connection_string: ConnectionString) -> Credential:
    """A connection string's credential. Raises ConnectionStringError if it has neither key nor signature."""
    if connection_string.shared_access_signature is not None:
        return SharedSignatureCredential(connection_string.shared_access_signature)
    if connection_string.shared_access_key_name is None or connection_string.shared_access_key is None:
        raise ConnectionStringError(
            "The connection string has neither SharedAccessKeyName and SharedAccessKey nor "
            "a SharedAccessSignature.",
            next_step="Copy the whole string, or use Namespace.from_credential.",
        )
    return SharedKeyCredential(connection_string.shared_access_key_name, connection_string.shared_access_key)


def refresh_delay_s(expiry: float, *, now: float) -> float:
    """Seconds from ``now`` (Unix time) until a token that expires at ``expiry`` should be replaced.

    This is four fifths of its remaining lifetime: a one-hour token leaves 12 minutes for a slow identity
    service or a reconnection. At least a second, so that an expired token causes no busy loop.
    """
    return max(_REFRESH_DELAY_S_MIN, (expiry - now) * _REFRESH_PART)
