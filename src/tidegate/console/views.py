"""The views that pages show and change: one object per subject, opened together."""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.broker import AuditTrail
from tidegate.console.consumers.lags import find_lags
from tidegate.console.explorer.events import BrokerEvents
from tidegate.console.explorer.sending import EventSender
from tidegate.console.frame.parts import ConsoleParts
from tidegate.console.frame.rights import Access
from tidegate.console.hubs.namespace import Namespace
from tidegate.console.jobs.jobs import Jobs
from tidegate.console.pipelines.reported import ReportedPipelines
from tidegate.transport.status_files import PipelineFiles

if TYPE_CHECKING:
    from tidegate.console.consumers.groups import Consumers
    from tidegate.console.dead_letters.letters import DeadLetterView
    from tidegate.console.frame.lazy_database import LazyDatabase


@dataclass(frozen=True, slots=True)
class Views:
    """The views."""

    access: Access
    trail: AuditTrail
    namespace: Namespace
    events: BrokerEvents
    sender: EventSender
    pipelines: ReportedPipelines
    jobs: Jobs
    root_strings: Callable[[], Sequence[str]]
    """See ``ConsoleParts``."""
    consumers: Callable[[], Consumers]
    """Opened at first use: a start would load the processor for nothing."""
    letters: DeadLetterView | None
    """None if the service has no database."""


@asynccontextmanager
async def open_views(parts: ConsoleParts) -> AsyncIterator[Views]:
    """Open the views for a running service; on exit, their resources are released."""
    broker, clock = parts.broker, parts.clock
    access = Access(broker, clock)
    async with AsyncExitStack() as stack:
        namespace = await stack.enter_async_context(Namespace(parts))
        sender = EventSender(broker, clock=clock)
        stack.push_async_callback(sender.close)
        files = PipelineFiles.of_user(os.environ)
        pipelines = await stack.enter_async_context(ReportedPipelines(files, clock, broker.audit))
        jobs = Jobs(clock, broker.audit, access)
        letters, databases = None, dict[str, "LazyDatabase"]()
        if parts.databases:
            # With them comes SQLAlchemy: see ``app.page_routes``.
            from tidegate.console.dead_letters.letters import DeadLetterView
            from tidegate.console.frame.lazy_database import named_databases

            databases = named_databases(parts.databases)
            for each in databases.values():
                stack.push_async_callback(each.close)
            letters = DeadLetterView(parts, databases, jobs)
            stack.push_async_callback(letters.close)
            stack.push_async_callback(jobs.close)

        @functools.cache
        def consumers() -> Consumers:
            from tidegate.console.consumers.groups import Consumers

            opened = Consumers(parts, databases, jobs)
            stack.push_async_callback(opened.close)
            return opened

        namespace.recorder.find_lags = lambda: find_lags(
            broker, consumers, has_database=bool(parts.databases)
        )
        events = BrokerEvents(broker)
        yield Views(
            access,
            broker.audit,
            namespace,
            events,
            sender,
            pipelines,
            jobs,
            parts.root_strings,
            consumers,
            letters,
        )
