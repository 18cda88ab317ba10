"""What the console sees of processing: consumer groups, dead letters, and the long work it starts on them."""

from __future__ import annotations

from typing import Protocol

from tidegate.console.backend.consumers import ConsumersView
from tidegate.console.backend.dead_letters import DeadLettersView
from tidegate.console.backend.jobs import JobsView


class ProcessingView(Protocol):
    """A database with leases, checkpoints and dead letters."""

    @property
    def database_url(self) -> str:
        """For people: without its password."""
        ...

    @property
    def consumers(self) -> ConsumersView:
        """Consumer groups."""
        ...

    @property
    def dead_letters(self) -> DeadLettersView:
        """Dead letters."""
        ...

    @property
    def jobs(self) -> JobsView:
        """What runs, and what has run."""
        ...
