"""Spark pipelines that report on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tidegate.model.errors import TidegateError
from tidegate.model.pipeline_status import PipelineStatus


@dataclass(frozen=True, slots=True)
class PipelineSample:
    """A pipeline at one moment, by its status file. None: not known."""

    at: datetime
    input_events_per_s: float | None
    processed_events_per_s: float | None
    batch_ms: int | None
    lag_events: int | None


@dataclass(frozen=True, slots=True)
class PipelineEntry:
    """A pipeline that ran here at least once."""

    name: str
    status: PipelineStatus
    """The current status: ``killed`` if its process ended without reporting."""
    history: Sequence[PipelineSample]
    """Of the last minutes, the oldest first; empty if it has not run."""
    silent_s: float | None
    """Seconds since the last report of a running process, if it is overdue."""
    is_stop_asked: bool
    """Whether the console asked it to stop, and it has not stopped yet."""


@dataclass(frozen=True, slots=True)
class UnreadablePipeline:
    """A pipeline whose status file cannot be read."""

    name: str
    error: TidegateError


@dataclass(frozen=True, slots=True)
class PipelineList:
    """All pipelines, by name."""

    entries: Sequence[PipelineEntry]
    unreadable: Sequence[UnreadablePipeline]


@dataclass(frozen=True, slots=True)
class LogTail:
    """The end of a pipeline's log."""

    path: str
    text: str
    """Empty: there is none."""
    is_whole: bool
    """Whether it is all of the log."""
