"""Values for pages of dead letters, in addition to those of ``tidegate.sql``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tidegate.sql import DeadLetterFilter, ReasonCount
from tidegate.sql.dead_letters.pages import HourCount


@dataclass(frozen=True, slots=True)
class LetterSums:
    """Sums over all dead letters that match a filter."""

    total: int
    hours: Sequence[HourCount]
    """Hours with dead letters, in order."""
    reasons: Sequence[ReasonCount]
    """The most frequent first; not all."""
    counted_at: datetime


@dataclass(frozen=True, slots=True)
class LetterEvent:
    """The event of a dead letter."""

    is_copy: bool
    """True: the log no longer has it, and this is the dead letter's copy."""
    body: bytes
    body_value: str | None
    """A body that is not bytes, as text."""
    properties: Sequence[tuple[str, str]]
    content_type: str | None
    problem: str = ""
    """Why it cannot be decoded."""


@dataclass(frozen=True, slots=True)
class RedriveRequest:
    """Which dead letters to process again, and how."""

    pipeline: str
    """One of ``redrive_pipelines``."""
    filter: DeadLetterFilter
    """Only open dead letters are redriven; its time ends at the request."""
    maximum: int | None
    attempts_max: int
    is_dry_run: bool
    actor: str
