"""What pages of dead letters show beside the values of ``tidegate.sql``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tidegate.sql import DeadLetterFilter, ReasonCount
from tidegate.sql.dead_letters.pages import HourCount


@dataclass(frozen=True, slots=True)
class LetterSums:
    """Sums over all that a filter means."""

    total: int
    hours: Sequence[HourCount]
    """Those with any, in order."""
    reasons: Sequence[ReasonCount]
    """The most frequent first, cut."""
    counted_at: datetime


@dataclass(frozen=True, slots=True)
class LetterEvent:
    """The event of a dead letter."""

    is_copy: bool
    """True: the log has let it go, and this is what the dead letter keeps."""
    body: bytes
    body_value: str | None
    """A body that is not bytes, as text."""
    properties: Sequence[tuple[str, str]]
    content_type: str | None
    problem: str = ""
    """Why it does not decode."""


@dataclass(frozen=True, slots=True)
class RedriveRequest:
    """Which dead letters to run again, through what."""

    pipeline: str
    """One of ``redrive_pipelines``."""
    filter: DeadLetterFilter
    """Open ones of it; its time is bounded by when it was asked for."""
    maximum: int | None
    attempts_max: int
    is_dry_run: bool
    actor: str
