"""Where a reader starts: as a value, and as people write it (``earliest``, ``2h``, ``@4711``, a time)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum

from tidegate.model.errors import InvalidArgumentError

_AGO = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class PositionKind(Enum):
    """How an ``EventPosition`` identifies a place."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    SEQUENCE_NUMBER = "sequence_number"
    ENQUEUED_TIME = "enqueued_time"


@dataclass(frozen=True, slots=True)
class EventPosition:
    """A place in a partition's log, in one of the five ways of Event Hubs.

    Create it with the class methods; the constructor is for decoders.
    """

    kind: PositionKind
    value: str | int | datetime | None = None
    """The offset (str, opaque), the sequence number (int) or the enqueued time (aware, UTC)."""
    is_inclusive: bool = False
    """True: an event exactly at the position is delivered, too."""
    history_id: str | None = None
    """The history in which the events before a sequence number were read: a log that does not have it, or has
    other events under the same numbers, raises LogDivergedError. None: not checked."""

    def __post_init__(self) -> None:
        expected: dict[PositionKind, type] = {
            PositionKind.OFFSET: str,
            PositionKind.SEQUENCE_NUMBER: int,
            PositionKind.ENQUEUED_TIME: datetime,
        }
        wanted = expected.get(self.kind, type(None))
        if not isinstance(self.value, wanted):
            raise InvalidArgumentError(
                f"A position by {self.kind.value} takes {wanted.__name__}, not {self.value!r}."
            )
        if isinstance(self.value, datetime) and self.value.tzinfo is None:
            raise InvalidArgumentError(f"The enqueued time {self.value!r} has no time zone.")

    @classmethod
    def earliest(cls) -> EventPosition:
        """The oldest retained event."""
        return cls(PositionKind.EARLIEST, is_inclusive=True)

    @classmethod
    def latest(cls) -> EventPosition:
        """Only events enqueued after the receiver was opened."""
        return cls(PositionKind.LATEST)

    @classmethod
    def from_offset(cls, offset: str, *, is_inclusive: bool = False) -> EventPosition:
        """After the event with this offset (or at it, when inclusive)."""
        return cls(PositionKind.OFFSET, offset, is_inclusive)

    @classmethod
    def from_sequence_number(
        cls, sequence_number: int, *, is_inclusive: bool = True, history_id: str | None = None
    ) -> EventPosition:
        """At the event with this sequence number (or after it, when not inclusive)."""
        return cls(PositionKind.SEQUENCE_NUMBER, sequence_number, is_inclusive, history_id)

    @classmethod
    def from_enqueued_time(cls, time_utc: datetime, *, is_inclusive: bool = True) -> EventPosition:
        """At the first event enqueued at or after this time (only after it, when not inclusive)."""
        return cls(PositionKind.ENQUEUED_TIME, time_utc, is_inclusive)


def parse_time(text: str, *, now_utc: datetime) -> datetime:
    """The time that ``text`` means: ``90s``, ``15m``, ``2h``, ``7d`` ago, or ISO 8601 (without zone: UTC).

    Raises InvalidArgumentError for anything else.
    """
    try:
        return _time_of(text, now_utc)
    except (ValueError, OverflowError) as error:
        raise InvalidArgumentError(
            f"{text!r} is not a valid time.",
            next_step="Use an age (90s, 15m, 2h, 7d), or a time in ISO 8601.",
        ) from error


def parse_position(text: str, *, now_utc: datetime) -> EventPosition:
    """The position that ``text`` means.

    ``earliest``; ``latest``; ``90s``, ``15m``, ``2h``, ``7d``: enqueued since that long ago; ``@4711``: that
    sequence number of each partition; a time in ISO 8601 (without zone: UTC). Raises InvalidArgumentError for
    anything else.
    """
    if text == "earliest":
        return EventPosition.earliest()
    if text == "latest":
        return EventPosition.latest()
    try:
        if text.startswith("@") and text[1:].isascii() and text[1:].isdigit():
            return EventPosition.from_sequence_number(int(text[1:]))
        return EventPosition.from_enqueued_time(_time_of(text, now_utc))
    except (ValueError, OverflowError) as error:
        raise InvalidArgumentError(
            f"{text[:80]!r} is not a valid starting position.",
            next_step="Use earliest, latest, @SEQUENCE_NUMBER, a time in ISO 8601, or an age (90s, "
            "15m, 2h, 7d).",
        ) from error


def _time_of(text: str, now_utc: datetime) -> datetime:
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return now_utc - timedelta(seconds=float(ago[1]) * _SECONDS[ago[2]])
    time = datetime.fromisoformat(text)
    # Convert to UTC at once: near the calendar's ends a time may not exist in UTC, and is invalid then.
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
