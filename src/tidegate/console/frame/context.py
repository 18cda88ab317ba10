"""What every page gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from tidegate.console.frame.live import LiveStreams
from tidegate.console.frame.rights import Access
from tidegate.console.frame.sessions import Sessions
from tidegate.model.clock import Clock
from tidegate.model.errors import NotFoundError
from tidegate.transport.tasks import TaskOwner

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Console:
    """The console of one service."""

    access: Access
    sessions: Sessions
    streams: LiveStreams
    clock: Clock
    tasks: TaskOwner
    """For what a page starts and does not wait for."""


def stored(view: T | None) -> T:
    """What the database holds. Raises NotFoundError where the service was given none."""
    if view is None:
        raise NotFoundError("This service has no database.", next_step="Start it with --database URL.")
    return view
