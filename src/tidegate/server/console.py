"""Composes the console of a running service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tidegate.broker import Broker
from tidegate.capture import CaptureService
from tidegate.console.app import ConsoleApp
from tidegate.console.frame.parts import ConsoleParts, OwnAddress
from tidegate.console.views import open_views
from tidegate.gateway.amqp.server import AmqpGateway
from tidegate.model.clock import Clock
from tidegate.server.ready import ReadyInformation
from tidegate.server.settings import ServerSettings
from tidegate.transport.peers import TrustedProxies


@asynccontextmanager
async def console_of(
    broker: Broker,
    capture: CaptureService,
    amqp: AmqpGateway,
    settings: ServerSettings,
    clock: Clock,
    ready: Callable[[], ReadyInformation],
) -> AsyncIterator[ConsoleApp]:
    """The console of a running service; on exit, its resources are released.

    ready: the addresses that the service listens on; raises ClosedError before that.
    """

    def own_address() -> OwnAddress:
        found = ready()
        if found.connection_string_plain is not None:
            return OwnAddress(found.connection_string_plain, None)
        return OwnAddress(found.connection_string, found.ca_file)

    parts = ConsoleParts(
        broker,
        capture,
        lambda: amqp.connection_counts().active,
        clock,
        own_address,
        settings.data_dir,
        settings.database,
        settings.redrive_pipelines,
    )
    async with open_views(parts) as views:
        proxies = TrustedProxies.parse(settings.trusted_proxies)
        yield ConsoleApp(views, clock=clock, proxies=proxies, budget=amqp.budget)
