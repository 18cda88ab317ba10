"""What the console sees of this service: the Protocols of ``tidegate.console.backend``, one module each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from tidegate.console.app import ConsoleApp
from tidegate.console.backend import ConsoleBackend
from tidegate.server.console.access import BrokerAccess
from tidegate.server.console.events import BrokerEvents
from tidegate.server.console.parts import ConsoleParts
from tidegate.server.console.service import BrokerService


@asynccontextmanager
async def console_of(parts: ConsoleParts) -> AsyncIterator[ConsoleApp]:
    """The console of a running service; on exit, what its views hold is released."""
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(BrokerService(parts))
        events = await stack.enter_async_context(BrokerEvents(parts.broker, clock=parts.clock))
        backend = ConsoleBackend(
            access=BrokerAccess(parts.broker, parts.clock),
            service=service,
            events=events,
        )
        yield ConsoleApp(backend, clock=parts.clock)


__all__ = ["ConsoleParts", "console_of"]
