"""Long work that the console starts and watches: redrives, discards, moves of checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

JOBS_RUNNING_MAX: Final = 4
"""Concurrent jobs. Our choice: each redrive is a separate process."""

JOBS_KEPT_MAX: Final = 100
"""Jobs kept; the oldest that have ended are forgotten. The audit trail records their actions."""


class JobKind(StrEnum):
    """What a job does."""

    REDRIVE = "redrive"
    DRY_RUN = "dry run of a redrive"
    DISCARD = "discard"
    MOVE = "move of checkpoints"


class JobState(StrEnum):
    """The state of a job."""

    RUNNING = "running"
    DONE = "done"
    INCOMPLETE = "done in part"
    """It has ended, but could not do everything."""
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
    """The job's hub, as requested; None: all."""
    actor: str
    """Who started it."""
    started_at: datetime
    state: JobState = JobState.RUNNING
    ended_at: datetime | None = None
    done: int = 0
    total: int | None = None
    """None: not known yet, or at all."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Counts of its results so far, by label."""
    tables: Sequence[JobTable] = ()
    message: str = ""
    """Its error, or a remark on its end."""
    next_step: str = ""
    output: str = ""
    """The end of its process's output."""
    follow_up: Mapping[str, str] = field(default_factory=dict)
    """For a dry run: the form's fields that execute it."""

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.state is JobState.RUNNING
