"""The console of a running service, composed."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from tidegate.broker import Broker
from tidegate.capture import CaptureService
from tidegate.console.app import ConsoleApp
from tidegate.console.audit.trail import BrokerAudit
from tidegate.console.backend import ConsoleBackend
from tidegate.console.explorer.events import BrokerEvents
from tidegate.console.frame.parts import ConsoleParts, OwnAddress
from tidegate.console.frame.rights import BrokerAccess
from tidegate.console.hubs.namespace import BrokerService
from tidegate.console.pipelines.reported import ReportedPipelines
from tidegate.console.processing import SqlProcessing
from tidegate.gateway.amqp.server import AmqpGateway
from tidegate.model.clock import Clock
from tidegate.server.ready import ReadyInformation
from tidegate.server.settings import ServerSettings
from tidegate.transport.peers import TrustedProxies
from tidegate.transport.status_files import PipelineFiles


@asynccontextmanager
async def console_of(
    broker: Broker,
    capture: CaptureService,
    amqp: AmqpGateway,
    settings: ServerSettings,
    clock: Clock,
    ready: Callable[[], ReadyInformation],
) -> AsyncIterator[ConsoleApp]:
    """The console of a running service; on exit, what it holds is released.

    ready: where the service listens; raises ClosedError until it does.
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
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(BrokerService(parts))
        events = await stack.enter_async_context(BrokerEvents(parts.broker, clock=parts.clock))
        files = PipelineFiles.of_user(os.environ)
        pipelines = await stack.enter_async_context(ReportedPipelines(files, parts.clock))
        processing = None
        if parts.database is not None:
            processing = await stack.enter_async_context(SqlProcessing(parts, parts.database))
        backend = ConsoleBackend(
            access=BrokerAccess(parts.broker, parts.clock),
            audit=BrokerAudit(parts.broker.audit),
            service=service,
            pipelines=pipelines,
            events=events,
            processing=processing,
        )
        proxies = TrustedProxies.parse(settings.trusted_proxies)
        yield ConsoleApp(backend, clock=parts.clock, proxies=proxies)


__all__ = ["console_of"]
