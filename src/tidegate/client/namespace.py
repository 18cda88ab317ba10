"""Where and as whom a client connects: one value shared by producers, consumers and administrators."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from tidegate.client.credentials import (
    Credential,
    EntraCredential,
    TokenCredential,
    credential_from_connection_string,
)
from tidegate.client.retry import RetryPolicy
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import ConnectionStringError, InvalidArgumentError

_AMQPS_PORT = 5671
_AMQP_PORT = 5672


@dataclass(frozen=True, slots=True)
class Namespace:
    """An Event Hubs namespace (Tidegate's or Azure's), with the credential and patience to use it with.

    Build one with the class methods. Each client made from it has a connection of its own.
    """

    host: str
    port: int
    credential: Credential = field(repr=False)
    ssl_context: ssl.SSLContext | None = None
    """None: plain AMQP, for services on the same machine."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout_s: float = 60.0
    """How long one try of any operation may take, before it is an OperationTimeoutError."""

    def __post_init__(self) -> None:
        if self.timeout_s <= 0:
            raise InvalidArgumentError(f"timeout_s must be greater than 0, got {self.timeout_s}.")

    @classmethod
    def from_connection_string(
        cls,
        connection_string: str | ConnectionString,
        *,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen, therefore safe to share
        timeout_s: float = 60.0,
        ssl_context: ssl.SSLContext | None = None,
        ca_file: str | Path | None = None,
        credential: TokenCredential | Credential | None = None,
    ) -> Namespace:
        """What a connection string says; TLS unless it has ``UseDevelopmentEmulator=true``.

        credential: instead of the string's own, which may then hold none (see ``from_credential``).
        ssl_context: used as it is. ca_file: certificates to trust beside the system's own (Tidegate makes
        its own authority; see ``ca_file`` in its ready file). At most one of the two.
        Raises ConnectionStringError; InvalidArgumentError where ``ca_file`` cannot be read.
        """
        parsed = _parse(connection_string)
        return cls(
            host=parsed.host,
            port=parsed.effective_port,
            credential=credential_from_connection_string(parsed)
            if credential is None
            else _adapt(credential),
            ssl_context=None if parsed.use_development_emulator else _make_ssl_context(ssl_context, ca_file),
            retry=retry,
            timeout_s=timeout_s,
        )

    @classmethod
    def from_credential(
        cls,
        host: str,
        credential: TokenCredential | Credential,
        *,
        port: int | None = None,
        use_tls: bool = True,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen, therefore safe to share
        timeout_s: float = 60.0,
        ssl_context: ssl.SSLContext | None = None,
        ca_file: str | Path | None = None,
    ) -> Namespace:
        """A namespace by host name, with any credential: ours, or azure-identity's ``aio`` ones.

        port: None takes 5671 with TLS and 5672 without. The rest as in ``from_connection_string``.
        """
        return cls(
            host=host,
            port=port if port is not None else (_AMQPS_PORT if use_tls else _AMQP_PORT),
            credential=_adapt(credential),
            ssl_context=_make_ssl_context(ssl_context, ca_file) if use_tls else None,
            retry=retry,
            timeout_s=timeout_s,
        )


def event_hub_of(connection_string: str | ConnectionString, event_hub: str | None) -> str:
    """The event hub to use: the argument, else the connection string's EntityPath.

    Raises ConnectionStringError where neither names one.
    """
    name = event_hub if event_hub is not None else _parse(connection_string).entity_path
    if not name:
        raise ConnectionStringError(
            "No event hub given.",
            next_step="Pass event_hub=…, or add ;EntityPath=HUB to the connection string.",
        )
    return name


def _parse(connection_string: str | ConnectionString) -> ConnectionString:
    if isinstance(connection_string, ConnectionString):
        return connection_string
    return ConnectionString.parse(connection_string)


def _adapt(credential: TokenCredential | Credential) -> Credential:
    # Told apart by the method's name: azure-identity's classes know nothing of ours.
    if hasattr(credential, "token_for"):
        return cast(Credential, credential)
    return EntraCredential(credential)


def _make_ssl_context(context: ssl.SSLContext | None, ca_file: str | Path | None) -> ssl.SSLContext:
    if context is not None:
        if ca_file is not None:
            raise InvalidArgumentError("Use ssl_context or ca_file, not both.")
        return context
    made = ssl.create_default_context()
    if ca_file is not None:
        try:
            made.load_verify_locations(cafile=ca_file)
        except (OSError, ssl.SSLError) as error:
            raise InvalidArgumentError(
                f"Cannot use the certificate file {str(ca_file)!r}: {error}.",
                next_step="It must be a PEM file, such as ca_file in the service's ready file.",
            ) from error
    return made
