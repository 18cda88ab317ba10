"""HTTP with the console: what of the service answers on its HTTP ports."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

from tidegate.broker import Broker
from tidegate.capture import CaptureService
from tidegate.console.app import ConsoleApp
from tidegate.console.frame.parts import ConsoleParts, OwnAddress
from tidegate.console.views import open_views
from tidegate.gateway.amqp.server import AmqpGateway
from tidegate.gateway.counts import DiskSpace
from tidegate.gateway.http.app import HttpGateway
from tidegate.gateway.http.origins import AllowedOrigins
from tidegate.model.clock import Clock
from tidegate.server.ready import ReadyInformation
from tidegate.server.settings import ServerSettings
from tidegate.server.stored_groups import read_stored_groups
from tidegate.transport.peers import TrustedProxies


@dataclass(frozen=True, slots=True)
class ServiceParts:
    """What of the running service HTTP and the console use."""

    settings: ServerSettings
    broker: Broker
    capture: CaptureService
    amqp: AmqpGateway
    clock: Clock
    link_secret: str | None = field(repr=False)
    """Signs in to the console once, soon after the start."""
    ready: Callable[[], ReadyInformation]
    """Raises ClosedError until the service listens."""
    is_serving: Callable[[], bool]
    disk_space: Callable[[], DiskSpace | None]
    tls_handshake_failures: Callable[[], int]


async def open_http(service: ServiceParts, stack: AsyncExitStack) -> HttpGateway:
    """Open the console, if it is served, and the gateway; ``stack`` closes them in order.

    What is pushed to it afterwards is closed before them.
    """
    settings = service.settings
    proxies = TrustedProxies.parse(settings.trusted_proxies)
    console = consumers = None
    if settings.is_console_served:
        views = await stack.enter_async_context(open_views(_console_parts(service)))
        consumers = None if views.letters is None else views.consumers()
        if service.link_secret is not None:
            views.access.allow_link(service.link_secret)
        amqp = service.amqp
        console = ConsoleApp(
            views, clock=service.clock, proxies=proxies, budget=amqp.budget, sliced_work=amqp.sliced_work
        )
        # Closed after the HTTP server: a page that is still being served may start a task.
        stack.push_async_callback(console.close)
    letters = None
    if settings.database is not None:
        # With them comes SQLAlchemy: a service without a database starts faster, and is smaller.
        from tidegate.server.dead_letters import DatabaseDeadLetters

        letters = DatabaseDeadLetters(service.broker, settings.database, service.clock)
        # Closed after the HTTP server: a request may still be answered.
        stack.push_async_callback(letters.close)
    http = HttpGateway(
        service.amqp,
        is_ready=service.is_serving,
        origins=AllowedOrigins.parse(settings.allowed_origins),
        proxies=proxies,
        further_routes=() if console is None else (console.route(),),
        hsts_max_age_s=settings.hsts_max_age_s,
        development_account=settings.development_account,
        read_stored_groups=None if consumers is None else partial(read_stored_groups, consumers),
        tls_handshake_failures=service.tls_handshake_failures,
        disk_space=service.disk_space,
        dead_letters=letters,
    )
    stack.push_async_callback(http.close)
    if console is not None:
        # Ended before the HTTP server closes, because it waits for streamed responses.
        stack.callback(console.end_streams)
    # Also before the HTTP server: it waits for responses that are delayed to slow down key guessing.
    stack.callback(service.broker.key_guard.release)
    return http


def _console_parts(service: ServiceParts) -> ConsoleParts:
    settings = service.settings
    return ConsoleParts(
        service.broker,
        service.capture,
        lambda: service.amqp.connection_counts().active,
        service.clock,
        lambda: _own_address(service.ready()),
        lambda: service.ready().connection_strings,
        settings.data_dir,
        settings.all_databases,
        settings.redrive_pipelines,
    )


def _own_address(ready: ReadyInformation) -> OwnAddress:
    """Where the console's own clients connect."""
    if ready.connection_string_plain is not None:
        return OwnAddress(ready.connection_string_plain, None)
    return OwnAddress(ready.connection_string, ready.ca_file)
