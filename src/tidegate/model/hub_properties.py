"""An event hub and the ends of its partitions, as the service describes them to clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from tidegate.model.errors import InvalidArgumentError, NotFoundError
from tidegate.model.history import History
from tidegate.model.hub_settings import HubSettings
from tidegate.model.times import milliseconds_of, time_of


@dataclass(frozen=True, slots=True)
class EventHubProperties(HubSettings):
    """An event hub."""

    name: str
    created_at: datetime
    """Aware, in UTC."""
    partition_ids: tuple[str, ...]
    """In the order of their numbers: "0", "1", …"""
    namespace_id: str | None = field(default=None, kw_only=True)
    """The namespace's identity, the same by whatever name and port it is reached; None: the service (Azure)
    does not say."""

    @property
    def created_at_ms(self) -> int:
        """``created_at`` in milliseconds since 1970-01-01 UTC, as checkpoints record it."""
        return milliseconds_of(self.created_at)


@dataclass(frozen=True, slots=True)
class PartitionEnds:
    """Where a partition's log begins and ends, at one moment: ``[begin_…, next_sequence_number)``."""

    event_hub: str
    partition_id: str
    begin_sequence_number: int
    """The first event still held; ``next_sequence_number`` if the partition holds none."""
    next_sequence_number: int
    """One past the last event: the number that the next event gets."""
    last_enqueued_offset: str = "-1"
    """"-1" if no event was ever enqueued."""
    last_enqueued_time_ms: int | None = None
    """Milliseconds since 1970-01-01 UTC; None if no event was ever enqueued."""
    histories: tuple[History, ...] = ()
    """In order; empty: the service (Azure) does not report them."""

    @property
    def last_enqueued_sequence_number(self) -> int:
        """-1 if no event was ever enqueued."""
        return self.next_sequence_number - 1

    @property
    def last_enqueued_time(self) -> datetime | None:
        """Aware, in UTC; None if no event was ever enqueued."""
        return None if self.last_enqueued_time_ms is None else time_of(self.last_enqueued_time_ms)

    def behind(self, resume_point: int) -> tuple[int, int] | None:
        """The events still to be read from ``resume_point`` on, and those before the first one held, which
        are lost; None: it is beyond the end of the log."""
        if resume_point > self.next_sequence_number:
            return None
        begin = self.begin_sequence_number
        return self.next_sequence_number - max(begin, resume_point), max(0, begin - resume_point)

    @property
    def is_empty(self) -> bool:
        """Whether the partition holds no event: none was ever enqueued, or retention removed all."""
        return self.begin_sequence_number >= self.next_sequence_number


def check_partition_id(partition_id: object) -> None:
    """Raises InvalidArgumentError for anything but a string."""
    if not isinstance(partition_id, str):
        raise InvalidArgumentError(
            f"A partition id is a string, not the {type(partition_id).__name__} {partition_id!r}.",
            next_step=f'Write "{partition_id}".' if type(partition_id) is int else "",
        )


def no_partition(event_hub: str, partition_id: str, known: Iterable[str]) -> NotFoundError:
    """The error for a partition that the event hub does not have. known: those that it has.

    Raises as ``check_partition_id``.
    """
    check_partition_id(partition_id)
    return NotFoundError(
        f"The event hub {event_hub!r} has no partition {partition_id!r}.",
        next_step=f"Its partitions are {', '.join(known)}.",
    )
