"""The settings of the service, as one frozen, validated value.

Every setting has its default only here. An invalid value, from arguments, a configuration file or the
environment, raises an InvalidArgumentError that names the setting.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Final, get_origin, get_type_hints

from msgspec import Meta

from tidegate.broker.blobs.accounts import DevelopmentAccount
from tidegate.gateway.http.origins import AllowedOrigins
from tidegate.model.capture_destination import CaptureDestinations
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.hosts import is_host
from tidegate.model.validation import NOT_GIVEN, given_fields, validated
from tidegate.server.declared import DeclaredNamespace
from tidegate.transport.admission import WITHOUT_TOKEN_MAX_DEFAULT
from tidegate.transport.peers import TrustedProxies

AMQP_PORT_DEFAULT: Final = 5672
"""The port that official SDKs use with ``UseDevelopmentEmulator=true`` if the connection string has none."""

HTTP_PORT_DEFAULT: Final = 5300
"""The port of the official emulator's ``/health``."""

MEMORY_BYTES_MIN: Final = 16 * 1024 * 1024
"""The minimum of ``memory_max_bytes`` (our choice: several of the largest batches)."""

VARIABLE_PREFIX: Final = "TIDEGATE_"
"""A setting's environment variable is this and its name in capitals."""

PATH_NAMES: Final = ("data_dir", "ready_file", "tls_certificate", "tls_key")
"""Settings that are paths; relative ones in a file are relative to its directory."""

_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}", re.ASCII)
_PIPELINE = re.compile(r"(?:[A-Za-z_][\w.]*|[^-:\s][^:\n]*\.py):[A-Za-z_][\w.]*")
_PORT_NAMES: Final = ("amqp_port", "amqps_port", "http_port", "https_port")

