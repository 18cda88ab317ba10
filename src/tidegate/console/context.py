"""What every page is given."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.console.access import Sessions
from tidegate.console.backend import ConsoleBackend
from tidegate.console.live import LiveStreams
from tidegate.model.clock import Clock


@dataclass(frozen=True, slots=True)
class Console:
    """The console of one service."""

    backend: ConsoleBackend
    sessions: Sessions
    streams: LiveStreams
    clock: Clock
