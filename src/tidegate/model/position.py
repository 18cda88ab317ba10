"""Where a reader starts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from tidegate.model.errors import InvalidArgumentError


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
    def from_sequence_number(cls, sequence_number: int, *, is_inclusive: bool = True) -> EventPosition:
        """At the event with this sequence number (or after it, when not inclusive)."""
        return cls(PositionKind.SEQUENCE_NUMBER, sequence_number, is_inclusive)

    @classmethod
    def from_enqueued_time(cls, time_utc: datetime, *, is_inclusive: bool = True) -> EventPosition:
        """At the first event enqueued at or after this time (only after it, when not inclusive)."""
        return cls(PositionKind.ENQUEUED_TIME, time_utc, is_inclusive)
