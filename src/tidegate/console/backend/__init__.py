"""What the console sees of the service: one Protocol per subject, and the values that they return."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.console.backend.access import AccessView, Credential, Rights
from tidegate.console.backend.audit import AuditView
from tidegate.console.backend.events import EventsView
from tidegate.console.backend.paging import PAGE_SIZE, Page
from tidegate.console.backend.pipelines import PipelinesView
from tidegate.console.backend.processing import ProcessingView
from tidegate.console.backend.service import ServiceView


@dataclass(frozen=True, slots=True)
class ConsoleBackend:
    """All that the pages know about."""

    access: AccessView
    service: ServiceView
    pipelines: PipelinesView
    audit: AuditView
    events: EventsView | None = None
    processing: ProcessingView | None = None
    """None: the service was given no database."""


__all__ = [
    "ConsoleBackend",
    "AccessView",
    "AuditView",
    "Credential",
    "Rights",
    "ServiceView",
    "EventsView",
    "ProcessingView",
    "PipelinesView",
    "Page",
    "PAGE_SIZE",
]
