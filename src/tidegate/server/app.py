"""The composition root: builds the broker and its servers from settings, and stops them in reverse.

    start   certificates -> broker (recovers the log) -> capture -> AMQP -> HTTP -> ready file, profile
    stop    ready file -> AMQP (connections, including WebSockets, get time to finish) -> HTTP
            -> retention -> capture (the rest is captured after the next start) -> broker (log flushed)

If a server cannot start (its port is in use), the parts already started are stopped and the start fails.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import shutil
import ssl
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from tidegate.broker import EMULATOR_KEY, ROOT_POLICY_NAME, Broker
from tidegate.capture import CaptureService
from tidegate.files import make_private_directory
from tidegate.gateway.amqp.idle_guard import IdleLimits
from tidegate.gateway.amqp.server import AmqpGateway
from tidegate.gateway.counts import DiskSpace
from tidegate.model.capture_destination import CaptureDestinations
from tidegate.model.clock import Clock
from tidegate.model.connection_string import ConnectionString
from tidegate.model.errors import BrokenError, ClosedError, InvalidArgumentError
from tidegate.model.hosts import HostNames, is_loopback
from tidegate.server.applying import apply_declared, set_root_key
from tidegate.server.event_loop import share_interpreter
from tidegate.server.exposure import exposure_warnings
from tidegate.server.memory import (
    Collections,
    allow_open_files,
    full_collections_put_off,
    give_back_freed_memory,
    keep_freed_memory,
    memory_max_bytes_default,
    open_files_max,
)
from tidegate.server.opening import open_broker
from tidegate.server.ready import (
    ReadyInformation,
    profile_path,
    read_profile,
    write_profile,
    write_ready_file,
)
from tidegate.server.settings import ServerSettings
from tidegate.storage.options import LogOptions
from tidegate.storage.write_errors import step_error
from tidegate.transport.admission import Admission, AdmissionStatistics, connection_limits
from tidegate.transport.clock import SystemClock
from tidegate.transport.memory import MemoryBudget
from tidegate.transport.peers import TrustedProxies
from tidegate.transport.tasks import TaskOwner
from tidegate.transport.threads import Threads
from tidegate.transport.tls import HandshakeFailures

if TYPE_CHECKING:
    from tidegate.server.certificates import ServerCertificate
    from tidegate.server.live_certificate import LiveCertificate

MEMORY_LOOK_INTERVAL_S: Final = 2.0
MEMORY_FALL_BYTES: Final = 48 * 1024 * 1024
"""How often the memory held for clients is checked, and how far it must have fallen since its peak before
freed memory is returned (our choice: less than what is kept for reuse anyway)."""

DISK_LOOK_INTERVAL_S: Final = 15.0
"""Our choice: as often as Prometheus usually asks."""

_log = logging.getLogger(__name__)

T = TypeVar("T")


class TidegateServer:
    """One service: ``await start()`` once, then ``await close()``."""

    def __init__(
        self, settings: ServerSettings, *, clock: Clock | None = None, link_secret: str | None = None
    ) -> None:
        """clock: None uses the system's. link_secret: signs in to the console once, soon after the start."""
        self.settings = settings
        self._link_secret = link_secret
        self._clock = clock if clock is not None else SystemClock()
        self._exit_stack = AsyncExitStack()
        self._broker: Broker | None = None
        self._capture: CaptureService | None = None
        self._amqp: AmqpGateway | None = None
        self._ready: ReadyInformation | None = None
        self._disk_space: DiskSpace | None = None
        self._is_serving = False  # every port is open, and the service is not stopping

    @property
    def broker(self) -> Broker:
        """The namespace. Raises ClosedError if the service is not running."""
        return _running(self._broker)

    @property
    def capture(self) -> CaptureService:
        """The capture service. Raises ClosedError if the service is not running."""
        return _running(self._capture)

    def connection_statistics(self) -> AdmissionStatistics:
        """Open and refused connections. Raises ClosedError if the service is not running."""
        return _running(self._amqp).admission.statistics()

    def held_bytes(self) -> int:
        """Memory that clients hold, in bytes. Raises ClosedError if the service is not running."""
        return _running(self._amqp).budget.statistics().used_bytes

    @property
    def ready(self) -> ReadyInformation:
        """The addresses it listens on. Raises ClosedError before ``start`` has returned."""
        return _running(self._ready)

    async def start(self) -> ReadyInformation:
        """Start everything; returns once clients can connect.

        Raises InvalidArgumentError (a port in use, an address of another machine), DirectoryInUseError,
        LogCorruptError (the catalog), LogFullError, LogFailedError (names file, step and remedy); the parts
        already started are stopped.
        """
        try:
            return await self._start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop in order. Open connections get ``drain_timeout_s`` to finish. Idempotent."""
        was_serving, self._is_serving = self._is_serving, False
        if was_serving:
            _log.info("the service stops: connections get %g s to finish", self.settings.drain_timeout_s)
        try:
            await self._exit_stack.aclose()
        finally:
            self._broker = self._capture = self._amqp = self._ready = None
        if was_serving:
            _log.info("the service has stopped")

    async def _start(self) -> ReadyInformation:
        settings, stack = self.settings, self._exit_stack
        with _step("create the data directory", settings.data_dir):
            make_private_directory(settings.data_dir)
        live: LiveCertificate | None = None
        handshake_failures: HandshakeFailures | None = None
        if settings.is_tls_used:
            # Imported here, as in the methods below: a service without TLS starts a tenth faster.
            from tidegate.server.live_certificate import LiveCertificate

            with _step("prepare the certificate", settings.data_dir / "certificates"):
                live = LiveCertificate(self._certificate, clock=self._clock)
            handshake_failures = HandshakeFailures(live.context)
        certificate, tls = (None, None) if live is None else (live.certificate, live.context)
        broker = self._broker = await self._open_broker(certificate)
        tasks = TaskOwner("service")
        stack.push_async_callback(tasks.close)
        self._trust_issuers(broker, tasks)
        capture = self._capture = CaptureService(
            broker,
            namespace=settings.capture_namespace,
            directory=settings.data_dir / "capture",
            clock=self._clock,
        )
        stack.push_async_callback(capture.close)
        capture.start()
        tasks.start(self._apply_retention(broker), name="retention")
        budget = MemoryBudget(settings.memory_max_bytes or memory_max_bytes_default())
        amqp = self._amqp = self._amqp_gateway(broker, capture, budget)
        tasks.start(_give_memory_back(budget), name="give memory back")
        tasks.start(self._watch_disk(), name="disk space")
        http: _Listener = amqp
        if settings.http_port is not None or settings.https_port is not None:
            http = await self._open_http(broker, capture, amqp, handshake_failures)
        # Closed before the HTTP server, whose WebSockets it uses.
        stack.push_async_callback(amqp.close, drain_timeout_s=settings.drain_timeout_s)
        addresses: dict[str, str | None] = {
            "amqp": await _listen(amqp, settings.host, settings.amqp_port, None),
            "amqps": await _listen(amqp, settings.host, settings.amqps_port, tls),
            "http": await _listen(http, settings.host, settings.http_port, None),
            "https": await _listen(http, settings.host, settings.https_port, tls),
        }
        ready = self._describe(addresses, certificate)
        if settings.ready_file is not None:
            with _step("write the ready file", settings.ready_file):
                write_ready_file(settings.ready_file, ready)
            stack.callback(settings.ready_file.unlink, missing_ok=True)
        if settings.is_profile_written:
            with _step("write the profile for other commands", profile_path(os.environ)):
                write_profile(ready, os.environ)
        self._ready = ready
        self._is_serving = True
        renew = partial(self._renew_ready, addresses, certificate)
        stack.callback(broker.authorizer.add_change_listener(renew))
        if live is not None:
            tasks.start(self._watch_certificate(live, renew), name="certificate")
        faces = {name: address for name, address in addresses.items() if address is not None}
        told = ", ".join(f"{name} on {address}" for name, address in faces.items())
        _log.info(
            "the service serves %s from %s", told, ready.data_dir, extra={**faces, "data_dir": ready.data_dir}
        )
        for warning in exposure_warnings(addresses):
            _log.warning("%s", warning)
        return ready

    async def _open_broker(self, certificate: ServerCertificate | None) -> Broker:
        """The log, prepared for its clients."""
        settings, stack = self.settings, self._exit_stack
        options = LogOptions(open_segments_max=min(LogOptions().open_segments_max, open_files_max() // 8))
        broker = await open_broker(settings.data_dir, clock=self._clock, options=options)
        stack.push_async_callback(broker.close)
        broker.capture_destinations = CaptureDestinations(
            settings.capture_destinations or (str(settings.data_dir.absolute() / "capture"),)
        )
        broker.is_lost_position_refused = settings.is_lost_position_refused
        broker.authorizer.set_host_names(self._host_names(certificate))
        await self._prepare(broker)
        if settings.ready_file is not None:
            # A killed service may have left the file; programs that wait for it must not read the old one.
            with _step("remove the old ready file", settings.ready_file):
                settings.ready_file.unlink(missing_ok=True)
        return broker

    def _trust_issuers(self, broker: Broker, tasks: TaskOwner) -> None:
        """Accept the tokens of the declared issuers, and of the one for development."""
        settings = self.settings
        issuers = settings.declared.token_issuers
        if not issuers and not settings.is_development_issuer_trusted:
            return
        # Imported here: few services need them.
        from tidegate.broker.entra.tokens import EntraTokens
        from tidegate.server.development_issuer import DevelopmentIssuer
        from tidegate.server.issuer_keys import IssuerKeys

        own: DevelopmentIssuer | None = None
        if settings.is_development_issuer_trusted:
            with _step("create the key of the issuer for development", settings.data_dir):
                own = DevelopmentIssuer.create(settings.data_dir)
        fetched = EntraTokens(issuers if own is None else (*issuers, own.trusted))
        if own is not None:
            fetched.set_keys(own.trusted.issuer, own.key_set())
        keys = IssuerKeys(fetched, issuers)
        keys.load_files()
        tasks.start(keys.run(), name="keys of token issuers")
        broker.authorizer.entra = fetched

    def _amqp_gateway(self, broker: Broker, capture: CaptureService, budget: MemoryBudget) -> AmqpGateway:
        settings = self.settings
        return AmqpGateway(
            broker,
            clock=self._clock,
            unacknowledged_bytes_max=settings.connection_unacknowledged_bytes_max,
            idle_limits=IdleLimits(
                unauthorized_s=settings.authentication_timeout_s,
                linkless_s=max(IdleLimits().linkless_s, settings.authentication_timeout_s),
            ),
            budget=budget,
            admission=self._admission(broker),
            capture_statistics=capture.statistics,
        )

    async def _open_http(
        self,
        broker: Broker,
        capture: CaptureService,
        amqp: AmqpGateway,
        handshake_failures: HandshakeFailures | None,
    ) -> _Listener:
        """HTTP with the console; it is closed before what it uses."""
        # Imported here: half of what a service loads, and one without an HTTP port needs none of it.
        from tidegate.server.http_face import ServiceParts, open_http

        parts = ServiceParts(
            self.settings,
            broker,
            capture,
            amqp,
            self._clock,
            self._link_secret,
            ready=lambda: self.ready,
            is_serving=lambda: self._is_serving,
            disk_space=lambda: self._disk_space,
            tls_handshake_failures=lambda: 0 if handshake_failures is None else handshake_failures.count,
        )
        return await open_http(parts, self._exit_stack)

    def _admission(self, broker: Broker) -> Admission:
        """The connection limits, which depend on the number of partitions."""
        settings = self.settings
        admission = Admission(trusted=TrustedProxies.parse(settings.trusted_proxies))

        def renew() -> None:
            admission.limits = connection_limits(
                descriptors=open_files_max(),
                partitions=sum(len(hub.partitions) for hub in broker.list_event_hubs()),
                connections_max=settings.connections_max,
                connections_per_address_max=settings.connections_per_address_max,
                connections_without_token_max=settings.connections_without_token_max,
                connections_without_token_per_address_max=settings.connections_without_token_per_address_max,
            )

        renew()
        self._exit_stack.callback(broker.add_change_listener(renew))
        allowed = admission.limits.connections_max
        if settings.connections_max is not None and allowed < settings.connections_max:
            _log.warning(
                "%d connections at a time instead of %d: the service may open %d files, the log some of them",
                allowed,
                settings.connections_max,
                open_files_max(),
            )
        return admission

    def _renew_ready(self, addresses: dict[str, str | None], certificate: ServerCertificate | None) -> None:
        """Write a changed root key to the files that contain it."""
        old, ready = self._ready, self._describe(addresses, certificate)
        if old is None or ready == old:
            return
        self._ready = ready
        if self.settings.ready_file is not None:
            write_ready_file(self.settings.ready_file, ready)
        # Another service may have replaced the profile.
        if self.settings.is_profile_written and read_profile(os.environ) == old:
            write_profile(ready, os.environ)

    async def _prepare(self, broker: Broker) -> None:
        if self.settings.root_key is not None:
            await set_root_key(broker, self.settings.root_key)
        report = partial(_log.info, "configuration: %s")
        await apply_declared(broker, self.settings.declared, report)
        root = next((policy for policy in broker.policies() if policy.name == ROOT_POLICY_NAME), None)
        if root is not None and EMULATOR_KEY in root.keys and not is_loopback(self.settings.host):
            _log.warning(
                "the root key is the official emulator's, which is public, and %s is not loopback: "
                "anyone who reaches this service has full access",
                self.settings.host,
            )

    def _describe(
        self, addresses: dict[str, str | None], certificate: ServerCertificate | None
    ) -> ReadyInformation:
        policy = self.broker.authorizer.policy(ROOT_POLICY_NAME)
        key = None if policy is None else policy.key
        name = None if policy is None else policy.name
        plain = secure = None
        if (address := addresses["amqp"]) is not None:
            host, port = _reachable(address)
            plain = ConnectionString(host, port, name, key, use_development_emulator=True).format()
        if (address := addresses["amqps"]) is not None:
            # A name rather than an address: some SDKs (JavaScript) don't send addresses as TLS server names.
            host, port = _reachable(address)
            assert certificate is not None
            secure = ConnectionString(self._secure_host(host, certificate), port, name, key).format()
        connection_string = secure or plain
        assert connection_string is not None  # ServerSettings: one AMQP port is set
        return ReadyInformation(
            **addresses,
            connection_string=connection_string,
            connection_string_plain=plain,
            ca_file=None
            if certificate is None or certificate.ca_file is None
            else str(certificate.ca_file.resolve()),
            data_dir=str(self.settings.data_dir.resolve()),
            console=self._console_address(addresses, certificate),
        )

    def _console_address(
        self, addresses: dict[str, str | None], certificate: ServerCertificate | None
    ) -> str | None:
        """The console's URL for a browser on this machine: HTTP if served, as HTTPS needs the CA trusted."""
        for scheme in ("http", "https"):
            if self.settings.is_console_served and (address := addresses[scheme]) is not None:
                host, port = _reachable(address)
                if scheme == "https":
                    assert certificate is not None
                    host = self._secure_host(host, certificate)
                return f"{scheme}://[{host}]:{port}/" if ":" in host else f"{scheme}://{host}:{port}/"
        return None

    def _certificate(self) -> ServerCertificate:
        from tidegate.server.certificates import ensure_server_certificate, given_server_certificate

        settings = self.settings
        if settings.tls_certificate is not None:
            assert settings.tls_key is not None  # ServerSettings: both or neither
            return given_server_certificate(settings.tls_certificate, settings.tls_key)
        directory = settings.data_dir / "certificates"
        return ensure_server_certificate(directory, settings.tls_names, clock=self._clock)

    def _host_names(self, certificate: ServerCertificate | None) -> HostNames:
        settings = self.settings
        certified = [] if certificate is None else certificate.names()
        return HostNames.of([settings.host, *settings.host_names, *settings.tls_names, *certified])

    def _secure_host(self, host: str, certificate: ServerCertificate) -> str:
        if self.settings.tls_names:
            return self.settings.tls_names[0]
        if certificate.ca_file is None:
            names = [name for name in certificate.names() if not name.startswith("*")]
            return names[0] if names else _loopback_name(host)
        return _loopback_name(host)

    async def _watch_certificate(self, live: LiveCertificate, on_changed: Callable[[], None]) -> None:
        from tidegate.server.live_certificate import CHECK_INTERVAL_S

        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            if live.refresh():
                self.broker.authorizer.set_host_names(self._host_names(live.certificate))
                on_changed()

    async def _watch_disk(self) -> None:
        """Look at the free space in a thread: a disk that hangs must not hold up a scrape."""
        threads = Threads(1, name="tidegate-disk")
        while True:
            with suppress(OSError):
                usage = await threads.run(lambda: shutil.disk_usage(self.settings.data_dir))
                self._disk_space = DiskSpace(usage.free, usage.total)
            await asyncio.sleep(DISK_LOOK_INTERVAL_S)

    async def _apply_retention(self, broker: Broker) -> None:
        while True:
            await asyncio.sleep(self.settings.retention_interval_s)
            removed = await broker.apply_retention()
            if removed:
                _log.info("retention removed %d segments", removed)


