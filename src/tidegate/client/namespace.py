"""Address and credential of a namespace, shared by producers, consumers and administrators."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict, Unpack, cast

from tidegate.client.credentials import (
    Credential,
    EntraCredential,
    TokenCredential,
    credential_from_connection_string,
)
from tidegate.client.retry import RetryPolicy
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import ConnectionStringError, InvalidArgumentError
from tidegate.transport.proxy import HttpProxy


class ConnectionOptions(TypedDict, total=False):
    """Options in addition to the connection string: keywords of every ``from_connection_string``."""

    retry: RetryPolicy
    """How often and how soon a failed operation is retried."""
    timeout_s: float
    """How long one try of an operation may take; 60 by default."""
    ssl_context: ssl.SSLContext | None
    """Used unchanged, instead of ``ca_file``."""
    ca_file: str | Path | None
    """Certificates to trust in addition to the system's (see ``ca_file`` in Tidegate's ready file)."""
    credential: TokenCredential | Credential | None
    """Used instead of the connection string's key or signature, which may then be missing."""
    http_proxy: str | None
    """``http://[user:password@]host:port``: connect through this proxy. None: directly, or for a WebSocket
    (``TransportType=AmqpWebSockets`` in the connection string) through the one in HTTPS_PROXY, if any."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """An Event Hubs namespace (Tidegate's or Azure's), with credential, time-out and retry policy.

    Create it with the class methods. Each of its clients has its own connection.
    """

    host: str
    port: int
    credential: Credential = field(repr=False)
    ssl_context: ssl.SSLContext | None = None
    """None: AMQP without TLS, for services on the same machine."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout_s: float = 60.0
    """How long one try of an operation may take before it fails with OperationTimeoutError."""
    authority: str = ""
    """Host, and port if the connection string gives one, as official processors name a namespace."""
    is_websocket: bool = False
    """Whether AMQP is in a WebSocket."""
    proxy: HttpProxy | None = None
    """None: none, or the environment's for a WebSocket."""

    def __post_init__(self) -> None:
        if self.timeout_s <= 0:
            raise InvalidArgumentError(f"timeout_s must be greater than 0, got {self.timeout_s}.")

    @classmethod
    def from_connection_string(
        cls,
        connection_string: str | ConnectionString,
        **options: Unpack[ConnectionOptions],
    ) -> Namespace:
        """The namespace of a connection string, with TLS unless it has ``UseDevelopmentEmulator=true``.

        Raises ConnectionStringError; InvalidArgumentError if ``ca_file`` cannot be read, or for
        ``http_proxy``.
        """
        parsed, given = _parse(connection_string), options.get("credential")
        proxy = options.get("http_proxy")
        context = None
        if not parsed.use_development_emulator:
            context = _make_ssl_context(options.get("ssl_context"), options.get("ca_file"))
        return cls(
            host=parsed.host,
            port=parsed.effective_port,
            credential=credential_from_connection_string(parsed) if given is None else _adapt(given),
            ssl_context=context,
            retry=options.get("retry", RetryPolicy()),
            timeout_s=options.get("timeout_s", 60.0),
            authority=parsed.authority,
            is_websocket=parsed.is_websocket,
            proxy=None if proxy is None else HttpProxy.parse(proxy),
        )

    @classmethod
    def from_credential(
        cls,
        host: str,
        credential: TokenCredential | Credential,
        *,
        port: int | None = None,
        use_tls: bool = True,
        use_websocket: bool = False,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen, therefore safe to share
        timeout_s: float = 60.0,
        ssl_context: ssl.SSLContext | None = None,
        ca_file: str | Path | None = None,
        http_proxy: str | None = None,
    ) -> Namespace:
        """A namespace by host name, with a credential of Tidegate's or of azure-identity's ``aio``.

        port: None means 5671 with TLS and 5672 without; for a WebSocket 443 and 5300. Other arguments: see
        ``ConnectionOptions``.
        """
        place = ConnectionString(host, port, use_development_emulator=not use_tls, is_websocket=use_websocket)
        return cls.from_connection_string(
            place,
            credential=credential,
            retry=retry,
            timeout_s=timeout_s,
            ssl_context=ssl_context,
            ca_file=ca_file,
            http_proxy=http_proxy,
        )


def event_hub_of(connection_string: str | ConnectionString, event_hub: str | None) -> str:
    """``event_hub``, else the connection string's EntityPath. Raises ConnectionStringError without either."""
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
    # Distinguished by method name, because azure-identity's classes do not derive from ours.
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
