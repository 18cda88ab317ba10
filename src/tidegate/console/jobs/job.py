"""Long work that the console starts and watches: redrives, discards, moves of checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

JOBS_RUNNING_MAX: Final = 4
"""Jobs running at once. Our choice: each redrive is a process of its own."""

JOBS_KEPT_MAX: Final = 100
"""Jobs remembered; the oldest that have ended are forgotten. What they did is in the audit trail."""


class JobKind(StrEnum):
    """What a job does."""

    REDRIVE = "redrive"
    DRY_RUN = "dry run of a redrive"
    DISCARD = "discard"
    MOVE = "move of checkpoints"


class JobState(StrEnum):
    """How a job is."""

    RUNNING = "running"
    DONE = "done"
    INCOMPLETE = "done in part"
    """It came to its end, and not all that was asked for could be done."""
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class JobTable:
    """Rows that a job reports."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True, slots=True)
class Job:
    """A job at one moment."""

    job_id: str
    kind: JobKind
    title: str
    event_hub: str | None
    """The hub it is about, as it was asked for; None: all."""
    actor: str
    """Who started it."""
    started_at: datetime
    state: JobState = JobState.RUNNING
    ended_at: datetime | None = None
    done: int = 0
    total: int | None = None
    """None: not known (yet)."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """What it has done so far, by word."""
    tables: Sequence[JobTable] = ()
    message: str = ""
    """What ended it, or what is to be said of its end."""
    next_step: str = ""
    output: str = ""
    """The end of what its process wrote for people."""
    follow_up: Mapping[str, str] = field(default_factory=dict)
    """Of a dry run: the form's fields that do it in earnest."""

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.state is JobState.RUNNING
