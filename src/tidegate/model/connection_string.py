"""Connection strings, in the form that Azure's portal and the official SDKs use.

A key is a secret: it is in ``format()`` because that is what the string is for, and never in ``repr``
or in an error message.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tidegate.model.errors import ConnectionStringError

_AMQPS_PORT = 5671
_AMQP_PORT = 5672
_HTTPS_PORT = 443
_HTTP_PORT = 5300
"""The service's own default: Event Hubs has no plain HTTP."""

_TRANSPORTS = {"amqp": False, "amqptcp": False, "amqpwebsockets": True}
"""Values of TransportType, and whether they are WebSockets (Azure.Messaging.EventHubs, and its forerunner
Microsoft.Azure.EventHubs)."""


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """The parts of ``Endpoint=sb://host[:port]/;SharedAccessKeyName=…;SharedAccessKey=…[;EntityPath=hub]``."""

    host: str
    """Host name or address, without scheme and port (an IPv6 address without brackets)."""
    port: int | None = None
    """None: the default of the transport (5671 with TLS, 5672 without; WebSocket: 443, and 5300 without)."""
    shared_access_key_name: str | None = None
    shared_access_key: str | None = field(default=None, repr=False)
    shared_access_signature: str | None = field(default=None, repr=False)
    entity_path: str | None = None
    """The event hub, if the string names one."""
    use_development_emulator: bool = False
    """True: plain AMQP instead of TLS, as the official SDKs read it."""
    is_websocket: bool = False
    """True: AMQP in a WebSocket, as ``TransportType=AmqpWebSockets`` in .NET's connection strings."""

    @property
    def effective_port(self) -> int:
        """The TCP port to connect to."""
        if self.port is not None:
            return self.port
        if self.is_websocket:
            return _HTTP_PORT if self.use_development_emulator else _HTTPS_PORT
        return _AMQP_PORT if self.use_development_emulator else _AMQPS_PORT

    @property
    def authority(self) -> str:
        """Host, and port if one is given, as in the endpoint."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> ConnectionString:
        """Parse a connection string; keys are case-insensitive, in any order.

        Raises ConnectionStringError, whose message names the offending part and never a secret.
        """
        if not text:  # None, from os.environ.get
            raise ConnectionStringError(
                "The connection string is empty.",
                next_step="Is the environment variable set that it is read from?",
            )
        if not isinstance(text, str):
            raise ConnectionStringError(f"A connection string is a string, not {type(text).__name__}.")
        parts = _split_parts(text)
        host, port = _parse_endpoint(parts.pop("endpoint", ""))
        key_name = parts.pop("sharedaccesskeyname", None)
        key = parts.pop("sharedaccesskey", None)
        signature = parts.pop("sharedaccesssignature", None)
        entity_path = parts.pop("entitypath", None)
        transport = parts.pop("transporttype", "amqp").lower()
        if transport not in _TRANSPORTS:
            raise ConnectionStringError(
                "The connection string has an unknown TransportType.",
                next_step="Use Amqp or AmqpWebSockets.",
            )
        emulator = parts.pop("usedevelopmentemulator", "false").lower() == "true"
        if parts:
            raise ConnectionStringError(f"The connection string has an unknown part {min(parts)!r}.")
        if (key_name is None) != (key is None):
            raise ConnectionStringError(
                "The connection string has only one of SharedAccessKeyName and SharedAccessKey.",
                next_step="Copy the whole connection string.",
            )
        is_websocket = _TRANSPORTS[transport]
        return cls(host, port, key_name, key, signature, entity_path, emulator, is_websocket)

    def format(self) -> str:
        """The string itself, secrets included; parses back to an equal value."""
        parts = [f"Endpoint=sb://{self.authority}"]
        if self.shared_access_key_name is not None:
            parts.append(f"SharedAccessKeyName={self.shared_access_key_name}")
            parts.append(f"SharedAccessKey={self.shared_access_key}")
        if self.shared_access_signature is not None:
            parts.append(f"SharedAccessSignature={self.shared_access_signature}")
        if self.use_development_emulator:
            parts.append("UseDevelopmentEmulator=true")
        if self.is_websocket:
            parts.append("TransportType=AmqpWebSockets")
        if self.entity_path is not None:
            parts.append(f"EntityPath={self.entity_path}")
        return ";".join(parts)

    def with_entity_path(self, entity_path: str) -> ConnectionString:
        """The same namespace and credentials, for one event hub."""
        return replace(self, entity_path=entity_path)


def _split_parts(text: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for part in text.strip().split(";"):
        if not part.strip():
            continue
        name, equals, value = part.partition("=")
        key = name.strip().lower()
        # The value is left out of both messages: it may be a key that lost its name.
        if not equals or not key:
            raise ConnectionStringError(
                "The connection string has a part that is not of the form Name=Value."
            )
        if key in parts:
            raise ConnectionStringError(f"The connection string has the part {name.strip()!r} twice.")
        parts[key] = value.strip()
    return parts


def _parse_endpoint(endpoint: str) -> tuple[str, int | None]:
    scheme, separator, rest = endpoint.partition("://")
    if not separator:
        rest, scheme = scheme, "sb"
    rest = rest.rstrip("/")
    if scheme.lower() not in ("sb", "amqp", "amqps") or not rest:
        raise ConnectionStringError(
            "The connection string has no usable Endpoint.",
            next_step="It must start with Endpoint=sb://HOST[:PORT]/;…",
        )
    if rest.startswith("["):
        host, _, port_text = rest[1:].partition("]")
        port_text = port_text.removeprefix(":")
    else:
        host, _, port_text = rest.partition(":")
    if not port_text:
        return host, None
    # Python refuses to convert thousands of digits, with an error of its own.
    is_short = port_text.isascii() and port_text.isdigit() and len(port_text) <= 5
    if not is_short or not 0 < int(port_text) < 65536:
        raise ConnectionStringError(f"The Endpoint's port {port_text[:20]!r} is not a port number.")
    return host, int(port_text)
