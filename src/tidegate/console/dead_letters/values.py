"""Dead letters, and does with them."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from tidegate.model.errors import InvalidArgumentError


class LetterState(StrEnum):
    """What became of a dead letter."""

    OPEN = "open"
    REDRIVEN = "redriven"
    DISCARDED = "discarded"


@dataclass(frozen=True, slots=True)
class LetterKey:
    """Which dead letter."""

    event_hub: str
    consumer_group: str
    partition_id: str
    sequence_number: int


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which dead letters are meant; None leaves a field open, all given ones must hold."""

    event_hub: str | None = None
    consumer_group: str | None = None
    partition_id: str | None = None
    error_type: str | None = None
    reason: str | None = None
    """Text that the reason holds, without regard to case."""
    reason_is: str | None = None
    """The whole reason."""
    state: LetterState | None = LetterState.OPEN
    failed_from: datetime | None = None
    """Last failed at this time or later (aware)."""
    failed_until: datetime | None = None
    """Last failed before this time (aware)."""
    sequence_number: int | None = None

    @property
    def is_one(self) -> bool:
        """Whether it means one dead letter."""
        return None not in (self.event_hub, self.consumer_group, self.partition_id, self.sequence_number)

    def until(self, time: datetime) -> LetterFilter:
        """The same without what fails at ``time`` or later."""
        earliest = time if self.failed_until is None else min(time, self.failed_until)
        return replace(self, failed_until=earliest)


@dataclass(frozen=True, slots=True)
class LetterLine:
    """A dead letter as a list shows it."""

    key: LetterKey
    last_failed_at: datetime
    partition_key: str | None
    error_type: str
    reason: str
    state: LetterState
    attempts: int
    pipeline: str


@dataclass(frozen=True, slots=True)
class LetterPlace:
    """Where a page of the list ended."""

    last_failed_at: datetime
    key: LetterKey

    def format(self) -> str:
        """As an address holds it."""
        key = self.key
        fields = [
            self.last_failed_at.astimezone(UTC).isoformat(),
            key.event_hub,
            key.consumer_group,
            key.partition_id,
            key.sequence_number,
        ]
        return base64.urlsafe_b64encode(json.dumps(fields).encode()).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> LetterPlace:
        """Raises InvalidArgumentError for what ``format`` never wrote."""
        try:
            found = json.loads(base64.urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4)))
            time, hub, group, partition_id, number = found
            if not all(isinstance(each, str) for each in (time, hub, group, partition_id)):
                raise ValueError
            at = datetime.fromisoformat(time)
            if (
                at.tzinfo is None
                or "\0" in f"{hub}{group}{partition_id}"
                or type(number) is not int
                or abs(number) >= 1 << 63
            ):
                raise ValueError
            return cls(at.astimezone(UTC), LetterKey(hub, group, partition_id, number))
        except (ValueError, TypeError, OverflowError, binascii.Error, RecursionError) as error:
            raise InvalidArgumentError(
                f"{text[:40]!r} is no place to go on from.", next_step="Begin at the first page."
            ) from error


@dataclass(frozen=True, slots=True)
class LetterReason:
    """How many share an error type and a reason."""

    error_type: str
    reason: str
    count: int
    first_failed_at: datetime
    last_failed_at: datetime


@dataclass(frozen=True, slots=True)
class LetterCount:
    """How many failed last within one hour (or day)."""

    start: datetime
    count: int


@dataclass(frozen=True, slots=True)
class LetterSums:
    """Sums over all that a filter means."""

    total: int
    hours: Sequence[LetterCount]
    """Those with any, in order."""
    reasons: Sequence[LetterReason]
    """The most frequent first, cut."""
    counted_at: datetime


@dataclass(frozen=True, slots=True)
class LetterAct:
    """What was done to a dead letter."""

    key: LetterKey
    action: str
    actor: str
    at: datetime
    detail: str


@dataclass(frozen=True, slots=True)
class LetterDetail:
    """One dead letter."""

    line: LetterLine
    offset: str
    enqueued_time: datetime
    first_failed_at: datetime
    traceback: str
    copied_bytes: int | None
    """Bytes of the copy that the dead letter keeps; None: only the log has the event."""
    history: Sequence[LetterAct]
    """The latest first."""


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
    filter: LetterFilter
    """Open ones of it; its time is bounded by when it was asked for."""
    maximum: int | None
    attempts_max: int
    is_dry_run: bool
    actor: str
