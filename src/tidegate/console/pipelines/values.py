"""Spark pipelines that report on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tidegate.model.errors import TidegateError
from tidegate.model.pipeline_status import PipelineStatus


@dataclass(frozen=True, slots=True)
class PipelineSample:
    """A pipeline at one moment, as its status file said then. None: not known."""

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
    """As true now: ``killed`` where its process is gone without a word."""
    history: Sequence[PipelineSample]
    """Of the last minutes, the oldest first; empty where it has not run meanwhile."""
    silent_s: float | None
    """Seconds for which a process that should say something has not; None: all is well."""
    is_stop_asked: bool
    """Whether it was asked to stop from here, and has not yet."""


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
