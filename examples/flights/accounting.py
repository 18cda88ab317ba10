"""The demo's figures, and whether they add up: every event is one row or one dead letter, none twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartitionAccount:
    """The outcome of one partition's events."""

    partition_id: str
    events: int
    """In the log."""
    rows: int
    """In the result table, whose primary key is the event's address, so none is there twice."""
    dead_letters_open: int
    dead_letters_redriven: int
    """Dead letters whose events are rows now."""
    dead_letters_discarded: int

    @property
    def dead_letters_kept(self) -> int:
        """Dead letters whose events have no row."""
        return self.dead_letters_open + self.dead_letters_discarded

    @property
    def is_exact(self) -> bool:
        """Whether rows and dead letters add up to the events."""
        return self.rows + self.dead_letters_kept == self.events

    def describe(self) -> str:
        """The equation, for people."""
        sign = "=" if self.is_exact else "≠"
        return (
            f"partition {self.partition_id}: {self.rows:,} rows + {self.dead_letters_kept:,} dead letters "
            f"{sign} {self.events:,} events"
        )


@dataclass(frozen=True, slots=True)
class StageRate:
    """The speed of one stage."""

    stage: str
    events: int
    elapsed_s: float

    @property
    def events_per_s(self) -> float:
        """Events per second; 0 if the stage had nothing to do."""
        return self.events / self.elapsed_s if self.events and self.elapsed_s > 0 else 0.0


def account_partitions(
    events: Mapping[str, int], rows: Mapping[str, int], dead_letters: Mapping[tuple[str, str], int]
) -> tuple[PartitionAccount, ...]:
    """One account per partition.

    dead_letters: (partition id, status) → count. Rows and dead letters of a partition without events are
    included; its account fails.
    """
    partition_ids = sorted({*events, *rows, *(partition_id for partition_id, _ in dead_letters)})
    return tuple(
        PartitionAccount(
            partition_id,
            events.get(partition_id, 0),
            rows.get(partition_id, 0),
            dead_letters.get((partition_id, "open"), 0),
            dead_letters.get((partition_id, "redriven"), 0),
            dead_letters.get((partition_id, "discarded"), 0),
        )
        for partition_id in partition_ids
    )
