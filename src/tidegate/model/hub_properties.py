"""``EventHubProperties``: an event hub as the service describes it to clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from tidegate.model.errors import NotFoundError
from tidegate.model.hub_settings import HubSettings


@dataclass(frozen=True, slots=True)
class EventHubProperties(HubSettings):
    """An event hub."""

    name: str
    created_at: datetime
    """Aware, in UTC."""
    partition_ids: tuple[str, ...]
    """In the order of their numbers: "0", "1", …"""


def no_partition(event_hub: str, partition_id: str, known: Iterable[str]) -> NotFoundError:
    """The error for a partition that the event hub does not have. known: those that it has."""
    return NotFoundError(
        f"The event hub {event_hub!r} has no partition {partition_id!r}.",
        next_step=f"Its partitions are {', '.join(known)}.",
    )
