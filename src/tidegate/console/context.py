"""What every page is given."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.console.access import Sessions
from tidegate.console.backend import ConsoleBackend, ProcessingView
from tidegate.console.job_rights import JobRights
from tidegate.console.live import LiveStreams
from tidegate.model.clock import Clock
from tidegate.model.errors import NotFoundError
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
    job_rights: JobRights

    @property
    def processing(self) -> ProcessingView:
        """What the database holds. Raises NotFoundError where the service was given none."""
        if self.backend.processing is None:
            raise NotFoundError(
                "This service was given no database.", next_step="Start it with --database URL."
            )
        return self.backend.processing