Port = Annotated[int, Meta(ge=0, le=65535)]
Count = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
MemoryBytes = Annotated[int, Meta(ge=MEMORY_BYTES_MIN)]
Seconds = Annotated[float, Meta(gt=0)]


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of one service. A port of 0 is any free port; without a port (None) that protocol is not
    served."""

    data_dir: Path
    """Directory of the log, the catalog and the certificates; created if missing."""
    host: str = "127.0.0.1"
    """The address to listen on. Use TLS beyond loopback: plain AMQP is readable on the network."""
    amqp_port: Port | None = AMQP_PORT_DEFAULT
    """Port for AMQP without TLS, for clients on this machine."""
    amqps_port: Port | None = None
    """Port for AMQP over TLS, for clients anywhere; SDKs use 5671 by default."""
    http_port: Port | None = HTTP_PORT_DEFAULT
    """Port for HTTP: health, publishing, administration, metrics, console, and AMQP over WebSocket."""
    https_port: Port | None = None
    """Port for HTTP over TLS."""
    tls_names: tuple[str, ...] = ()
    """Additional names or addresses in the certificate, besides those of loopback; the connection string uses
    the first one."""
    tls_certificate: Path | None = None
    """Your own certificate with its chain (PEM); None: a self-signed one is created. Reloaded when the files
    change."""
    tls_key: Path | None = None
    """The key of the certificate (PEM, without a password)."""
    host_names: tuple[str, ...] = ()
    """Additional names of this service, such as its DNS name behind a proxy: a token for ``HOST`` or
    ``HOST/HUB`` without a scheme is valid if HOST is one of them and no event hub has that name. The names of
    loopback, ``host``, ``tls_names`` and those in the certificate are always included."""
    allowed_origins: tuple[str, ...] = ()
    """Sites (``https://app.example.org``) whose pages may open AMQP over WebSocket from a browser, besides
    this service's own."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks (``10.0.0.0/8``) of your own proxies in front of HTTP: the address of a client
    is then the last one in ``X-Forwarded-For`` or ``Forwarded``. Each proxy must append the address that it
    sees, or replace the header, and remove the other header: requests whose headers disagree count as one
    unknown client behind the proxy, and share the limits of one address. If a proxy sends
    ``X-Forwarded-Proto: https``, the console's cookies are marked as secure. Requests from these
    addresses never count as from this machine: list every proxy and TCP forwarder on it."""
    hsts_max_age_s: NotNegative | None = None
    """Seconds for which browsers that have used HTTPS refuse plain HTTP to this host, on every port
    (Strict-Transport-Security); None: no such header. It cannot be revoked before it expires."""
    ready_file: Path | None = None
    """File to write when the service is ready: one JSON object, see ``ready.ReadyInformation``."""
    is_profile_written: bool = False
    """True: save the connection string for this user's other commands (``ready.write_profile``)."""
    is_lost_position_refused: bool = False
    """True: a reader whose next event was removed by retention is detached, with an error that names the
    first available one. False: it continues there silently, as in Event Hubs."""
    retention_interval_s: Seconds = 60.0
    """Seconds between checks for segments that are older than their hub's retention."""
    drain_timeout_s: Seconds = 5.0
    """Seconds that open connections get to finish when the service stops."""
    connection_unacknowledged_bytes_max: Count = 16 * 1024 * 1024
    """Bytes received from one connection and not yet durable beyond which its socket is not read.
    Our choice: 16 batches of the largest size keep the disk busy; more would only be memory."""
    authentication_timeout_s: Seconds = 10.0
    """Seconds from connecting within which a client must be authorized by a token or key, including the TLS
    handshake; over WebSocket, from the request on. Event Hubs allows 60."""
    memory_max_bytes: MemoryBytes | None = None
    """Bytes that may be held in memory for all clients together: unsent and unfinished data, and events not
    yet durable. Above half of it, each client may hold less; at the limit, new clients are refused, and of
    the address that holds most, those that hold most without reading or finishing are disconnected. None: a
    quarter of the machine's memory, at most 512 MB."""
    connections_max: Count | None = None
    """Connections at a time, over all protocols. None: 20,000. Always leaves the log its file descriptors
    (``ulimit -n`` minus 416 and two for each partition)."""
    connections_per_address_max: Count | None = None
    """Connections from one address (IPv6: one /64 network); over AMQP a proxy is one address. None: 5,000, at
    most half of ``connections_max``, and no limit for loopback."""
    connections_without_token_max: Count = WITHOUT_TOKEN_MAX_DEFAULT
    """Connections that have not sent a token yet, over AMQP and over HTTP each."""
    connections_without_token_per_address_max: Count | None = None
    """Connections without a token from one address. None: 100, and no limit for loopback."""
    capture_namespace: str = "tidegate"
    """Value of ``{Namespace}`` in the names of capture files: distinguishes services that share a
    destination."""
    capture_destinations: tuple[str, ...] = ()
    """Prefixes under which event hubs may be captured: absolute directories, or URLs with scheme, host or
    container, and folder (``abfs://archive@account.dfs.core.windows.net/events``). Empty: ``capture`` in the
    data directory. Users who may manage event hubs choose among them, and the service writes with its own
    rights."""
    root_key: str | None = field(default=None, repr=False)
    """The primary key of the root policy; None: its present key, which the first start creates at random."""
    is_development_issuer_trusted: bool = False
    """Whether JSON Web Tokens made by ``tidegate token entra`` are accepted: for code that uses Microsoft
    Entra ID. Real issuers are declared in the configuration (``token_issuers``)."""
    development_account: DevelopmentAccount = DevelopmentAccount.THIS_MACHINE
    """Who may keep checkpoints in Azurite's account ``devstoreaccount1``, whose key is public:
    ``this-machine``, ``everywhere`` or ``off``."""
    is_console_served: bool = True
    """Whether HTTP serves the console at ``/``."""
    database: str | None = field(default=None, repr=False)
    """SQL database of leases, checkpoints and dead letters, for the console and for dead letters over HTTP;
    None: neither has them."""
    more_databases: tuple[str, ...] = field(default=(), repr=False)
    """Further databases of hosts and pipelines, for the console and metrics."""
    redrive_pipelines: tuple[str, ...] = ()
    """Pipelines (``module:name`` or ``path/to/file.py:name``) that the console may use to redrive dead
    letters, each in its own process."""
    declared: DeclaredNamespace = field(default_factory=DeclaredNamespace, metadata=NOT_GIVEN)
    """What the service creates or updates when it starts."""

    def __post_init__(self) -> None:
        plain = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "declared"}
        given_fields(plain, ServerSettings)
        if not self.host:
            raise InvalidArgumentError("The setting host is empty.", next_step="Use 127.0.0.1 for loopback.")
        if self.amqp_port is None and self.amqps_port is None:
            raise InvalidArgumentError(
                "Neither AMQP port is set, so no client could connect.",
                next_step="Set amqp_port or amqps_port (0 is any free port).",
            )
        if _NAMESPACE.fullmatch(self.capture_namespace) is None:
            raise InvalidArgumentError(
                f"The setting capture_namespace is {self.capture_namespace[:80]!r}.",
                next_step="Use letters, digits and '-', beginning with a letter or digit.",
            )
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise InvalidArgumentError(
                "Only one of tls_certificate and tls_key is set.",
                next_step="Set both, or neither for a self-signed certificate.",
            )
        if any(not name.strip() or "/" in name for name in self.tls_names):
            raise InvalidArgumentError("The setting tls_names has a value that is not a host name.")
        for name in self.host_names:
            if not is_host(name):
                raise InvalidArgumentError(
                    f"The setting host_names has {name[:80]!r}, which is neither a host name nor an address.",
                    next_step="Use names without a scheme, port or wildcard, or addresses.",
                )
        AllowedOrigins.parse(self.allowed_origins)
        TrustedProxies.parse(self.trusted_proxies)
        CaptureDestinations(self.capture_destinations)
        for name in self.redrive_pipelines:
            if _PIPELINE.fullmatch(name) is None:
                raise InvalidArgumentError(
                    f"The setting redrive_pipelines has {name[:80]!r}.",
                    next_step="Use MODULE:NAME or FILE.py:NAME, as for tidegate dlq redrive.",
                )

    @property
    def all_databases(self) -> tuple[str, ...]:
        """Every database, the one for dead letters over HTTP first."""
        return (*(() if self.database is None else (self.database,)), *self.more_databases)

    @property
    def is_tls_used(self) -> bool:
        """Whether any port needs a certificate."""
        return self.amqps_port is not None or self.https_port is not None


