"""Moves of checkpoints by people: where processing goes on, and what that skips or repeats. Pure.

The command line finds positions through a consumer, the console in the broker's log; both plan with this.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.model.errors import PositionOutOfRangeError
from tidegate.model.position import EventPosition, PositionKind
from tidegate.processor.checkpoint import ProcessorCheckpoint


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """One partition's checkpoint, before and after."""

    after: ProcessorCheckpoint
    """With a sequence number."""
    before: ProcessorCheckpoint | None = None
    """None: there is none."""
    owner: str | None = None
    """The host that has the partition now; None: nobody."""
    lease_age_s: float = 0.0
    """Seconds since that host renewed its lease."""

    @property
    def partition_id(self) -> str:
        """The partition."""
        return self.after.partition_id

    @property
    def following(self) -> int:
        """The event that processing goes on with."""
        assert self.after.sequence_number is not None
        return self.after.sequence_number + 1

    @property
    def following_before(self) -> int | None:
        """The event that it would go on with otherwise; None: no checkpoint, or one without the number."""
        if self.before is None or self.before.sequence_number is None:
            return None
        return self.before.sequence_number + 1

    @property
    def events(self) -> int | None:
        """How many are skipped; negative: processed again; None: unknown, or there was no checkpoint."""
        before = self.following_before
        return None if before is None or self.is_other_hub else self.following - before

    @property
    def is_other_hub(self) -> bool:
        """Whether the checkpoint counts in another hub of this name."""
        before_ms = None if self.before is None else self.before.event_hub_created_at_ms
        return before_ms is not None and before_ms != self.after.event_hub_created_at_ms

    @property
    def is_rewind(self) -> bool:
        """Whether it may go backwards: it does, or the two cannot be compared."""
        return self.before is not None and (self.events is None or self.events < 0)


@dataclass(frozen=True, slots=True)
class MovePlan:
    """What moves would do together: a dry run."""

    moves: tuple[PlannedMove, ...]

    @property
    def skipped(self) -> int:
        """Events that nobody would process."""
        return sum(max(0, move.events or 0) for move in self.moves)

    @property
    def repeated(self) -> int:
        """Events that would be processed again."""
        return -sum(min(0, move.events or 0) for move in self.moves)

    @property
    def unknown(self) -> list[PlannedMove]:
        """Those of which neither is known."""
        return [move for move in self.moves if move.events is None]

    @property
    def owned(self) -> list[PlannedMove]:
        """Those whose partition a host has now."""
        return [move for move in self.moves if move.owner is not None]

    @property
    def rewinds(self) -> list[PlannedMove]:
        """Those that go backwards, or may."""
        return [move for move in self.moves if move.is_rewind]


def following_of(position: EventPosition, partition_id: str, *, begin: int, until: int) -> int | None:
    """The event that processing goes on with; None: the log has to be asked (an offset, a time).

    begin, until: the partition's events, half open. Raises PositionOutOfRangeError for another number.
    """
    if position.kind is PositionKind.EARLIEST:
        return begin
    if position.kind is PositionKind.LATEST:
        return until
    if position.kind is not PositionKind.SEQUENCE_NUMBER:
        return None
    assert isinstance(position.value, int)
    if not begin <= position.value <= until:
        raise PositionOutOfRangeError(
            f"Partition {partition_id} cannot go on with event {position.value}: its log begins at {begin}, "
            f"and its next event will be {until}.",
            next_step=f"Give a number from {begin} to {until}, or choose earliest or latest.",
        )
    return position.value