async def _give_memory_back(budget: MemoryBudget) -> None:
    """Return memory freed after a flood to the kernel."""
    threads = Threads(1, name="tidegate-memory")
    peak = budget.statistics().used_bytes
    while True:
        await asyncio.sleep(MEMORY_LOOK_INTERVAL_S)
        used = budget.statistics().used_bytes
        peak = max(peak, budget.take_peak_bytes())
        if peak - used >= MEMORY_FALL_BYTES:
            await threads.run(give_back_freed_memory)
            peak = used


async def run_server(
    settings: ServerSettings,
    *,
    on_ready: Callable[[ReadyInformation], None] | None = None,
    link_secret: str | None = None,
) -> None:
    """Run a service until this coroutine is cancelled, then stop it in order; no acknowledged event is lost.

    on_ready: called once clients can connect. link_secret: as of ``TidegateServer``.
    Raises what ``TidegateServer.start`` raises.
    """
    keep_freed_memory()
    allow_open_files()
    share_interpreter()
    server = TidegateServer(settings, link_secret=link_secret)
    ready = await server.start()
    try:
        with full_collections_put_off():
            if on_ready is not None:
                on_ready(ready)
            await Collections(
                server.held_bytes, lambda: sum(server.connection_statistics().open.values())
            ).run()
    finally:
        await server.close()


