"""The context of every page."""

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
    """For background tasks that pages start."""


def stored(view: T | None) -> T:
    """``view``, if the service has a database. Raises NotFoundError if not."""
    if view is None:
        raise NotFoundError("This service has no database.", next_step="Start it with --database URL.")
    return view
