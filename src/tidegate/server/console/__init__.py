"""What the console sees of this service: the Protocols of ``tidegate.console.backend``, one module each."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from tidegate.console.app import ConsoleApp
from tidegate.console.backend import ConsoleBackend
from tidegate.server.console.access import BrokerAccess
from tidegate.server.console.audit import BrokerAudit
from tidegate.server.console.events import BrokerEvents
from tidegate.server.console.parts import ConsoleParts
from tidegate.server.console.pipelines import ReportedPipelines
from tidegate.server.console.processing import SqlProcessing
from tidegate.server.console.service import BrokerService
from tidegate.transport.peers import TrustedProxies
from tidegate.transport.status_files import PipelineFiles


@asynccontextmanager
async def console_of(parts: ConsoleParts) -> AsyncIterator[ConsoleApp]:
    """The console of a running service; on exit, what its views hold is released."""
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(BrokerService(parts))
        events = await stack.enter_async_context(BrokerEvents(parts.broker, clock=parts.clock))
        files = PipelineFiles.of_user(os.environ)
        pipelines = await stack.enter_async_context(ReportedPipelines(files, parts.clock))
        processing = None
        if parts.settings.database is not None:
            processing = await stack.enter_async_context(SqlProcessing(parts, parts.settings.database))
        backend = ConsoleBackend(
            access=BrokerAccess(parts.broker, parts.clock),
            audit=BrokerAudit(parts.broker.audit),
            service=service,
            pipelines=pipelines,
            events=events,
            processing=processing,
        )
        proxies = TrustedProxies.parse(parts.settings.trusted_proxies)
        yield ConsoleApp(backend, clock=parts.clock, proxies=proxies)


__all__ = ["ConsoleParts", "console_of"]