def _running(part: T | None) -> T:
    if part is None:
        raise ClosedError("The service is not running.")
    return part


@contextmanager
def _step(what: str, path: Path) -> Iterator[None]:
    """Raises an error of the operating system as one that says what failed, where, and what helps."""
    try:
        yield
    except OSError as error:
        raise step_error(error, what, path) from error


class _Listener(Protocol):
    """A gateway."""

    async def listen(self, host: str, port: int, *, ssl_context: ssl.SSLContext | None) -> tuple[str, int]:
        """Start listening; returns the bound address."""


async def _listen(server: _Listener, host: str, port: int | None, tls: ssl.SSLContext | None) -> str | None:
    """Start listening and return the bound ``host:port``; None without a port."""
    if port is None:
        return None
    try:
        bound_host, bound_port = await server.listen(host, port, ssl_context=tls)
    except (OSError, BrokenError) as error:
        cause = error.__cause__ if isinstance(error, BrokenError) else error
        reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(error)
        reason = reason.partition(" (while")[0]  # asyncio's text, which repeats the address
        raise InvalidArgumentError(
            f"Cannot listen on {host}:{port}: {reason.rstrip('.')}.",
            next_step="Use another port (0 is any free port) or an address of this machine.",
        ) from error
    return f"[{bound_host}]:{bound_port}" if ":" in bound_host else f"{bound_host}:{bound_port}"


def _reachable(address: str) -> tuple[str, int]:
    """Host and port for a client on this machine, with loopback instead of a wildcard address."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        if ipaddress.ip_address(host).is_unspecified:
            host = "::1" if ":" in host else "127.0.0.1"
    except ValueError:
        pass
    return host, int(port)


def _loopback_name(host: str) -> str:
    return "localhost" if is_loopback(host) else host
