"""Plans moves of checkpoints by people: where processing resumes, and what that skips or repeats. Pure.

The command line resolves positions through a consumer, the console in the broker's log; both use this
planner.
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
    """Always has a sequence number."""
    before: ProcessorCheckpoint | None = None
    """None if the partition has no checkpoint."""
    owner: str | None = None
    """The host that owns the partition, if any."""
    lease_age_s: float = 0.0
    """Seconds since that host renewed its lease."""

    @property
    def partition_id(self) -> str:
        """The partition."""
        return self.after.partition_id

    @property
    def resume_point(self) -> int:
        """The event that processing resumes with."""
        assert self.after.resume_point is not None
        return self.after.resume_point

    @property
    def resume_point_before(self) -> int | None:
        """The event that it would resume with now; None without a checkpoint or its sequence number."""
        return None if self.before is None else self.before.resume_point

    @property
    def events(self) -> int | None:
        """The number of events skipped, or (negative) processed again; None if unknown."""
        before = self.resume_point_before
        return None if before is None or self.is_other_hub else self.resume_point - before

    @property
    def is_other_hub(self) -> bool:
        """Whether the checkpoint belongs to another hub of this name."""
        created_at_ms = self.after.event_hub_created_at_ms
        if self.before is None or created_at_ms is None:
            return False
        return self.before.is_of_hub(created_at_ms) is False

    @property
    def is_rewind(self) -> bool:
        """Whether it moves backwards, or may because the checkpoints cannot be compared."""
        return self.before is not None and (self.events is None or self.events < 0)


@dataclass(frozen=True, slots=True)
class MovePlan:
    """A dry run of all moves."""

    moves: tuple[PlannedMove, ...]

    @property
    def skipped(self) -> int:
        """How many events would not be processed."""
        return sum(max(0, move.events or 0) for move in self.moves)

    @property
    def repeated(self) -> int:
        """How many events would be processed again."""
        return -sum(min(0, move.events or 0) for move in self.moves)

    @property
    def unknown(self) -> list[PlannedMove]:
        """Moves whose number of skipped or repeated events is unknown."""
        return [move for move in self.moves if move.events is None]

    @property
    def owned(self) -> list[PlannedMove]:
        """Moves of partitions that a host owns now."""
        return [move for move in self.moves if move.owner is not None]

    @property
    def rewinds(self) -> list[PlannedMove]:
        """Moves for which ``is_rewind`` is True."""
        return [move for move in self.moves if move.is_rewind]


def resume_point_of(position: EventPosition, partition_id: str, *, begin: int, until: int) -> int | None:
    """The event that processing resumes with; None for an offset or a time, which only the log can resolve.

    begin, until: the events that the partition holds. Raises PositionOutOfRangeError for another number.
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
            f"Partition {partition_id} cannot resume at event {position.value}: its log begins at {begin}, "
            f"and its next event will be {until}.",
            next_step=f"Give a number from {begin} to {until}, or choose earliest or latest.",
        )
    return position.value
