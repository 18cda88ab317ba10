"""``EventHubProperties``: an event hub as the service describes it to clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from tidegate.model.errors import NotFoundError
from tidegate.model.hub_settings import HubSettings
from tidegate.model.times import milliseconds_of


@dataclass(frozen=True, slots=True)
class EventHubProperties(HubSettings):
    """An event hub."""

    name: str
    created_at: datetime
    """Aware, in UTC."""
    partition_ids: tuple[str, ...]
    """In the order of their numbers: "0", "1", …"""

    @property
    def created_at_ms(self) -> int:
        """``created_at`` in milliseconds since 1970-01-01 UTC, as checkpoints record it."""
        return milliseconds_of(self.created_at)


def no_partition(event_hub: str, partition_id: str, known: Iterable[str]) -> NotFoundError:
    """The error for a partition that the event hub does not have. known: those that it has."""
    return NotFoundError(
        f"The event hub {event_hub!r} has no partition {partition_id!r}.",
        next_step=f"Its partitions are {', '.join(known)}.",
    )
