"""What the service can be told, as one frozen, validated value.

Every setting has its default here and nowhere else. A value that cannot be meant is an
InvalidArgumentError that names the setting, wherever it came from (arguments or a configuration file).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Final

from tidegate.model.capture_destination import CaptureDestinations
from tidegate.model.errors import InvalidArgumentError
from tidegate.model.hosts import is_host
from tidegate.server.declared import DeclaredNamespace
from tidegate.transport.admission import WITHOUT_TOKEN_MAX_DEFAULT
from tidegate.transport.origins import AllowedOrigins
from tidegate.transport.peers import TrustedProxies

AMQP_PORT_DEFAULT: Final = 5672
"""The port that official SDKs use with ``UseDevelopmentEmulator=true`` when the string names none."""

HTTP_PORT_DEFAULT: Final = 5300
"""The port of the official emulator's ``/health``."""

MEMORY_BYTES_MIN: Final = 16 * 1024 * 1024
"""The least that ``memory_max_bytes`` may be (our choice: some of the largest batches)."""

PATH_FIELDS: Final = ("data_dir", "ready_file", "tls_certificate", "tls_key")
"""Settings that are paths; in a file, relative ones start at the file's own place."""

_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}", re.ASCII)
_PIPELINE = re.compile(r"(?:[A-Za-z_][\w.]*|[^-:\s][^:\n]*\.py):[A-Za-z_][\w.]*")
_SECRET_FIELDS = ("root_key", "database")
_LIST_FIELDS = (
    "allowed_origins",
    "capture_destinations",
    "host_names",
    "redrive_pipelines",
    "tls_names",
    "trusted_proxies",
)
_CONNECTION_FIELDS = (
    "connections_max",
    "connections_per_address_max",
    "connections_without_token_max",
    "connections_without_token_per_address_max",
)
_PORT_FIELDS = ("amqp_port", "amqps_port", "http_port", "https_port")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of one service. Ports: 0 is any free one, None switches that face off."""

    data_dir: Path
    """Where the log, the catalog and the certificates live; made when it does not exist."""
    host: str = "127.0.0.1"
    """The address to listen on. Beyond loopback use the TLS faces: plain AMQP shows events to anyone."""
    amqp_port: int | None = AMQP_PORT_DEFAULT
    """AMQP without TLS, for clients of this machine."""
    amqps_port: int | None = None
    """AMQP over TLS, for clients anywhere; SDKs look for it at 5671."""
    http_port: int | None = HTTP_PORT_DEFAULT
    """HTTP: health, publishing, administration, metrics, console, and AMQP over WebSocket."""
    https_port: int | None = None
    """The same over TLS."""
    tls_names: tuple[str, ...] = ()
    """Names or addresses that the certificate holds besides those of loopback; the first one goes into the
    connection string."""
    tls_certificate: Path | None = None
    """Your own certificate, PEM, with the chain to its issuer; None: one is made. Read again when the files
    change."""
    tls_key: Path | None = None
    """Its key, PEM, without a password."""
    host_names: tuple[str, ...] = ()
    """Further names of this service, such as its name in DNS behind a proxy: a token for ``HOST`` or
    ``HOST/HUB`` without a scheme is good where HOST is one of them, and no event hub has that name. The names
    of loopback, ``host``, ``tls_names`` and those of the certificate are known."""
    allowed_origins: tuple[str, ...] = ()
    """Sites (``https://app.example.org``) whose pages may open AMQP over WebSocket from a browser, besides
    this service's own."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks (``10.0.0.0/8``) of your own proxies before the HTTP faces: the address of a
    client is then the last one that they write into ``X-Forwarded-For`` or ``Forwarded``. Each must add the
    address that it sees, or replace the header, and take the other header out: requests in which the two
    disagree count for the proxy, and all of them share the limits of one address. Where a proxy says
    ``X-Forwarded-Proto: https``, the console's cookies are marked as over HTTPS."""
    hsts_max_age_s: int | None = None
    """Seconds for which browsers that have seen an HTTPS answer refuse plain HTTP to this host, on every port
    (Strict-Transport-Security); None: they are not told to. It cannot be taken back before it has passed."""
    ready_file: Path | None = None
    """Written once the service serves: one JSON object, see ``ready.ReadyInformation``."""
    is_profile_written: bool = False
    """True: leave the connection string for this user's other commands (``ready.write_profile``)."""
    is_lost_position_refused: bool = False
    """True: a reader whose next event retention has removed is detached, with an error that names the first
    one held. False: as in Event Hubs it goes on there without a word."""
    retention_interval_s: float = 60.0
    """Seconds between two looks for segments that are past their hub's retention."""
    drain_timeout_s: float = 5.0
    """Seconds that open connections get to finish when the service stops."""
    connection_unacknowledged_bytes_max: int = 16 * 1024 * 1024
    """Bytes taken in from one connection and not yet durable, beyond which its socket is not read.
    Our choice: 16 batches of the largest size keep the disk busy; more would only be memory."""
    authentication_timeout_s: float = 10.0
    """Seconds from connecting that a client has to be authorized by a first token or key, TLS handshake
    included; over WebSocket from the request on. Event Hubs allows 60."""
    memory_max_bytes: int | None = None
    """Bytes that may be held in memory for all clients together: unsent and unfinished data, and events not
    yet durable. From half on less is held for each; from all on new clients are refused, and those that hold
    most without reading or finishing are ended. None: a quarter of the machine's memory, at most 512 MB."""
    connections_max: int | None = None
    """Connections at a time, over all faces. None: 20,000; never more than leave the log its file descriptors
    (``ulimit -n`` less 416 and two for each partition)."""
    connections_per_address_max: int | None = None
    """Of them, from one address (IPv6: one /64 network); over AMQP a proxy is one address. None: 5,000, at
    most half of ``connections_max``, and no limit for loopback."""
    connections_without_token_max: int = WITHOUT_TOKEN_MAX_DEFAULT
    """Of all connections, those that have not shown a token yet: so many over AMQP, and so many over HTTP."""
    connections_without_token_per_address_max: int | None = None
    """Of them, from one address. None: 100, and no limit for loopback."""
    capture_namespace: str = "tidegate"
    """What ``{Namespace}`` stands for in the names of capture files: tells services apart that share a
    destination."""
    capture_destinations: tuple[str, ...] = ()
    """Where event hubs may be captured to, and below: absolute directories, URLs with scheme, host or
    container, and folder (``abfs://archive@account.dfs.core.windows.net/events``). Empty: ``capture`` in the
    data directory. Whoever may manage event hubs chooses among them, and the service writes with its own
    rights."""
    root_key: str | None = field(default=None, repr=False)
    """The primary key of the root policy from this start on; None: the one it has, made at first start."""
    is_console_served: bool = True
    """Whether the HTTP faces show the console at ``/``."""
    database: str | None = field(default=None, repr=False)
    """The SQL database whose leases, checkpoints and dead letters the console shows; None: it shows none."""
    redrive_pipelines: tuple[str, ...] = ()
    """Pipelines (``module:name`` or ``path/to/file.py:name``) that the console may redrive dead letters with,
    each in its own process."""
    declared: DeclaredNamespace = field(default_factory=DeclaredNamespace)
    """What should be there once the service serves."""

    def __post_init__(self) -> None:
        for name in _PORT_FIELDS:
            _check_port(name, getattr(self, name))
        if not self.host:
            raise InvalidArgumentError("The setting host is empty.", next_step="Use 127.0.0.1 for loopback.")
        if self.amqp_port is None and self.amqps_port is None:
            raise InvalidArgumentError(
                "Both AMQP faces are off, so no client could connect.",
                next_step="Give amqp_port or amqps_port (0 is any free port).",
            )
        for name in (
            "retention_interval_s",
            "drain_timeout_s",
            "connection_unacknowledged_bytes_max",
            "authentication_timeout_s",
        ):
            if getattr(self, name) <= 0:
                raise InvalidArgumentError(f"The setting {name} must be above 0, not {getattr(self, name)}.")
        for name in _CONNECTION_FIELDS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidArgumentError(f"The setting {name} must be 1 or more, not {value}.")
        if self.memory_max_bytes is not None and self.memory_max_bytes < MEMORY_BYTES_MIN:
            raise InvalidArgumentError(
                f"The setting memory_max_bytes must be {MEMORY_BYTES_MIN} or more, not "
                f"{self.memory_max_bytes}: less cannot carry the largest batches."
            )
        if _NAMESPACE.fullmatch(self.capture_namespace) is None:
            raise InvalidArgumentError(
                f"The setting capture_namespace is {self.capture_namespace[:80]!r}.",
                next_step="Use letters, digits and '-', beginning with a letter or digit.",
            )
        if self.hsts_max_age_s is not None and self.hsts_max_age_s < 0:
            raise InvalidArgumentError(
                f"The setting hsts_max_age_s must be 0 or more, not {self.hsts_max_age_s}.",
                next_step="31536000 is a year; 0 makes browsers forget an earlier one.",
            )
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise InvalidArgumentError(
                "Of the settings tls_certificate and tls_key there is only one.",
                next_step="Give both, or neither: then the service makes a certificate.",
            )
        if any(not name.strip() or "/" in name for name in self.tls_names):
            raise InvalidArgumentError("The setting tls_names holds something that is not a host name.")
        for name in self.host_names:
            if not is_host(name):
                raise InvalidArgumentError(
                    f"The setting host_names has {name[:80]!r}, which is neither a host name nor an address.",
                    next_step="Write names without a scheme, a port or a wildcard, and addresses.",
                )
        AllowedOrigins.parse(self.allowed_origins)
        TrustedProxies.parse(self.trusted_proxies)
        CaptureDestinations(self.capture_destinations)
        for name in self.redrive_pipelines:
            if _PIPELINE.fullmatch(name) is None:
                raise InvalidArgumentError(
                    f"The setting redrive_pipelines has {name[:80]!r}.",
                    next_step="Write MODULE:NAME or FILE.py:NAME, as tidegate dlq redrive takes it.",
                )

    @property
    def is_tls_used(self) -> bool:
        """Whether any face needs a certificate."""
        return self.amqps_port is not None or self.https_port is not None

    def with_ports(
        self,
        *,
        amqp_port: int | None = None,
        amqps_port: int | None = None,
        http_port: int | None = None,
        https_port: int | None = None,
    ) -> ServerSettings:
        """The command line's rule: once any port is given, a face without one is off."""
        given = (amqp_port, amqps_port, http_port, https_port)
        if all(port is None for port in given):
            return self
        return replace(
            self, amqp_port=amqp_port, amqps_port=amqps_port, http_port=http_port, https_port=https_port
        )


def settings_from_mapping(values: Mapping[str, object], *, data_dir: Path | None = None) -> ServerSettings:
    """Settings from names and plain values (a TOML table, a JSON object), without what the namespace holds
    (``config_file``).

    data_dir: used where ``values`` has none. Where ``values`` names any port, the ports that it does not name
    are off, as on the command line.

    Raises InvalidArgumentError for an unknown name, a value of the wrong type or a missing ``data_dir``.
    """
    known = {each.name for each in fields(ServerSettings)} - {"declared"}
    converted: dict[str, object] = {}
    for name, value in values.items():
        if name not in known:
            raise InvalidArgumentError(
                f"Unknown setting {name!r}.", next_step=f"Known: {', '.join(sorted(known))}."
            )
        converted[name] = _convert(name, value)
    if data_dir is not None:
        converted.setdefault("data_dir", data_dir)
    if "data_dir" not in converted:
        raise InvalidArgumentError("The setting data_dir is missing.")
    if any(name in converted for name in _PORT_FIELDS):
        for name in _PORT_FIELDS:
            converted.setdefault(name, None)
    return ServerSettings(**converted)  # type: ignore[arg-type]  # _convert checked each one


def _check_port(name: str, port: object) -> None:
    if port is None:
        return
    if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= 65535:
        raise InvalidArgumentError(
            f"The setting {name} is {port!r}, which is not a port.",
            next_step="Use 0..65535; 0 is any free port.",
        )


def _convert(name: str, value: object) -> object:
    if name in PATH_FIELDS:
        if isinstance(value, str):
            return Path(value)
        raise InvalidArgumentError(f"The setting {name} takes a path as text, not {value!r}.")
    if name in _LIST_FIELDS:
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise InvalidArgumentError(f"The setting {name} takes a list of names, not {value!r}.")
    if name in _PORT_FIELDS:
        return value
    expected: dict[str, tuple[type, ...]] = {
        "host": (str,),
        "capture_namespace": (str,),
        "root_key": (str,),
        "is_console_served": (bool,),
        "database": (str,),
        "is_profile_written": (bool,),
        "is_lost_position_refused": (bool,),
        "connection_unacknowledged_bytes_max": (int,),
        "hsts_max_age_s": (int,),
        "memory_max_bytes": (int,),
        **dict.fromkeys(_CONNECTION_FIELDS, (int,)),
    }
    wanted = expected.get(name, (int, float))
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        shown = "" if name in _SECRET_FIELDS else f", not {value!r}"
        raise InvalidArgumentError(f"The setting {name} takes {wanted[-1].__name__}{shown}.")
    return value