def settings_from_mapping(
    values: Mapping[str, object], *, data_dir: Path | None = None, is_any_port: bool = False
) -> ServerSettings:
    """Settings from names and plain values (a TOML table, a JSON object).

    data_dir: used if ``values`` has none. If ``values`` has any port, protocols without a port are not
    served, as on the command line. is_any_port: without one, AMQP and HTTP get any free port.

    Raises InvalidArgumentError for an unknown name, a value of the wrong type or a missing ``data_dir``.
    """
    if data_dir is not None:
        values = {"data_dir": data_dir, **values}
    if any(name in values for name in _PORT_NAMES):
        values = dict.fromkeys(_PORT_NAMES) | dict(values)
    elif is_any_port:
        values = {"amqp_port": 0, "http_port": 0, **values}
    return ServerSettings(**given_fields(values, ServerSettings))


def environment_values(environment: Mapping[str, str]) -> dict[str, Any]:
    """The settings given as environment variables, by name and of their types.

    The variable of ``amqp_port`` is ``TIDEGATE_AMQP_PORT``. An empty one counts as not given. Values of a
    list are separated by commas.

    Raises InvalidArgumentError naming the variable if its value is of the wrong type or out of range.
    """
    kinds = get_type_hints(ServerSettings, include_extras=True)
    values: dict[str, Any] = {}
    for each in fields(ServerSettings):
        variable = VARIABLE_PREFIX + each.name.upper()
        text = environment.get(variable, "").strip()
        if not text or each.metadata == NOT_GIVEN:
            continue
        is_list = get_origin(kinds[each.name]) is tuple
        value = [part.strip() for part in text.split(",") if part.strip()] if is_list else text
        values[each.name] = validated(value, kinds[each.name], variable, is_text=True)
    return values
