"""What every page is given."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.console.access import Sessions
from tidegate.console.backend import ConsoleBackend
from tidegate.console.live import LiveStreams
from tidegate.model.clock import Clock
from tidegate.transport.tasks import TaskOwner


@dataclass(frozen=True, slots=True)
class Console:
    """The console of one service."""

    backend: ConsoleBackend
    sessions: Sessions
    streams: LiveStreams
    clock: Clock
    tasks: TaskOwner
    """For what a page starts and does not wait for."""
